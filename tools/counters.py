"""Hardware counters of the benchmark's cases, one record a kernel (Nsight Compute, `ncu` on the PATH).

    python tools/counters.py --case "decode verify" --case "decode step" --json counters.json

Each case is called once with the kernels that the registry takes by itself, with caches flushed (ncu does that). What a
verify writes is checked: its output and its logs, and so no byte of a state; the exit status is 1 if it writes more.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from strata_gdn import _devices
from strata_gdn.bench import decode
from strata_gdn.bench.case import Case
from strata_gdn.bench.cases import CASES
from strata_gdn.bench.common import UsageError, require_writable, select

METRICS = {
    "microseconds": "gpu__time_duration.sum",
    "device_bytes_read": "dram__bytes_read.sum",
    "device_bytes_written": "dram__bytes_write.sum",
    "sectors_stored": "lts__t_sectors_srcunit_tex_op_write.sum",
    "instructions": "smsp__inst_executed.sum",
    "fma_of_threads": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "issue_active_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "device_memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "shared_memory_percent": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
    "stalled_on_barrier": "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "stalled_on_memory": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "stalled_on_shared_memory": "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "stalled_on_instructions": "smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio",
    "registers": "launch__registers_per_thread",
}
SECTOR_BYTES = 32
MARKER = "spin_kernel"  # torch.cuda._sleep's: the end of a case
UNITS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3,
         "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip
SLACK = 1.05  # of what a verify writes: parts of sectors


def profiled(cases: Sequence[Case]) -> None:
    """The part that ncu runs: each case once, and a marker after it."""
    import torch

    device = torch.device("cuda")
    for case in cases:
        calls = case.calls(device)
        calls.ours()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        calls.ours()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def kernels_of(table: Iterable[str]) -> list[list[dict[str, Any]]]:
    """ncu's raw page as CSV: the kernels of each case, each with its counters."""
    rows = csv.reader(line for line in table if line.startswith('"'))
    header, units = next(rows), next(rows)
    if missing := sorted(set(METRICS.values()) - set(header)):
        raise ValueError(f"ncu has not counted {', '.join(missing)}")
    cases: list[list[dict[str, Any]]] = [[]]
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        if MARKER in cells["Kernel Name"]:
            cases.append([])
            continue
        unit = dict(zip(header, units, strict=True))
        counters = {
            name: float(cells[metric].replace(",", "")) * UNITS.get(unit[metric], 1.0)
            for name, metric in METRICS.items()
        }
        counters["stored_bytes"] = counters.pop("sectors_stored") * SECTOR_BYTES
        cases[-1].append({"kernel": cells["Kernel Name"], **counters})
    return cases[:-1]


def written_by_verify(case: Case) -> int:
    """Bytes of the output (bfloat16) and of the logs (float32); a head's log decay is a sector of its own."""
    rows, H, HV = case.sequences * case.tokens, case.key_heads, case.value_heads
    head = decode.HEAD_DIM
    return rows * (2 * HV * head + 4 * (H * head + HV * head) + SECTOR_BYTES * HV)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools/counters.py", description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", required=True, metavar="TEXT", help="cases whose names contain it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        cases = select(CASES, args.case)
        require_writable(args.json)
    except UsageError as error:
        parser.error(str(error))
    if shutil.which("ncu") is None:
        parser.error("there is no ncu (Nsight Compute) on the PATH")
    if args.profiled:
        profiled(cases)
        return 0
    inner = [sys.executable, __file__, "--profiled", *(f"--case={text}" for text in args.case)]
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as log:
        subprocess.run(
            ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--page", "raw", "--csv", "--log-file",
             log.name, "--metrics", ",".join(METRICS.values()), *inner], check=True,
        )  # fmt: skip
        found = kernels_of(log)
    import torch

    record = {
        "command": ["tools/counters.py", *(f"--case={text}" for text in args.case)],
        "environment": _devices.describe(torch.device("cuda")),
        "results": [
            {"case": case.name, "tokens": case.tokens, "sequences": case.sequences, "kernels": kernels}
            for case, kernels in zip(cases, found, strict=True)
        ],
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    failed = 0
    for case, kernels in zip(cases, found, strict=True):
        for kernel in kernels:
            print(
                f"{case}: {kernel['kernel'][:60]} " + " ".join(f"{n}={kernel[n]:.4g}" for n in kernel if n != "kernel")
            )
        if case.op == "gated_delta_rule_verify":
            stored, least = sum(kernel["stored_bytes"] for kernel in kernels), written_by_verify(case)
            within = stored <= SLACK * least
            failed += not within
            print(f"{case}: {stored:.0f} bytes written; output and logs are {least}: {'ok' if within else 'too many'}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
