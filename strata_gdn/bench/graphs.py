"""Times of CUDA graphs: a sample is one replay between two events, after the L2 cache has been overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SAMPLES = 30  # the fewest
L2_FLUSH_BYTES = 256 << 20

Call = Callable[[], object]
Timer = Callable[[Call], list[float]]  # seconds of each sample


def time_graph(call: Call, samples: int = SAMPLES) -> list[float]:
    """Seconds of each of `samples` replays of a CUDA graph of `call`."""
    (seconds,) = time_in_turn([graph_of(call)], samples)
    return seconds


def graph_of(call: Call) -> torch.cuda.CUDAGraph:
    """A CUDA graph of a call that has been made before, and replayed once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # loads modules and compiles what a peer compiles
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph


@dataclass(frozen=True)
class GraphClock:
    """Times calls as graphs, in turn."""

    samples: int = SAMPLES

    def record(self, call: Call) -> torch.cuda.CUDAGraph:
        return graph_of(call)

    def time(self, recorded: Sequence[torch.cuda.CUDAGraph]) -> list[list[float]]:
        return time_in_turn(recorded, self.samples)


def time_in_turn(graphs: Sequence[torch.cuda.CUDAGraph], samples: int = SAMPLES) -> list[list[float]]:
    """Seconds of `samples` replays of each graph, one of each after the other."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    seconds: list[list[float]] = [[] for _ in graphs]
    for _ in range(samples):
        for graph, own in zip(graphs, seconds, strict=True):
            flush.fill_(0)
            own.append(between_events(graph.replay))
    return seconds


def between_events(call: Call) -> float:
    """Seconds that the GPU takes for what `call` launches."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3
