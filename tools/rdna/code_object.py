"""What the compiler made: an ELF file with kernels, their descriptors and their metadata."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile

from . import toolchain

PAGE_BYTES = 4096

# Registers that a kernel finds filled, in the order of their bits in its descriptor.
USER_REGISTERS = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)


@dataclass(frozen=True)
class Argument:
    kind: str  # "by_value", "global_buffer", "hidden_block_count_x", ...
    offset: int
    size: int

    @property
    def hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True)
class Kernel:
    """What a launch has to know. Sizes in bytes."""

    name: str
    code: Path
    arch: str
    arguments: tuple[Argument, ...]
    argument_bytes: int
    shared_bytes: int
    private_bytes: int
    user_registers: tuple[str, ...]  # names in USER_REGISTERS
    user_register_count: int  # with those behind them that nobody fills (gfx11 starts its block numbers late)
    group_ids: tuple[bool, bool, bool]  # in registers of their own
    private_segment: bool
    metadata: dict[str, Any]
    base: int  # where the file's address 0 is

    def disassembly(self) -> str:
        return toolchain.disassembly(self.code, self.name)


class CodeObject:
    """The file's segments in memory, and its kernels by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            elf = ELFFile(file)
            segments = [(s["p_vaddr"], s["p_memsz"], s.data()) for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
            self.bytes = max(address + size for address, size, _ in segments)
            self._memory = ctypes.create_string_buffer(self.bytes + PAGE_BYTES)
            self.base = -(-ctypes.addressof(self._memory) // PAGE_BYTES) * PAGE_BYTES
            for address, _, data in segments:
                ctypes.memmove(self.base + address, data, len(data))
            symbols = {s.name: s["st_value"] for s in elf.get_section_by_name(".symtab").iter_symbols()}
            metadata = self._metadata(elf)
        arch = metadata["amdhsa.target"].split("-")[-1].split(":")[0]
        self.kernels = {k[".name"]: self._kernel(k, arch, symbols[k[".symbol"]]) for k in metadata["amdhsa.kernels"]}

    @staticmethod
    def _metadata(elf: ELFFile) -> dict[str, Any]:
        for section in elf.iter_sections():
            if section["sh_type"] != "SHT_NOTE":
                continue
            for note in section.iter_notes():
                if note["n_name"] == "AMDGPU":
                    return msgpack.unpackb(note["n_descdata"])
        raise ValueError("the file has no AMDGPU metadata")

    def _kernel(self, metadata: dict[str, Any], arch: str, descriptor: int) -> Kernel:
        raw = ctypes.string_at(self.base + descriptor, 64)
        shared, private, argument_bytes = struct.unpack_from("<III", raw, 0)
        (resources,) = struct.unpack_from("<I", raw, 52)
        properties, preload = struct.unpack_from("<HH", raw, 56)
        if preload:
            raise ValueError(f"{metadata['.name']}: arguments preloaded into registers are not known")
        wave32 = 1 << 10
        if not properties & wave32:
            raise ValueError(f"{metadata['.name']}: compiled for waves of 64 lanes; 32 are expected")
        filled = [(name, size) for bit, (name, size) in enumerate(USER_REGISTERS) if properties >> bit & 1]
        promised = resources >> 1 & 31
        if sum(size for _, size in filled) > promised:
            raise ValueError(f"{metadata['.name']}: {promised} user registers are expected; filled are {filled}")
        return Kernel(
            name=metadata[".name"],
            code=self.path,
            arch=arch,
            arguments=tuple(Argument(a[".value_kind"], a[".offset"], a[".size"]) for a in metadata.get(".args", ())),
            argument_bytes=argument_bytes,
            shared_bytes=shared,
            private_bytes=private,
            user_registers=tuple(name for name, _ in filled),
            user_register_count=promised,
            group_ids=tuple(bool(resources >> bit & 1) for bit in (7, 8, 9)),
            private_segment=bool(resources & 1),
            metadata=metadata,
            base=self.base,
        )
