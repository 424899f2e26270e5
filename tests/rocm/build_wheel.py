"""Builds the wheel as `pip install .` does where torch is a ROCm build.

python build_wheel.py FOLDER      in the repository's root; ROCM_HOME, CXX and PATH are the caller's
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

# Before torch.utils.cpp_extension is imported: it looks for ROCm then.
torch.version.hip, torch.version.cuda = "7.0.51831", None
torch.cuda._is_compiled = lambda: True

sys.path.insert(0, str(Path.cwd() / "tools" / "build_backend"))

import strata_build  # noqa: E402

strata_build.build_wheel(sys.argv[1])
