"""The torch-free C++ tests (tests/cpp) under CMake: here, on emulated aarch64, on a GPU if there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.xdist_group("cpp")


def run_preset(preset: str, *needed: str) -> str:
    """Configures, builds and tests a preset of CMakePresets.json; its output."""
    for program in ("cmake", "ninja", *needed):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on the PATH")
    done = subprocess.run(
        ["cmake", "--workflow", "--fresh", "--preset", preset],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_on_this_processor() -> None:
    assert "100% tests passed" in run_preset("cpu", "c++")


def test_on_aarch64() -> None:
    assert "100% tests passed" in run_preset("cpu-aarch64", "aarch64-linux-gnu-g++", "qemu-aarch64")


def test_on_the_gpu() -> None:
    if not torch.cuda.is_available() or torch.version.hip:
        pytest.skip("no CUDA GPU")
    output = run_preset("cuda-native", "nvcc")
    assert "100% tests passed" in output
    assert "Skipped" not in output
