"""A kernel's resources, read from its PTX and from ptxas's report."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ENTRY = re.compile(r"^(?:\.visible |\.weak )?\.entry (\w+)\(", re.MULTILINE)
_BLOCK = re.compile(r"^\.(?:max|req)ntid (\d+)(?:, (\d+))?(?:, (\d+))?", re.MULTILINE)
_PROMISED_BLOCKS = re.compile(r"^\.minnctapersm (\d+)", re.MULTILINE)
_DYNAMIC_ARRAY = re.compile(r"^\.extern \.shared .*\b(\w+)\[\];", re.MULTILINE)
_REPORT = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'.*\n"
    r".*Function properties for (?P=symbol)\n"
    r"\s*(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers(?P<rest>.*)"
)


@dataclass(frozen=True)
class Kernel:
    """A kernel instance on an architecture."""

    source: str  # relative to csrc/
    name: str  # "rec_lanes_kernel<128,3,16,bf16>"
    arch: str  # "90"
    registers: int  # of a thread
    threads: int | None  # of a block, by the launch bounds; None: it has none
    promised_blocks: int  # of a multiprocessor, by the launch bounds; 1 where they do not say
    static_bytes: int  # shared memory of a block
    dynamic_bytes: int  # the same, asked for at the launch
    stack_bytes: int  # local memory of a thread: spilled registers, arrays indexed at run time, what it calls
    spill_bytes: int  # of spill stores and loads, as they stand in the program
    barriers: int

    @property
    def shared_bytes(self) -> int:
        return self.static_bytes + self.dynamic_bytes


def demangled(symbols: Sequence[str]) -> list[str]:
    """C++ signatures; those of an unnamed namespace look as if they stood in the namespace around it."""
    done = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    return done.stdout.replace("(anonymous namespace)::", "").splitlines()


def template_name(signature: str) -> tuple[str, str]:
    """ "gdn::gpu::x_kernel", "<gdn::gpu::XTraits<128, gdn::bf16> >" of a demangled kernel."""
    found = re.fullmatch(r"(?:void )?([\w:]+)(<.*>)?\(.*\)", signature)
    if found is None:
        raise ValueError(f"not the signature of a kernel: {signature}")
    return found[1], found[2] or ""


def short_names(signatures: Sequence[str]) -> list[str]:
    """ "x_kernel<128,bf16>": no namespaces, and a traits template's arguments instead of itself unless two names would
    then be the same.
    """
    plain = [
        re.sub(r"\w+::", "", "".join(template_name(signature))).replace(", ", ",").replace(" >", ">")
        for signature in signatures
    ]
    short = [re.sub(r"<\w+Traits<(.*)>>$", r"<\1>", name) for name in plain]
    return [name if short.count(name) == 1 else long for name, long in zip(short, plain, strict=True)]


def read_kernels(
    source: str, arch: str, ptx: str, report: str, shared_bytes: Callable[[list[str]], list[int]]
) -> list[Kernel]:
    """The kernels of a compiled source.

    Args:
        source, arch: where they are from.
        ptx: the PTX text: launch bounds and who uses dynamic shared memory.
        report: what ptxas prints with ``-v``.
        shared_bytes: the dynamic shared memory of those kernels, given as demangled signatures.

    Raises:
        RuntimeError: the report lacks a kernel of the PTX.
    """
    starts = list(_ENTRY.finditer(ptx))
    texts = {
        start[1]: ptx[start.start() : end.start() if end else len(ptx)]
        for start, end in itertools.zip_longest(starts, starts[1:])
    }
    reports = {found["symbol"]: found for found in _REPORT.finditer(report)}
    missing = texts.keys() - reports.keys()
    if missing:
        raise RuntimeError(f"{source} for sm_{arch}: ptxas reports nothing of {', '.join(sorted(missing))}:\n{report}")
    signatures = demangled(list(texts))
    arrays = _DYNAMIC_ARRAY.findall(ptx)
    dynamic = [
        signature
        for signature, text in zip(signatures, texts.values(), strict=True)
        if any(re.search(rf"\b{array}\b", text) for array in arrays)
    ]
    dynamic_bytes = dict(zip(dynamic, shared_bytes(dynamic), strict=True))
    return [
        _kernel(source, name, arch, text, reports[symbol], dynamic_bytes.get(signature, 0))
        for (symbol, text), signature, name in zip(texts.items(), signatures, short_names(signatures), strict=True)
    ]


def _kernel(source: str, name: str, arch: str, ptx: str, report: re.Match[str], dynamic_bytes: int) -> Kernel:
    block, promised = _BLOCK.search(ptx), _PROMISED_BLOCKS.search(ptx)

    def also_used(what: str) -> int:
        found = re.search(rf"(\d+) {what}", report["rest"])
        return int(found[1]) if found else 0

    return Kernel(
        source=source,
        name=name,
        arch=arch,
        registers=int(report["registers"]),
        threads=math.prod(int(size) for size in block.groups("1")) if block else None,
        promised_blocks=int(promised[1]) if promised else 1,
        static_bytes=also_used("bytes smem"),
        dynamic_bytes=dynamic_bytes,
        stack_bytes=max(int(report["frame"]), also_used("bytes cumulative stack size")),
        spill_bytes=int(report["stores"]) + int(report["loads"]),
        barriers=also_used("barriers"),
    )
