"""What every test gets: a random seed of its own, and uninitialised tensors (the extension's too) full of NaN."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import pytest
import torch

from strata_gdn.parity.check import poisoned_memory

# Deterministic mode on a GPU asks cuBLAS for this, before it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="other random inputs: each test's seed is this plus its own")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')} (--seed), torch threads: {torch.get_num_threads()}"


@pytest.fixture(autouse=True)
def _random_inputs_and_poisoned_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()) + request.config.getoption("seed"))
    with poisoned_memory():
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads may be changed."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
