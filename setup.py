"""Builds strata_gdn/_C.abi3.so: the torch binding, the CPU kernels and, given a compiler for
the GPUs of the torch that it builds against, the CUDA or the ROCm kernels.

csrc/sources.json is the one list of sources and architectures; CMakeLists.txt reads the same file.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from setuptools import setup
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools" / "build_backend"))

import architectures  # noqa: E402
import cuda_toolkit  # noqa: E402
import rocm_toolkit  # noqa: E402

SOURCES = json.loads((ROOT / "csrc" / "sources.json").read_text())

PYTHON_ABI = "0x030a0000"  # CPython 3.10
TORCH_ABI = "0x020a000000000000"  # torch 2.10

# The exact lane fixes every rounding: no contraction that the source does not spell out. No one reads errno or the
# floating-point exception flags, and keeping them would keep sqrt and the selects out of vector registers.
NUMERICS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# A message or an assertion must not carry the folder of whoever built the wheel.
PATHS = [f"-ffile-prefix-map={ROOT}/=", *(f"-ffile-prefix-map={path}/=" for path in cpp_extension.include_paths())]
CXX_FLAGS = [
    "-O3",
    "-g0",
    "-std=c++17",
    *NUMERICS,
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    *PATHS,
    f"-DTORCH_TARGET_VERSION={TORCH_ABI}",
    *(f"-isystem{path}" for path in cpp_extension.include_paths()),
]
NVCC_FLAGS = [
    *cuda_toolkit.MACHINE_CODE_FLAGS,
    "-Xfatbin=-compress-all",
    *(f"-Xcompiler={flag}" for flag in [*NUMERICS, "-fvisibility=hidden", "-Wall", "-Wextra", *PATHS]),
]
# hipcc is clang, which takes the host's flags as they are; a .cu file is HIP to it. Nothing is hipified (docs/rocm.md).
HIPCC_FLAGS = [
    *rocm_toolkit.MACHINE_CODE_FLAGS,
    *NUMERICS,
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    *PATHS,
]
# The archives' symbols stay inside: the static CUDA runtime must not meet the shared one that torch loads.
LINK_FLAGS = ["-Wl,--exclude-libs,ALL"]


@dataclass
class DeviceBuild:
    """What the kernels of a vendor's GPUs add to the extension; nothing for a CPU build."""

    sources: list[str] = field(default_factory=list)
    cxx_flags: list[str] = field(default_factory=list)
    device_flags: list[str] = field(default_factory=list)
    library_dirs: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    toolkit: cuda_toolkit.Toolkit | rocm_toolkit.Toolkit | None = None


def device_build(vendor: ModuleType, flags: list[str], *home: str | None) -> DeviceBuild:
    """A vendor's part, by its module; empty where there is no compiler for it (in `home`) or its VARIABLE is "none"."""
    value = os.environ.get(vendor.VARIABLE)
    asked = architectures.requested(vendor.VARIABLE, SOURCES[f"{vendor.KEY}_archs"], value)
    toolkit = vendor.find_toolkit(*home) if asked else None
    if toolkit is None:
        return DeviceBuild()
    archs = vendor.compilable_architectures(toolkit, asked, value)
    print(f"strata_gdn: building {vendor.NAME} kernels for {', '.join(archs)} with {toolkit.home}")
    macro = vendor.KEY.upper()
    return DeviceBuild(
        sources=[*SOURCES["gpu"], *SOURCES[vendor.KEY]],
        # The binding's way to know which kernels there are.
        cxx_flags=["-DGDN_WITH_GPU", f"-DGDN_WITH_{macro}", f'-DGDN_{macro}_ARCH_LIST="{";".join(archs)}"'],
        device_flags=[*flags, *vendor.architecture_flags(archs)],
        library_dirs=[str(toolkit.library)],
        libraries=vendor.LIBRARIES,
        toolkit=toolkit,
    )


if torch.version.hip:
    DEVICE = device_build(rocm_toolkit, HIPCC_FLAGS, cpp_extension.ROCM_HOME)
else:
    DEVICE = device_build(cuda_toolkit, NVCC_FLAGS)
if DEVICE.toolkit is None:
    print("strata_gdn: building for the CPU only")


class BuildExtension(cpp_extension.BuildExtension):
    """torch's, with this build's toolkit and a build folder that outlives an editable install."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # An editable install would compile in a throw-away folder: ninja recompiles only what changed if it is kept.
        self.build_temp = str(ROOT / "build" / f"extension-{sys.implementation.cache_tag}")

    def build_extensions(self) -> None:
        cpp_extension.min_supported_cpython = PYTHON_ABI
        if DEVICE.toolkit:
            # Read where a torch has CUDA, as a ROCm build has not: it finds its hipcc itself.
            cpp_extension.CUDA_HOME = str(DEVICE.toolkit.home)
            # torch without CUDA has no version here, and no compiler then tells ninja of the headers of a kernel.
            torch.version.cuda = torch.version.cuda or DEVICE.toolkit.version()
        super().build_extensions()


setup(
    ext_modules=[
        cpp_extension.CppExtension(
            "strata_gdn._C",
            [f"csrc/{name}" for name in [*SOURCES["bind"], *SOURCES["core"], *SOURCES["cpu"], *DEVICE.sources]],
            include_dirs=[str(ROOT / "csrc")],
            library_dirs=DEVICE.library_dirs,
            libraries=DEVICE.libraries,
            extra_compile_args={"cxx": [*CXX_FLAGS, *DEVICE.cxx_flags], "nvcc": DEVICE.device_flags},
            extra_link_args=LINK_FLAGS,
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
