"""What most tests call the ops with: the package's random inputs and its table of calls that covers every op."""

from __future__ import annotations

from strata_gdn.parity.call import Call
from strata_gdn.parity.calls import CALLS, call, window_choice
from strata_gdn.parity.inputs import (
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
from strata_gdn.parity.kernels import ISAS

# Lengths around the sizes of chunks, stages and warps.
ODD_TOKENS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1000]
CUT_TOKENS = [1, 2, 3, 5, 8, 17, 64, 65, 257, 1000]
