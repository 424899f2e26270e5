"""What a line of the benchmark on a GPU is made of: a case, its arms, its peers and its marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from . import roofline

HEAD_DIM, CONV_WIDTH = 128, 4
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Arm:
    """Under these switches exactly these kernels have to serve the case."""

    kernels: tuple[str, ...]
    switches: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return " + ".join(self.kernels)


@dataclass(frozen=True)
class Peer:
    """What a case is held against, timed in turn with it."""

    name: str
    call: Callable[[], object]


@dataclass(frozen=True)
class Mark:
    """What a case is to reach: at most this many times a peer's time or, where no peer is named, this many µs."""

    at_most: float
    of: str = ""

    @property
    def measure(self) -> str:
        return f"times {self.of}" if self.of else "us"


@dataclass(frozen=True)
class Calls:
    """A case with its inputs on the device. The first peer is the one that the table has beside it."""

    ours: Callable[[], object]
    work: roofline.Work  # of one call
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Case:
    """One shape. What a replay takes is divided by `repeats`, the calls that `Calls.ours` and the peers make in it."""

    name: str
    op: str  # as registry.decide names it
    key_heads: int
    value_heads: int
    tokens: int
    arms: tuple[Arm, ...]
    make: Callable[[Case], Calls]  # its tensors are on torch's default device
    sequences: int = 1
    repeats: int = 1
    tree: bool = False
    precision: str = "auto"
    marks: tuple[Mark, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, {self.tokens} tokens, {self.sequences} sequence{'s' * (self.sequences > 1)}"

    def calls(self, device: torch.device) -> Calls:
        """With the same random inputs every time."""
        torch.manual_seed(0)
        with device:
            return self.make(self)
