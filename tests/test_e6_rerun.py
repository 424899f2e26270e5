"""E6: 200 reruns give the same bits, with every scratch buffer filled with something else before each.

Outputs come from torch, which fills them with NaN in the tests' deterministic mode. The CPU kernels' own scratch comes
from malloc, which fills it with a byte of our choice.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from cases import CALLS, call
from compare import assert_same_bits

RERUNS = 200
M_PERTURB = -6  # mallopt's name for it in glibc


@pytest.fixture
def fill_malloc() -> Iterator[ctypes._CFuncPtr]:
    """A function of a byte, with which newly allocated memory is filled from then on."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        pytest.skip("the C library has no mallopt")

    def fill(byte: int) -> None:
        assert libc.mallopt(M_PERTURB, byte ^ 0xFF) == 1  # glibc takes the complement

    yield fill
    assert libc.mallopt(M_PERTURB, 0) == 1


def test_malloc_is_filled(fill_malloc) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for byte in (0x7F, 0x3E):
        fill_malloc(byte)
        block = libc.malloc(40_000)
        content = ctypes.string_at(block, 40_000)
        libc.free(block)
        assert content == bytes([byte]) * 40_000


def test_outputs_are_filled_with_nan() -> None:
    assert torch.empty(9).isnan().all()
    assert torch.ones(2, dtype=torch.bfloat16).new_empty(9).isnan().all()


@pytest.mark.parametrize("name", CALLS)
def test_reruns(name: str, fill_malloc, threads: None) -> None:
    made = call(name)
    first = made.copy()
    expected = [*first.run(), *(buffer for _, buffer in first.buffers())]
    for rerun in range(RERUNS):
        torch.set_num_threads(1 + rerun % 2)
        fill_malloc(0x7F - rerun % 0x7F)  # as floats from 3.4e38 (float16: NaN) down to 2.4e-38
        again = made.copy()
        actual = [*again.run(), *(buffer for _, buffer in again.buffers())]
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same_bits(a, e, f"{name}, rerun {rerun}: {i}")
