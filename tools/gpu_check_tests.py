"""Runs those of the tests that need a GPU, and no others: the rest have passed where GPU time costs nothing.

A test says so by `skipif(..., reason="needs a GPU")`. Arguments go to pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

NEEDS_GPU = "needs a GPU"
ROOT = Path(__file__).resolve().parent.parent


class OnlyGpuTests:
    """A pytest plugin."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if not needs_gpu(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if needs_gpu(item)]


def needs_gpu(item: pytest.Item) -> bool:
    return any(mark.kwargs.get("reason") == NEEDS_GPU for mark in item.iter_markers("skipif"))


def files() -> list[str]:
    """The files that have such tests: the others' imports may not even be installed."""
    return [str(file) for file in sorted((ROOT / "tests").glob("test_*.py")) if NEEDS_GPU in file.read_text()]


if __name__ == "__main__":
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    sys.exit(pytest.main([*options, *sys.argv[1:], *files()], plugins=[OnlyGpuTests()]))
