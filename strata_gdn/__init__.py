"""Gated DeltaNet kernels for PyTorch: one contract, the same bits on every device.

The ops are functions of this package (`strata_gdn.gated_delta_rule`, ...) and of `torch.ops.strata_gdn`. `registry`
says which kernel serves a call and why, `reference` is the mathematics in plain float64 torch,
`integrations.transformers` puts the ops into a Transformers model.
"""

from importlib.metadata import version as _distribution_version
from pathlib import Path as _Path

import torch as _torch

try:
    from . import _C  # noqa: F401  defines torch.ops.strata_gdn
except ImportError as error:
    _folder = _Path(__file__).resolve().parent
    if any(_folder.glob("_C.*")):
        _why = (
            f"it does not load with torch {_torch.__version__}: {error}. It needs torch 2.10 or newer; "
            "rebuild it in this environment with `pip install --force-reinstall --no-deps .`"
        )
    elif (_folder.parent / "csrc").is_dir():
        _why = (
            f"{_folder} is the source tree, where none was built, and it stands before the installed package on "
            "sys.path. Run Python from another folder, or build in place with `pip install -e .`"
        )
    else:
        _why = "the installation is incomplete; install strata_gdn again"
    raise ImportError(f"strata_gdn: the compiled extension strata_gdn._C cannot be imported: {_why}") from error

from . import ops, reference, registry
from .ops import *  # noqa: F403  the list is ops.__all__

__version__ = _distribution_version("strata_gdn")
__all__ = [*ops.__all__, "__version__", "ops", "reference", "registry"]
