"""Reading what Nsight Compute counts: tools/counters.py without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import counters

from strata_gdn.bench.cases import CASES


def raw_page(*kernels: tuple[str, float]) -> list[str]:
    """As ncu writes it: a line of names, one of units, and a kernel a line, with messages between."""

    def line(cells: list[str]) -> str:
        return ",".join(f'"{cell}"' for cell in cells)

    names = list(counters.METRICS.values())
    units = ["usecond", "Mbyte", "Kbyte", "sector", *[""] * (len(names) - 4)]
    values = [[kernel, "1.5", "2", "3", f"{sectors:,.0f}", *["7"] * (len(names) - 4)] for kernel, sectors in kernels]
    return ["==PROF== Connected", line(["Kernel Name", *names]), line(["", *units]), *map(line, values)]


def test_kernels_by_case_and_units() -> None:
    first, second = counters.kernels_of(
        raw_page(("step", 1000), ("norm", 2), ("spin_kernel(long)", 0), ("verify", 3), ("spin_kernel(long)", 0))
    )
    assert [kernel["kernel"] for kernel in first] == ["step", "norm"]
    assert [kernel["stored_bytes"] for kernel in (*first, *second)] == [32000, 64, 96]
    assert first[0]["microseconds"] == 1.5
    assert first[0]["device_bytes_read"] == 2e6
    assert first[0]["device_bytes_written"] == 3e3
    assert first[0]["registers"] == 7


def test_what_a_verify_writes() -> None:
    """At H=16, HV=48: 6144 outputs of two bytes, 2048 + 6144 log entries of four, 48 sectors, a token."""
    case = next(case for case in CASES if case.name == "decode verify" and case.sequences == 8 and case.tokens == 4)
    assert counters.written_by_verify(case) == 32 * (2 * 6144 + 4 * (2048 + 6144) + 32 * 48)


@pytest.mark.parametrize("state_bytes", [0, 6291456 * 8])
def test_a_verify_that_writes_a_state_fails(monkeypatch, capsys, tmp_path, state_bytes: int) -> None:
    chosen = [case for case in CASES if case.name == "decode verify" and case.sequences == 8 and case.tokens == 4]
    stored = counters.written_by_verify(chosen[0]) + state_bytes
    page = raw_page(("verify", stored / counters.SECTOR_BYTES), ("spin_kernel", 0))
    monkeypatch.setattr(counters, "select", lambda cases, names: chosen)
    monkeypatch.setattr(counters.shutil, "which", lambda program: program)
    monkeypatch.setattr(counters._devices, "describe", lambda device: {"device": "none"})

    def ncu(command: list[str], check: bool) -> None:
        Path(command[command.index("--log-file") + 1]).write_text("\n".join(page))

    monkeypatch.setattr(counters.subprocess, "run", ncu)
    assert counters.main(["--case", "decode verify", "--json", str(tmp_path / "record.json")]) == (state_bytes > 0)
    assert ("too many" if state_bytes else "ok") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--case", "nothing"], "is in no case's name"),
        (["--case", "decode step"], "no ncu (Nsight Compute) on the PATH"),
        (["--case", "decode step", "--json", "."], "cannot write .: Is a directory"),
    ],
)
def test_what_it_cannot_do(monkeypatch, capsys, options: list[str], message: str) -> None:
    monkeypatch.setattr(counters.shutil, "which", lambda program: None)
    with pytest.raises(SystemExit) as stopped:
        counters.main(options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
