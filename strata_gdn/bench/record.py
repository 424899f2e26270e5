"""The JSON of a benchmark on a GPU: written as it grows, read back by the plot.

command      the command line, output files without their folders
environment  device, architecture and versions
shape        head dimensions and dtype of all cases
rates        what the card can do, as roofline measures and derives it
results      one a case and kernel: shape, kernel, the switches that asked for it and its configuration, all samples,
             their median, what a call moves and computes, the limits that follow in seconds, the binding one and the
             part of it that was reached, the peer's samples and median, those of further peers, and the marks: what is
             measured, at most how much it is to be, how much it is, and whether that meets the mark
left_out     arms that this card cannot serve, with the registry's reason
failed       arms that another kernel served than the one asked for: no time is recorded for them
quoted       figures measured elsewhere
complete     false while the benchmark runs, and in what it leaves behind if it is stopped
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .common import UsageError

# What a reader may rely on; `peer_seconds`, the peer's median, is null where there is no peer.
ENVIRONMENT_KEYS = ("device", "arch", "torch", "strata_gdn")
RESULT_KEYS = ("case", "tokens", "sequences", "kernel", "seconds", "median_seconds", "peer_seconds", "chosen")


def write(record: Mapping[str, Any], path: Path) -> None:
    """Any run's record."""
    path.write_text(json.dumps(record, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """A record of a benchmark on a GPU.

    Raises:
        UsageError: the file cannot be read, is no JSON or lacks a key; the message names the file and the key.
    """
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    _require(record, ("environment", "results"), f"{path}: the record")
    _require(record["environment"], ENVIRONMENT_KEYS, f"{path}: environment")
    if not isinstance(record["results"], list):
        raise UsageError(f"{path}: results must be a list; got {type(record['results']).__name__}")
    for i, result in enumerate(record["results"]):
        _require(result, RESULT_KEYS, f"{path}: results[{i}]")
    return record


def _require(value: object, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be an object; got {type(value).__name__}")
    for key in keys:
        if key not in value:
            raise UsageError(f"{where} has no '{key}'; it has {', '.join(value) or 'nothing'}")
