"""The C++ library in engine/, as Python sees it (c_api.h)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

from . import toolchain

CLASSES = 13
ULPS = {"exact": 0, "up": 1, "down": 2, "either": 3}
SCRATCH_DESCRIPTION = 0x5C7A7C40  # state.h


class Fault(RuntimeError):
    """The program that was run did what it must not, or the engine does not know an instruction of it."""


class LaunchDescription(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("private_bytes", ctypes.c_uint32),
        ("user_register_count", ctypes.c_uint32),
        ("user_registers", ctypes.c_uint32 * 32),
        ("group_id_in_register", ctypes.c_int32 * 3),
        ("group_ids_in_ttmp", ctypes.c_int32),
        ("wave_offset_register", ctypes.c_int32),
        ("packed_ids", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("ulp", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
    )


LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint32,
)


@functools.cache
def library() -> ctypes.CDLL:
    # The ops' library, which links to this one, has to find the same copy.
    loaded = ctypes.CDLL(str(toolchain.engine_library()), mode=ctypes.RTLD_GLOBAL)
    loaded.rdna_error.restype = ctypes.c_char_p
    loaded.rdna_class_name.restype = ctypes.c_char_p
    loaded.rdna_program_delete.argtypes = [ctypes.c_void_p]
    loaded.rdna_program_new.argtypes = [
        ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    ]  # fmt: skip
    loaded.rdna_memory_add.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
    loaded.rdna_memory_remove.argtypes = [ctypes.c_uint64]
    loaded.rdna_launch.argtypes = [
        ctypes.c_void_p, ctypes.POINTER(LaunchDescription), ctypes.POINTER(ctypes.c_uint64)
    ]  # fmt: skip
    loaded.rdna_refuse.argtypes = [ctypes.c_char_p]
    loaded.rdna_set_launcher.argtypes = [LAUNCHER]
    loaded.rdna_set_device.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64]
    return loaded


@functools.cache
def class_names() -> tuple[str, ...]:
    return tuple(library().rdna_class_name(i).decode() for i in range(CLASSES))


def _checked(status: int) -> None:
    if status != 0:
        raise Fault(library().rdna_error().decode())


@dataclass(frozen=True)
class Memory:
    """A range of host memory that kernels may touch while it is registered."""

    begin: int
    bytes: int
    name: str
    writable: bool = True

    def __enter__(self) -> Memory:
        library().rdna_memory_add(self.begin, self.bytes, self.writable, self.name.encode())
        return self

    def __exit__(self, *_: object) -> None:
        library().rdna_memory_remove(self.begin)


class Program:
    """A kernel's instructions, decoded."""

    def __init__(self, name: str, generation: int, base: int, disassembly: str) -> None:
        self._handle = ctypes.c_void_p()
        text = disassembly.encode()
        # The views into the text are gone when this returns: the engine has copied what it keeps.
        _checked(
            library().rdna_program_new(name.encode(), generation, base, text, len(text), ctypes.byref(self._handle))
        )

    def __del__(self) -> None:
        if self._handle:
            library().rdna_program_delete(self._handle)

    def launch(self, description: LaunchDescription) -> dict[str, int]:
        """Executed instructions of all waves by class."""
        counts = (ctypes.c_uint64 * CLASSES)()
        _checked(library().rdna_launch(self._handle, ctypes.byref(description), counts))
        return dict(zip(class_names(), counts, strict=True))


def set_launcher(launcher: Callable[..., int]) -> None:
    """Where the HIP runtime takes launches. The caller keeps the function alive."""
    library().rdna_set_launcher(launcher)
