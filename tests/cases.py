"""Random inputs and a table of calls that covers every op: the package's own, and what only tests use."""

from __future__ import annotations

from strata_gdn.parity_calls import CALLS, Call, call, window_choice
from strata_gdn.parity_inputs import (
    BF16,
    DTYPES,
    F16,
    F32,
    Heads,
    convolution,
    cu_seqlens,
    index,
    layer,
    log_decay,
    logs,
    packed,
    padded_path,
    path_to,
    recurrence,
    split,
    state_pool,
    tree,
    window_pool,
)

__all__ = [
    "BF16", "CALLS", "CUT_TOKENS", "DTYPES", "F16", "F32", "ISAS", "ODD_TOKENS", "Call", "Heads", "call",
    "convolution", "cu_seqlens", "index", "layer", "log_decay", "logs", "packed", "padded_path", "path_to",
    "recurrence", "split", "state_pool", "tree", "window_choice", "window_pool",
]  # fmt: skip

ISAS = ["baseline", "avx2", "avx512"]

# Lengths around the sizes of chunks, stages and warps.
ODD_TOKENS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1000]
CUT_TOKENS = [1, 2, 3, 5, 8, 17, 64, 65, 257, 1000]
