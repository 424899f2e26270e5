"""The package's ops, from their checks to their launchers, on kernels that the runner executes.

Their tensors are CPU tensors: an RDNA card's memory is played by the CPU's.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import engine, toolchain
from .runner import SHARED_BYTES, Options, Runner

MULTIPROCESSORS = 4


@functools.cache
def _library() -> ctypes.CDLL:
    engine.library()
    path = str(toolchain.ops_library())
    torch.ops.load_library(path)
    loaded = ctypes.CDLL(path)
    loaded.rdna_ops_set_device.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int64]
    loaded.rdna_ops_push_override.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    loaded.rdna_ops_push_override.restype = ctypes.c_int64
    loaded.rdna_ops_pop_override.argtypes = [ctypes.c_int64]
    return loaded


class Ops:
    """The ops on one architecture: `Ops("gfx1201").gated_delta_rule(q, k, ...)`, inside `with ops.device():`."""

    def __init__(self, arch: str, options: Options | None = None) -> None:
        self.runner = Runner(toolchain.all_code_objects(arch), options)
        self._failure: BaseException | None = None
        self._launcher = engine.LAUNCHER(self._launch)

    def _launch(self, kernel: bytes, grid: Any, block: Any, arguments: Any, shared_bytes: int) -> int:
        # An exception cannot pass through C++: it is kept, and the launch is refused.
        try:
            self.runner.launch_pointers(
                kernel.decode(), tuple(grid[:3]), tuple(block[:3]), arguments, dynamic_lds=shared_bytes
            )
        except BaseException as failure:
            self._failure = failure
            engine.library().rdna_refuse(str(failure).encode())
            return 1
        return 0

    @contextmanager
    def device(self, **switches: int | None) -> Iterator[None]:
        """Tensors that are made inside are the device's; launches go to this runner.

        Args:
            switches: of the registry, such as GDN_STEP=0. Without any the architecture's own rows and defaults decide.
        """
        library = _library()
        engine.set_launcher(self._launcher)
        engine.library().rdna_set_device(self.runner.arch.encode(), MULTIPROCESSORS, SHARED_BYTES)
        library.rdna_ops_set_device(self.runner.arch.encode(), MULTIPROCESSORS, SHARED_BYTES)
        pushed = [
            library.rdna_ops_push_override(name.encode(), None if value is None else str(value).encode())
            for name, value in switches.items()
        ]
        library.rdna_ops_track_memory(1)
        try:
            yield
        finally:
            library.rdna_ops_track_memory(0)
            for id in reversed(pushed):
                library.rdna_ops_pop_override(id)

    def __getattr__(self, op: str) -> Any:
        if op.startswith("_"):
            raise AttributeError(op)
        _library()
        function = getattr(torch.ops.strata_gdn_rdna, op)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._failure = None
            try:
                return function(*args, **kwargs)
            except RuntimeError:
                if self._failure is not None:
                    raise self._failure from None
                raise

        return call
