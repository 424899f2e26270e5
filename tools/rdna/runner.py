"""Launches kernels of code objects on the CPU, on numpy arrays and torch tensors."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import engine
from .code_object import Argument, CodeObject, Kernel

Size = tuple[int, int, int]

SHARED_BYTES = 64 * 1024  # of LDS that a work-group can have


@dataclass(frozen=True)
class Options:
    """How a launch is run.

    Args:
        seed: of the order of work-groups, and of the waves in each.
        threads: that work-groups are spread over; 0: one a core.
        ulp: "exact", or the processor's rcp, rsq, sqrt, exp and log are a unit in the last place "up", "down" or
            "either".
    """

    seed: int = 0
    threads: int = 0
    ulp: str = "exact"


@dataclass(frozen=True)
class Launched:
    """A launch that has run.

    Attributes:
        counts: executed wave instructions by class.
    """

    kernel: Kernel
    grid: Size
    block: Size
    shared_bytes: int
    counts: Counter[str]


class Runner:
    """The kernels of code objects of one architecture.

    Attributes:
        options: of the launches to come.
        counts: executed wave instructions of all launches so far, by class.
        launches: of each kernel.
        listener: gets every launch to come, where there is one.
    """

    def __init__(self, code: Iterable[Path], options: Options | None = None) -> None:
        self.options = options or Options()
        self.counts: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.listener: Callable[[Launched], None] | None = None
        self._objects = [CodeObject(path) for path in code]
        self.kernels = {name: kernel for o in self._objects for name, kernel in o.kernels.items()}
        arches = {kernel.arch for kernel in self.kernels.values()}
        if len(arches) != 1:
            raise ValueError(f"code objects of one architecture are expected; got {sorted(arches)}")
        (self.arch,) = arches
        self.generation = int(self.arch.removeprefix("gfx")[:-2])
        self._programs: dict[str, engine.Program] = {}

    def launch(self, name: str, grid: Size, block: Size, *arguments: Any, dynamic_lds: int = 0) -> dict[str, int]:
        """Runs a kernel to its end.

        Args:
            arguments: an array or tensor a pointer: only its own memory may be touched; a number or bytes a value.

        Returns:
            Executed wave instructions by class.
        """
        kernel = self._kernel(name)
        explicit = [a for a in kernel.arguments if not a.hidden]
        if len(arguments) != len(explicit):
            raise ValueError(f"{name}: {len(explicit)} arguments are expected; got {len(arguments)}")
        with ExitStack() as registered:
            values = []
            for i, (argument, value) in enumerate(zip(explicit, arguments, strict=True)):
                if isinstance(value, np.ndarray) or hasattr(value, "data_ptr"):
                    begin, size = _memory_of(value)
                    if size:
                        registered.enter_context(engine.Memory(begin, size, f"argument {i}"))
                    value = begin
                values.append(_packed(value, argument.size))
            return self.launch_packed(kernel, grid, block, values, dynamic_lds)

    def launch_pointers(
        self, name: str, grid: Size, block: Size, pointers: Any, dynamic_lds: int = 0
    ) -> dict[str, int]:
        """The same with the address of each argument, as a HIP runtime gets them."""
        kernel = self._kernel(name)
        explicit = [a for a in kernel.arguments if not a.hidden]
        values = [ctypes.string_at(pointers[i], a.size) for i, a in enumerate(explicit)]
        return self.launch_packed(kernel, grid, block, values, dynamic_lds)

    def launch_packed(
        self, kernel: Kernel, grid: Size, block: Size, values: Sequence[bytes], dynamic_lds: int
    ) -> dict[str, int]:
        shared = kernel.shared_bytes + dynamic_lds
        if shared > SHARED_BYTES:
            raise ValueError(f"{kernel.name}: {shared} bytes of LDS a work-group; there are {SHARED_BYTES}")
        packed = ctypes.create_string_buffer(max(kernel.argument_bytes, 1))
        address = ctypes.addressof(packed)
        explicit = iter(values)
        for a in kernel.arguments:
            data = _hidden(a, grid, block, dynamic_lds) if a.hidden else next(explicit)
            ctypes.memmove(address + a.offset, data, a.size)
        description = engine.LaunchDescription(
            grid=grid,
            block=block,
            shared_bytes=shared,
            private_bytes=kernel.private_bytes,
            group_id_in_register=(0, 0, 0) if self.generation >= 12 else kernel.group_ids,
            group_ids_in_ttmp=self.generation >= 12,
            wave_offset_register=self.generation == 10 and kernel.private_segment,
            packed_ids=self.generation >= 11,
            threads=self.options.threads or os.cpu_count() or 1,
            ulp=engine.ULPS[self.options.ulp],
            seed=self.options.seed,
        )
        self._fill_registers(description, kernel, address)
        with ExitStack() as registered:
            registered.enter_context(engine.Memory(address, len(packed), "the kernel's arguments", writable=False))
            for o in self._objects:
                registered.enter_context(engine.Memory(o.base, o.bytes, f"{o.path.name}", writable=False))
            counts = self._program(kernel).launch(description)
        self.counts.update(counts)
        self.launches[kernel.name] += 1
        if self.listener is not None:
            self.listener(Launched(kernel, grid, block, shared, Counter(counts)))
        return counts

    def _kernel(self, name: str) -> Kernel:
        if name in self.kernels:
            return self.kernels[name]
        raise KeyError(f"no kernel {name} for {self.arch}; there are {', '.join(sorted(self.kernels))}")

    def _program(self, kernel: Kernel) -> engine.Program:
        if kernel.name not in self._programs:
            self._programs[kernel.name] = self._decoded(kernel, kernel.disassembly())
        return self._programs[kernel.name]

    def _decoded(self, kernel: Kernel, disassembly: str) -> engine.Program:
        return engine.Program(kernel.name, self.generation, kernel.base, disassembly)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        """Runs other instructions in a kernel's place: faults planted in its disassembly."""
        kernel = self._kernel(name)
        self._programs[name] = self._decoded(kernel, change(kernel.disassembly()))

    @staticmethod
    def _fill_registers(description: engine.LaunchDescription, kernel: Kernel, arguments: int) -> None:
        values = {
            "private_segment_buffer": (engine.SCRATCH_DESCRIPTION, 0, 0, 0),
            "flat_scratch_init": (0, 0),
            "kernarg_segment_ptr": (arguments & 0xFFFFFFFF, arguments >> 32),
        }
        registers: list[int] = []
        for name in kernel.user_registers:
            if name not in values:
                raise ValueError(f"{kernel.name} wants its {name}, which the runner does not have")
            registers += values[name]
        description.user_register_count = kernel.user_register_count
        description.user_registers[: len(registers)] = registers


def _memory_of(value: Any) -> tuple[int, int]:
    """Where an array's or a tensor's elements are, and from the first to the last how many bytes."""
    if isinstance(value, np.ndarray):
        low, high = np.lib.array_utils.byte_bounds(value)
        return low, high - low if value.size else 0
    if value.device.type != "cpu":
        raise ValueError(f"a tensor on the CPU is expected; got one on {value.device}")
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr(), (last + 1) * value.element_size() if value.numel() else 0


def _packed(value: Any, size: int) -> bytes:
    """A value as it lies in memory."""
    if isinstance(value, (bytes, np.generic)):
        data = bytes(value) if isinstance(value, bytes) else value.tobytes()
        if len(data) != size:
            raise ValueError(f"an argument of {size} bytes is expected; got {len(data)}")
        return data
    if isinstance(value, float):
        return struct.pack({4: "<f", 8: "<d"}[size], value)
    return int(value).to_bytes(size, "little", signed=int(value) < 0)


def _hidden(argument: Argument, grid: Size, block: Size, dynamic_lds: int) -> bytes:
    values = {f"hidden_block_count_{axis}": grid[i] for i, axis in enumerate("xyz")}
    values |= {f"hidden_group_size_{axis}": block[i] for i, axis in enumerate("xyz")}
    values |= {"hidden_grid_dims": 3, "hidden_dynamic_lds_size": dynamic_lds}
    return values.get(argument.kind, 0).to_bytes(argument.size, "little")
