"""The ROCm build, without ROCm: what is compiled and linked, and how the architectures are chosen.

A dry run has compilers that log their arguments and write empty files (tests/rocm/stand_in.py). It shows the commands,
not that they compile; so once the host side is compiled, linked with a HIP runtime of our own and imported. The
machine code of the kernels is what tests/test_rdna_*.py run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests" / "rocm"
ENGINE = ROOT / "tools" / "rdna" / "engine"
INCLUDE = ROOT / "tools" / "rdna" / "include"
SOURCES = json.loads((ROOT / "csrc" / "sources.json").read_text())
ARCHS = SOURCES["hip_archs"]
KERNELS = [*SOURCES["gpu"], *SOURCES["hip"]]
HOST = [*SOURCES["bind"], *SOURCES["core"], *SOURCES["cpu"]]
BUILT_FROM = ["csrc", "strata_gdn", "tools/build_backend", "setup.py", "pyproject.toml", "README.md", "LICENSE",
              "MANIFEST.in", ".gitignore"]  # fmt: skip
# Of the exact lane's arithmetic, written out: a flag that is lost in the build is missed here.
EXACT = {"-ffp-contract=off", "-fno-fast-math", "-fhip-fp32-correctly-rounded-divide-sqrt",
         "-fno-gpu-flush-denormals-to-zero"}  # fmt: skip

sys.path.insert(0, str(ROOT / "tools" / "build_backend"))

import rocm_toolkit  # noqa: E402

pytestmark = pytest.mark.xdist_group("rocm_build")


@dataclass(frozen=True)
class Build:
    """A build in a copy of the repository."""

    root: Path
    home: Path  # ROCm's
    output: str

    @cached_property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.root.parent / "log").read_text().splitlines()]

    def compiled_by(self, name: str) -> dict[str, list[str]]:
        """The arguments for each source, whose names are relative to csrc/."""
        csrc = f"{self.root}/csrc/"
        found: dict[str, list[str]] = {}
        for caller, *arguments in self.calls:
            if caller == name and "-c" in arguments:
                (source,) = (a.removeprefix(csrc) for a in arguments if a.startswith(csrc))
                assert source not in found
                found[source] = arguments
        return found

    @property
    def linked(self) -> list[str]:
        """The arguments of the one call that links."""
        (arguments,) = (arguments for name, *arguments in self.calls if name == "c++" and "-shared" in arguments)
        return arguments

    @property
    def wheel(self) -> Path:
        (path,) = (self.root.parent / "wheel").iterdir()
        return path


def stand_in(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "stand_in.py"}" {name} "$@"\n')
    path.chmod(0o755)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a ROCm installation."""
    folder = tmp_path_factory.mktemp("rocm")
    stand_in(folder / "bin" / "hipcc", "hipcc")
    stand_in(folder / "bin" / "c++", "c++")
    for name in ("include/hip/hip_runtime.h", "lib/libamdhip64.so"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    return folder


def build(folder: Path, home: Path, **environment: str) -> Build:
    """Builds the wheel in a copy of the repository under ``folder``."""
    root = folder / "copy"
    for name in BUILT_FROM:
        source, copy = ROOT / name, root / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(source, copy)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    (folder / "wheel").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GDN_", "ROCM_", "HIP"))}
    done = subprocess.run(
        [sys.executable, str(HERE / "build_wheel.py"), str(folder / "wheel")],
        cwd=root,
        env={
            **inherited,
            "ROCM_HOME": str(home),
            "CXX": str(home / "bin" / "c++"),
            "STAND_IN_LOG": str(folder / "log"),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return Build(root, home, done.stdout)


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


# ---- the dry run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def dry(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(tmp_path_factory.mktemp("dry"), home)


def test_hipcc_compiles_every_portable_kernel_as_it_stands(dry: Build) -> None:
    assert sorted(dry.compiled_by("hipcc")) == sorted(KERNELS)
    assert not set(SOURCES["cuda"]) & set(dry.compiled_by("hipcc"))
    assert sorted(dry.compiled_by("c++")) == sorted(HOST)


def test_every_kernel_is_compiled_for_every_architecture(dry: Build) -> None:
    for source, arguments in dry.compiled_by("hipcc").items():
        archs = [a.removeprefix("--offload-arch=") for a in arguments if a.startswith("--offload-arch=")]
        assert archs == ARCHS, source
    assert f"building ROCm kernels for {', '.join(ARCHS)} with {dry.home}" in dry.output


def test_no_flag_takes_the_exact_lanes_rounding_away(dry: Build) -> None:
    contradicting = re.compile(
        r"-f(?!no-fast-math).*fast|-ffp-contract=(?!off)|-fno-hip-fp32|-fgpu-flush|-Ofast|-munsafe"
    )
    for source, arguments in dry.compiled_by("hipcc").items():
        assert set(arguments) >= EXACT, source
        assert [a for a in arguments if contradicting.match(a)] == [], source


def test_the_binding_knows_what_was_compiled(dry: Build) -> None:
    definitions = {"-DGDN_WITH_GPU", "-DGDN_WITH_HIP", f'-DGDN_HIP_ARCH_LIST="{";".join(ARCHS)}"'}
    for arguments in dry.compiled_by("c++").values():
        assert {a for a in arguments if a.startswith("-DGDN_")} == definitions


def test_the_extension_is_linked_with_the_hip_runtime_alone(dry: Build) -> None:
    libraries = [a for a in dry.linked if a.startswith("-l")]
    assert "-lamdhip64" in libraries
    assert not [a for a in libraries if "cuda" in a or "torch_hip" in a or "c10_hip" in a]
    assert f"-L{dry.home / 'lib'}" in dry.linked
    objects = {Path(a) for a in dry.linked if a.endswith(".o")}
    assert len(objects) == len(KERNELS) + len(HOST)
    assert {path.stem for path in objects} == {Path(name).stem for name in [*KERNELS, *HOST]}


def test_ninja_is_told_of_the_kernels_headers(dry: Build) -> None:
    assert all("-MD" in arguments and "-MF" in arguments for arguments in dry.compiled_by("hipcc").values())


def test_a_build_leaves_git_status_clean(dry: Build) -> None:
    # The index is what was there before: anything new or changed since has no first column.
    changed = [line for line in git(dry.root, "status", "--porcelain").splitlines() if not line.startswith("A  ")]
    assert changed == []


def test_gdn_hip_archs_narrows_the_list(home: Path, tmp_path: Path) -> None:
    built = build(tmp_path, home, GDN_HIP_ARCHS="gfx1201;gfx1100")
    for arguments in built.compiled_by("hipcc").values():
        archs = [a for a in arguments if a.startswith("--offload-arch=")]
        assert archs == ["--offload-arch=gfx1100", "--offload-arch=gfx1201"]
    assert '-DGDN_HIP_ARCH_LIST="gfx1100;gfx1201"' in built.compiled_by("c++")["module.cpp"]


def test_gdn_hip_archs_none_leaves_the_kernels_out(home: Path, tmp_path: Path) -> None:
    built = build(tmp_path, home, GDN_HIP_ARCHS="none")
    assert "strata_gdn: building for the CPU only" in built.output
    assert built.compiled_by("hipcc") == {}
    assert "-lamdhip64" not in built.linked
    assert not [a for arguments in built.compiled_by("c++").values() for a in arguments if a.startswith("-DGDN_")]


# ---- architectures and installations ---------------------------------------------------------------------------------


def test_an_old_hipcc_narrows_the_default_but_not_the_users_list(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("STAND_IN_UNKNOWN", "gfx1200 gfx1201")
    toolkit = rocm_toolkit.Toolkit(home)
    asked = ["gfx1030", "gfx1151", "gfx1200", "gfx1201"]
    assert rocm_toolkit.compilable_architectures(toolkit, asked, None) == ["gfx1030", "gfx1151"]
    with pytest.raises(RuntimeError) as error:
        rocm_toolkit.compilable_architectures(toolkit, ["gfx1030", "gfx1201"], "gfx1030;gfx1201")
    assert str(error.value) == (
        f"GDN_HIP_ARCHS: hipcc 7.0.51831 in {home} cannot compile for gfx1201; it knows gfx1030"
    )


def test_rocm_is_where_torch_found_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    assert rocm_toolkit.find_toolkit(str(home)) == rocm_toolkit.Toolkit(home)
    assert rocm_toolkit.find_toolkit(None) is None


@pytest.mark.parametrize("missing", ["bin/hipcc", "include/hip/hip_runtime.h", "lib/libamdhip64.so"])
def test_half_an_installation(home: Path, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = tmp_path / "half"
    shutil.copytree(home, half)
    (half / missing).unlink()
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    assert rocm_toolkit.find_toolkit(str(half)) is None  # in a usual place: a runtime without its compiler
    monkeypatch.setenv("ROCM_PATH", str(half))
    with pytest.raises(RuntimeError) as error:
        rocm_toolkit.find_toolkit(str(half))
    assert str(error.value) == (
        "ROCM_PATH must be a ROCm installation with bin/hipcc, include/hip/hip_runtime.h, lib/libamdhip64.so; got "
        f"{half}. Unset it to search the usual places; GDN_HIP_ARCHS=none builds no ROCm kernels"
    )


# ---- the host side, compiled and linked ------------------------------------------------------------------------------

RUNTIME = ["-std=c++20", "-O1", "-fPIC", "-shared", f"-I{INCLUDE}", f"-I{ENGINE}"]
DEVICE_PROGRAM = """
#include <cstdint>
#include <cstdio>
#include "cuda/runtime.h"
extern "C" void rdna_set_device(const char* arch, int multiprocessors, uint64_t shared_bytes);
int main() {
  rdna_set_device("gfx1151:sramecc-:xnack-", 20, 65536);
  const gdn::policy::Device device = gdn::gpu::device(0);
  std::printf("%s %d %d", device.arch.c_str(), device.sms, static_cast<int>(device.shared_memory_bytes));
}
"""
# The library as torch's ROCm builds have it: its name, and the function that the binding looks up in it.
TORCH_HIP = """
#include <cstdint>
extern "C" int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream) {
  *stream = reinterpret_cast<void*>(0x1000 + device_index);
  return device_index > 1;
}
"""
STREAM_PROGRAM = """
#include <cstdio>
#include <exception>
#include "api/stream.h"
int main() {
  std::printf("%p %p", gdn::api::current_stream(0), gdn::api::current_stream(1));
  try {
    gdn::api::current_stream(2);
  } catch (const std::exception& error) {
    std::printf("; %s", error.what());
  }
}
"""


@pytest.fixture(scope="session")
def compiled(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The wheel with its host side compiled, linked with the runner's HIP runtime."""
    for program in ("clang++-22", "c++"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on the PATH")
    folder = tmp_path_factory.mktemp("compiled")
    whole = folder / "rocm"
    shutil.copytree(home, whole)
    library = whole / "lib" / "libamdhip64.so"
    command = ["clang++-22", *RUNTIME, str(ENGINE / "hip_runtime.cpp"), "-o", str(library)]
    subprocess.run([*command, f"-Wl,-soname,{library.name}"], check=True)
    return build(folder, whole, STAND_IN_COMPILES="1")


def run_linked(compiled: Build, command: list[str], **environment: str) -> str:
    """What a program prints that finds the runner's HIP runtime as libamdhip64.so."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(compiled.home / "lib"), **environment}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_extension_links_and_says_what_it_has(compiled: Build, tmp_path: Path) -> None:
    with zipfile.ZipFile(compiled.wheel) as archive:
        archive.extractall(tmp_path)
    code = """if True:
        import torch, strata_gdn, strata_gdn.__main__
        for op in ("gated_delta_rule", "gdn_decode_layer_"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"strata_gdn::{op}", "CUDA")
        print(strata_gdn.__file__)
        strata_gdn.__main__.main(["info"])
    """
    printed = run_linked(compiled, [sys.executable, "-c", code], PYTHONPATH=str(tmp_path))
    assert printed.startswith(f"{tmp_path}/strata_gdn/")
    assert re.search(rf"^build +CPU and ROCm for {', '.join(ARCHS)}$", printed, re.MULTILINE)


def test_no_kernel_includes_torch(compiled: Build) -> None:
    ninja = shutil.which("ninja")
    assert ninja is not None
    (folder,) = (compiled.root / "build").glob("extension-*")
    listing = subprocess.run([ninja, "-t", "deps"], cwd=folder, capture_output=True, text=True, check=True).stdout
    kernels = [entry for entry in listing.split("\n\n") if re.search("/csrc/(cuda|hip)/", entry.split(":")[0])]
    assert len(kernels) == len(KERNELS)
    for entry in kernels:
        assert f"{compiled.root}/csrc/cuda/device.h" in entry
        assert "torch/" not in entry.split("\n", 1)[1]


def program(compiled: Build, folder: Path, text: str, object_name: str, *flags: str) -> Path:
    """An object of the build with a main function."""
    (made,) = (compiled.root / "build").rglob(object_name)
    (folder / "main.cpp").write_text(text)
    command = ["c++", "-std=c++17", f"-I{compiled.root}/csrc", str(folder / "main.cpp"), str(made), *flags]
    subprocess.run([*command, "-o", str(folder / "main")], check=True)
    return folder / "main"


def test_the_device_is_described_for_the_registry(compiled: Build, tmp_path: Path) -> None:
    main = program(compiled, tmp_path, DEVICE_PROGRAM, "runtime.o", f"-L{compiled.home}/lib", "-lamdhip64")
    assert run_linked(compiled, [str(main)]) == "gfx1151 20 65536"


def test_the_stream_is_that_of_libtorch_hip(compiled: Build, tmp_path: Path) -> None:
    (tmp_path / "torch_hip.cpp").write_text(TORCH_HIP)
    library = tmp_path / "libtorch_hip.so"
    soname = f"-Wl,-soname,{library.name}"
    subprocess.run(["c++", "-shared", "-fPIC", str(tmp_path / "torch_hip.cpp"), soname, "-o", str(library)], check=True)
    flags = [f"-L{tmp_path}", "-Wl,--no-as-needed", "-ltorch_hip", f"-Wl,-rpath,{tmp_path}", "-ldl"]
    main = program(compiled, tmp_path, STREAM_PROGRAM, "stream.o", *flags)
    assert run_linked(compiled, [str(main)]) == "0x1000 0x1001; torch has no current stream on cuda:2"


# ---- CMake -----------------------------------------------------------------------------------------------------------


def cmake(*arguments: str | Path, **environment: str) -> None:
    done = subprocess.run(
        ["cmake", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def has_cmake() -> None:
    for program in ("cmake", "ninja", "c++"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on the PATH")


@pytest.mark.usefixtures("has_cmake")
def test_a_preset_compiles_device_code_without_rocm(tmp_path: Path) -> None:
    if shutil.which("clang++-22") is None or shutil.which("ld.lld-22") is None:
        pytest.skip("clang++-22 or ld.lld-22 is not on the PATH")
    if shutil.which("hipcc") is not None:
        pytest.skip("hipcc is on the PATH, and would be used")
    cmake("--preset", "hip-gfx1201", "-B", tmp_path)
    code = tmp_path / "code_objects" / "qk_l2norm_gfx1201.co"
    cmake("--build", tmp_path, "--target", code.relative_to(tmp_path))
    assert code.read_bytes()[:4] == b"\x7fELF"
    targets = subprocess.run(
        ["ninja", "-t", "targets", "all"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    made = {Path(name).stem.removesuffix("_gfx1201") for name in re.findall(r"^(code_objects/\S+\.co):", targets, re.M)}
    assert made == {Path(name).stem for name in KERNELS if name != "cuda/runtime.cu"}


@pytest.mark.usefixtures("has_cmake")
def test_a_preset_uses_hipcc_where_there_is_one(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    cmake("--preset", "hip-all", "-B", tmp_path / "build", PATH=path, STAND_IN_LOG=str(log), CXX=shutil.which("c++"))
    cmake("--build", tmp_path / "build", "--target", "strata_gdn_hip", PATH=path, STAND_IN_LOG=str(log))
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    compiled = {str(Path(call[call.index("-c") + 1]).relative_to(ROOT / "csrc")): call for call in calls}
    assert sorted(compiled) == sorted(KERNELS)
    for call in compiled.values():
        assert [a.removeprefix("--offload-arch=") for a in call if a.startswith("--offload-arch=")] == ARCHS
        assert set(call) >= EXACT
    assert (tmp_path / "build" / "libstrata_gdn_hip.a").is_file()
