"""PEP 517 backend: setuptools, building against the torch of the environment that the package is installed into.

A torch in ``build-system.requires`` would make every isolated build download one, perhaps another than the user has.
An isolated build hides the target's packages but runs the target's interpreter (pip puts an overlay on ``PYTHONPATH``),
so a clean run of that interpreter still sees them. Where the interpreter is a fresh one (``python -m build``) there is
no torch to see, and ``FALLBACK`` becomes a build requirement.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta

FALLBACK = "torch==2.13.0"
ROOT = Path(__file__).resolve().parents[2]

_PROBE = """
import importlib.util, json, sys
print(json.dumps(sys.path if importlib.util.find_spec("torch") else []))
"""

Settings = dict[str, Any] | None


@functools.cache
def target_path() -> tuple[str, ...]:
    """``sys.path`` of the target environment; empty where it has no torch.

    Raises:
        subprocess.CalledProcessError: the target's interpreter does not run.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env=environment,
        cwd=sys.prefix,  # -c puts the working folder on sys.path: not one that may hold a folder named torch
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return tuple(entry for entry in json.loads(probe.stdout) if entry)


def requirements() -> list[str]:
    """What the build needs beyond ``build-system.requires``: a torch, unless there is one to build against."""
    found = importlib.util.find_spec("torch") is not None or target_path()
    return [] if found else [FALLBACK]


def expose_torch() -> None:
    """Makes the target's torch importable here. It comes last: setuptools and ninja stay those of the build."""
    if importlib.util.find_spec("torch") is None:
        sys.path.extend(entry for entry in target_path() if entry not in sys.path)
        importlib.invalidate_caches()


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return requirements()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return requirements()


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return requirements()


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    expose_torch()
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    expose_torch()
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    expose_torch()
    # setuptools packs whatever lies in build/lib*, modules deleted since the last build included.
    for stale in (ROOT / "build").glob("lib*"):
        shutil.rmtree(stale)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    expose_torch()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    expose_torch()
    return build_meta.build_sdist(sdist_directory, config_settings)
