"""The build: what is in the wheel, which ABIs it keeps, what the backend asks for, how the architectures are chosen."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import setuptools
import torch

import strata_gdn

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
BACKEND = ROOT / "tools" / "build_backend"
SOURCES = json.loads((CSRC / "sources.json").read_text())
GROUPS = ("bind", "core", "cpu", "gpu", "cuda", "hip")

sys.path.insert(0, str(BACKEND))

import architectures  # noqa: E402
import cuda_toolkit  # noqa: E402

# One worker builds: two builds in one folder would disturb each other.
pytestmark = pytest.mark.xdist_group("build")

TORCH_FREE = ("core", "cpu", "cuda", "hip")
TORCH_HEADER = re.compile(r"^\s*#\s*include\s*[<\"](torch/|ATen/|c10/|Python\.h)", re.MULTILINE)
INCLUDE = re.compile(r"^\s*#\s*include\s*\"([^\"]+)\"", re.MULTILINE)


def run_python(code: str, *options: str, python: str = sys.executable, **environment: str) -> str:
    """What ``code`` prints, run in the repository's root."""
    done = subprocess.run(
        [python, *options, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_python(f"import strata_build; strata_build.build_wheel({str(folder)!r})", PYTHONPATH=str(BACKEND))
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def extension(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("strata_gdn/_C.abi3.so", tmp_path_factory.mktemp("extension")))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_wheel_tag_is_abi3(wheel: Path) -> None:
    assert re.fullmatch(rf"strata_gdn-{re.escape(strata_gdn.__version__)}-cp310-abi3-linux_\w+\.whl", wheel.name)


def test_wheel_metadata(wheel: Path) -> None:
    fields = metadata(wheel)
    assert fields["Version"] == strata_gdn.__version__
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.10"
    required = [name for name in fields.get_all("Requires-Dist", []) if "extra ==" not in name]
    assert required == ["torch>=2.11"]
    assert set(fields.get_all("Provides-Extra", [])) == {"transformers", "bench", "test", "dev"}


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "strata_gdn"
    expected = {str(path.relative_to(ROOT)) for path in package.rglob("*.py")}
    expected |= {str(path.relative_to(ROOT)) for path in (package / "data").iterdir()}
    expected |= {"strata_gdn/py.typed", "strata_gdn/_C.abi3.so"}
    assert packed == expected


def test_extension_keeps_the_stable_abis(extension: Path) -> None:
    audit = shutil.which("torch-abi-audit")
    if audit is None:
        pytest.skip("torch-abi-audit is not installed")
    done = subprocess.run(
        [audit, str(extension), "--json", "--check", "both"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)["extensions"]
    assert report["cpython"]["compliant"]
    assert report["torch"]["stable"]
    assert report["torch"]["min_torch_version"] == "2.10.0"


def test_extension_exports_only_its_entry_point(extension: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    listing = subprocess.run(
        [nm, "-D", "--defined-only", str(extension)], capture_output=True, text=True, check=True
    ).stdout
    functions = [fields[2] for fields in map(str.split, listing.splitlines()) if fields[1] == "T"]
    assert functions == ["PyInit__C"]


def test_extension_names_no_folder_of_this_machine(extension: Path) -> None:
    assert str(ROOT).encode() not in extension.read_bytes()


def test_every_source_is_listed_once() -> None:
    listed = [name for group in GROUPS for name in SOURCES[group]]
    present = {str(path.relative_to(CSRC)) for path in CSRC.rglob("*") if path.suffix in {".cpp", ".cu", ".hip"}}
    assert sorted(listed) == sorted(present)
    assert len(listed) == len(set(listed))


def test_every_header_is_included() -> None:
    suffixes = {".h", ".inl", ".cuh"}
    texts = [path.read_text() for path in CSRC.rglob("*") if path.suffix in suffixes | {".cpp", ".cu", ".hip"}]
    included = {name for text in texts for name in INCLUDE.findall(text)}
    headers = {str(path.relative_to(CSRC)) for path in CSRC.rglob("*") if path.suffix in suffixes}
    assert included == headers


def test_kernels_include_no_torch() -> None:
    files = [path for group in TORCH_FREE for path in (CSRC / group).rglob("*") if path.is_file()]
    offenders = [str(path) for path in files if TORCH_HEADER.search(path.read_text())]
    assert len(files) > 10
    assert offenders == []


def test_torch_header_pattern_finds_torch_headers() -> None:
    assert TORCH_HEADER.search("#include <torch/csrc/stable/tensor.h>")
    assert TORCH_HEADER.search("# include <Python.h>")
    assert not TORCH_HEADER.search('#include "core/params.h"')


def test_ninja_knows_the_headers_of_every_object(wheel: Path) -> None:
    del wheel  # built before this looks
    ninja = shutil.which("ninja")
    if ninja is None:
        pytest.skip("ninja is not on the PATH")
    (folder,) = (ROOT / "build").glob(f"extension-{sys.implementation.cache_tag}")
    listing = subprocess.run([ninja, "-t", "deps"], cwd=folder, capture_output=True, text=True, check=True).stdout
    # An entry is "object: #deps N ..." and a line for each prerequisite.
    known = {}
    for entry in listing.split("\n\n"):
        if entry.strip():
            head, *prerequisites = entry.strip().splitlines()
            known[head.split(":")[0]] = {line.strip() for line in prerequisites}
    cpu_kernels = next(deps for name, deps in known.items() if name.endswith("cpu/isa_baseline.o"))
    assert {str(CSRC / "core" / "params.h"), str(CSRC / "cpu" / "rec_cpu.inl")} <= cpu_kernels
    for name, deps in known.items():
        if "/csrc/cuda/" in name:
            assert str(CSRC / "cuda" / "device.h") in deps


# ---- architectures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["GDN_CUDA_ARCHS", "GDN_HIP_ARCHS"])
def test_architectures_default_to_all(variable: str) -> None:
    known = SOURCES[variable.removeprefix("GDN_").lower()]
    assert architectures.requested(variable, known, None) == known
    assert architectures.requested(variable, known, "") == known


def test_architectures_are_narrowed_in_the_listed_order() -> None:
    cuda, hip = SOURCES["cuda_archs"], SOURCES["hip_archs"]
    assert architectures.requested("GDN_CUDA_ARCHS", cuda, "120;90") == ["90", "120"]
    assert architectures.requested("GDN_CUDA_ARCHS", cuda, "80, 120+PTX") == ["80", "120+PTX"]
    assert architectures.requested("GDN_HIP_ARCHS", hip, "gfx1201 gfx1030") == ["gfx1030", "gfx1201"]
    assert architectures.requested("GDN_HIP_ARCHS", hip, "none") == []


@pytest.mark.parametrize("value", ["91", "sm_90", "90;none", "90+PTX"])
def test_unknown_architecture_is_refused(value: str) -> None:
    wrong = next(arch for arch in value.split(";") if arch not in ("90", "120"))
    with pytest.raises(ValueError, match="GDN_CUDA_ARCHS") as error:
        architectures.requested("GDN_CUDA_ARCHS", ["90", "120", "120+PTX"], value)
    assert str(error.value) == (
        f"GDN_CUDA_ARCHS: unknown architecture '{wrong}'; expected 'none' or some of 90, 120, 120+PTX, separated by ';'"
    )


def test_setup_refuses_an_unknown_architecture() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        env={**os.environ, "GDN_CUDA_ARCHS": "91"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "ValueError: GDN_CUDA_ARCHS: unknown architecture '91'; expected 'none' or some of 75, 80" in done.stderr


def test_architecture_flags() -> None:
    assert cuda_toolkit.architecture_flags(["75", "120", "120+PTX"]) == [
        "-gencode=arch=compute_75,code=sm_75",
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]


def test_every_architecture_has_a_preset() -> None:
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    names = {preset["name"] for preset in presets}
    expected = {f"cuda-sm{arch}" for arch in SOURCES["cuda_archs"] if "+" not in arch}
    expected |= {f"hip-{arch}" for arch in SOURCES["hip_archs"]}
    assert {name for name in names if name.startswith(("cuda-sm", "hip-gfx"))} == expected


# ---- the CUDA toolkit ------------------------------------------------------------------------------------------------

NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 12.4, V12.4.131" ;;
  --list-gpu-code) echo sm_80; echo sm_90; echo sm_90a ;;
esac
"""


@pytest.fixture
def toolkit_home(tmp_path: Path) -> Path:
    """A folder that looks like a toolkit whose nvcc knows sm_80 and sm_90."""
    for name, text in {"bin/nvcc": NVCC, "include/cuda_runtime.h": "", "lib64/libcudart_static.a": ""}.items():
        path = tmp_path / "cuda" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path / "cuda"


def test_toolkit_is_the_one_that_cuda_home_names(toolkit_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit_home))
    toolkit = cuda_toolkit.find_toolkit()
    assert toolkit == cuda_toolkit.Toolkit(toolkit_home, toolkit_home / "lib64")
    assert toolkit.version() == "12.4"
    assert toolkit.architectures() == {"80", "90"}


@pytest.mark.parametrize("missing", ["bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"])
def test_half_a_toolkit_is_refused(toolkit_home: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (toolkit_home / missing).unlink()
    monkeypatch.setenv("CUDA_HOME", str(toolkit_home))
    with pytest.raises(RuntimeError, match=r"^CUDA_HOME must be a CUDA toolkit with bin/nvcc, include/cuda_runtime\.h"):
        cuda_toolkit.find_toolkit()


def test_nvcc_on_the_path_may_be_a_wrapper(toolkit_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "wrapper" / "bin" / "nvcc"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(NVCC)
    wrapper.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    found = cuda_toolkit.find_toolkit()
    assert found is None or found.home != wrapper.parents[1]
    monkeypatch.setenv("PATH", f"{toolkit_home / 'bin'}:{os.environ['PATH']}")
    assert cuda_toolkit.find_toolkit() == cuda_toolkit.Toolkit(toolkit_home, toolkit_home / "lib64")


def test_an_old_nvcc_narrows_the_default_but_not_the_users_list(toolkit_home: Path) -> None:
    toolkit = cuda_toolkit.Toolkit(toolkit_home, toolkit_home / "lib64")
    asked = ["80", "90", "120", "120+PTX"]
    assert cuda_toolkit.compilable_architectures(toolkit, asked, None) == ["80", "90"]
    with pytest.raises(RuntimeError) as error:
        cuda_toolkit.compilable_architectures(toolkit, ["90", "120"], "90;120")
    assert str(error.value) == (f"GDN_CUDA_ARCHS: nvcc 12.4 in {toolkit_home} cannot compile for 120; it knows 80, 90")


# ---- the build backend -----------------------------------------------------------------------------------------------


@pytest.fixture
def overlay(tmp_path: Path) -> str:
    """The packages of an isolated build environment: setuptools alone."""
    folder = tmp_path / "overlay"
    folder.mkdir()
    packages = Path(setuptools.__file__).parents[1]
    for name in ("setuptools", "_distutils_hack"):
        (folder / name).symlink_to(packages / name)
    return os.pathsep.join([str(folder), str(BACKEND)])


def test_isolated_build_uses_the_torch_of_the_target(overlay: str) -> None:
    # -S hides the environment's packages, as pip's overlay does.
    code = """if True:
        import importlib.util, strata_build
        assert importlib.util.find_spec("torch") is None
        print(strata_build.get_requires_for_build_wheel(), strata_build.get_requires_for_build_editable())
        strata_build.expose_torch()
        import torch
        print(torch.__version__)
    """
    assert run_python(code, "-S", PYTHONPATH=overlay) == f"[] []\n{torch.__version__}\n"


def test_build_without_a_torch_pins_one(overlay: str, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    code = "import strata_build; print(*strata_build.get_requires_for_build_wheel())"
    pinned = run_python(code, python=str(fresh / "bin" / "python"), PYTHONPATH=overlay).strip()
    assert pinned == "torch==2.13.0"
    assert pinned in (ROOT / "tools" / "constraints.txt").read_text().splitlines()
