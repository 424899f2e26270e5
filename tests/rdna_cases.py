"""What the tests of the RDNA runner share: where it is, and what is skipped where its compilers are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from rdna import toolchain  # noqa: E402

ARCHES = toolchain.ARCHES
WITH_MATRICES = [arch for arch in ARCHES if not arch.startswith("gfx10")]

needs_compilers = pytest.mark.skipif(bool(toolchain.missing()), reason=f"not installed: {toolchain.missing()}")

KERNELS = Path(__file__).resolve().parent / "rdna" / "kernels.hip"


def on(arch: str, *more: object) -> object:
    """A parameter; what is compiled for an architecture is run by one worker."""
    return pytest.param(arch, *more, marks=pytest.mark.xdist_group(f"rdna_{arch}"))


each_arch = pytest.mark.parametrize("arch", [on(arch) for arch in ARCHES])
