"""Everything that needs a GPU, in one go; tools/gpu_check.sh starts it with the right Python.

Each part has its own process and time limit, and one that fails does not stop the others. A part that ran but tested
nothing (all its tests were skipped, say) has failed. What is left in the output folder:

    gpu_check.json   each part's status, seconds, commands and the end of its output; written anew after each part
    cuda.json        the bench
    parity.json      the ops' parity
    logits.json      a model's next token by each lane
    rec_parity.json  the recurrences' times on fewer and fewer multiprocessors (gdn_rec_parity)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRESET = "cuda-native"
PROGRAMS = ROOT / "build" / PRESET / "bin"
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
TAIL_LINES = {"passed": 25, "failed": 200, "timed out": 200}
SHOWN_LINES = {"passed": 4, "failed": 60, "timed out": 60}
REPORT = "gpu_check.json"


@dataclass(frozen=True)
class Part:
    """Commands that must all succeed, one after another.

    Attributes:
        limit_seconds: of all its commands together.
        evidence: a regular expression that the output must match: exit status 0 alone may mean that nothing was done.
        in_root: run in the repository; elsewhere its strata_gdn/ does not come before an installed package.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    limit_seconds: float
    evidence: str = ""
    in_root: bool = False


@dataclass(frozen=True)
class Outcome:
    name: str
    status: str  # "passed", "failed" or "timed out"
    reason: str  # of a failure
    seconds: float
    commands: list[str]
    output_tail: list[str]


def parts_of(out: Path) -> list[Part]:
    """All parts, in the order in which they run. Their names and those of `GROUPS` select them."""
    python, tools, tests = sys.executable, ROOT / "tools", ROOT / "tests"
    cli = python, "-m", "strata_gdn"
    cuda_programs = [source.stem for source in sorted((tests / "cpp").glob("test_*.cu"))]
    rec_parity = str(PROGRAMS / "gdn_rec_parity")
    return [
        Part("info", ((*cli, "info"),), 120, evidence=r"(?m)^device .*\bsm_\d+, \d+ "),
        Part("build", (("cmake", "--preset", PRESET, f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={PROGRAMS}"),
                       ("cmake", "--build", "--preset", PRESET, "--target", *cuda_programs, "gdn_rec_parity",
                        "--", "-k", "0")),  # as many of them as can be built
             420, in_root=True),
        Part("tests", ((python, str(tools / "gpu_check_tests.py")),), 420,
             evidence=r"\b[1-9]\d* passed"),
        Part("cpp_tests", (("ctest", "--preset", PRESET),), 120, evidence=r"\bPassed\b", in_root=True),
        Part("parity", ((*cli, "parity", "--device", "cuda", "--json", str(out / "parity.json")),),
             420, evidence=r"\b[1-9]\d* checks, 0 failures"),
        Part("logits", ((*cli, "parity", "--device", "cuda", "--logits", "--json", str(out / "logits.json")),),
             420, evidence=r"\b[1-9]\d* checks, 0 failures"),
        Part("rec_parity", ((rec_parity,),), 420, evidence=r"\b[1-9]\d* checks, 0 failures"),
        Part("rec_bench", ((rec_parity, "--bench", "--sms", "--json", str(out / "rec_parity.json")),), 420,
             evidence="rec_keyhead"),
        *(Part(tool, (("compute-sanitizer", "--tool", tool, "--error-exitcode", "1",
                       python, str(tools / "every_cuda_kernel.py")),),
               420, evidence="ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards") for tool in SANITIZERS),
        Part("bench", ((*cli, "bench", "--device", "cuda", "--json", str(out / "cuda.json")),),
             540, evidence="us/token"),
    ]  # fmt: skip


GROUPS = {"sanitizers": SANITIZERS}


def run_part(part: Part, scratch: Path) -> tuple[str, str, str]:
    """Runs a part's commands in order, up to the first that fails; status, reason and output."""
    deadline = time.monotonic() + part.limit_seconds
    log = scratch / f"{part.name}.log"
    for command in part.commands:
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                           cwd=ROOT if part.in_root else scratch)  # fmt: skip
            except OSError as error:
                return "failed", f"{command[0]}: {error.strerror}", log.read_text(errors="replace")
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return "timed out", f"took over {part.limit_seconds:g} s", log.read_text(errors="replace")
            finally:
                _end(process)
        if status:
            return "failed", f"exit status {status} of {command[0]}", log.read_text(errors="replace")
    text = log.read_text(errors="replace")
    if part.evidence and not re.search(part.evidence, text):
        return "failed", f"nothing was tested: no '{part.evidence}' in the output", text
    return "passed", "", text


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that still runs, with what it has started: its session is its own process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(parts: Sequence[Part], out: Path) -> int:
    """Runs the parts and writes the report; 1 if any of them did not pass, else 0."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        names = {sys.executable: "python", str(out): "OUT", str(ROOT): ".", str(scratch): "SCRATCH"}

        def plain(text: str) -> str:
            """Without the folders of this machine."""
            for path, name in names.items():
                text = text.replace(path, name)
            return text

        for part in parts:
            print(f"[gpu_check] {part.name}", flush=True)
            start = time.monotonic()
            status, reason, text = run_part(part, scratch)
            lines = plain(text).splitlines()
            outcomes.append(Outcome(
                name=part.name,
                status=status,
                reason=plain(reason),
                seconds=round(time.monotonic() - start, 1),
                commands=[plain(" ".join(command)) for command in part.commands],
                output_tail=lines[-TAIL_LINES[status] :],
            ))  # fmt: skip
            _write(outcomes, out, complete=len(outcomes) == len(parts))
            print("\n".join(lines[-SHOWN_LINES[status] :]))
            print(f"[gpu_check] {_line(outcomes[-1])}", flush=True)
    print("\n".join(["", *map(_line, outcomes)]))
    return int(any(outcome.status != "passed" for outcome in outcomes))


def _line(outcome: Outcome) -> str:
    return f"{outcome.name}: {outcome.status} after {outcome.seconds:.1f} s" + (
        f" ({outcome.reason})" if outcome.reason else ""
    )


def _write(outcomes: Sequence[Outcome], out: Path, complete: bool) -> None:
    report = {
        "passed": complete and all(outcome.status == "passed" for outcome in outcomes),
        "complete": complete,
        "parts": [asdict(outcome) for outcome in outcomes],
    }
    (out / REPORT).write_text(json.dumps(report, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools/gpu_check.sh", description="Everything that needs a GPU, in one go.")
    known = [part.name for part in parts_of(Path())]
    parser.add_argument("out", type=Path, metavar="OUT", help="where the JSON goes")
    parser.add_argument("parts", nargs="*", metavar="PART",
                        help=f"only these (default: all): {', '.join([*known, *GROUPS])}")  # fmt: skip
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of each part, instead of its own limit")
    args = parser.parse_args(argv)
    for name in args.parts:
        if name not in known and name not in GROUPS:
            parser.error(f"no part '{name}'; the parts are {', '.join([*known, *GROUPS])}")
    wanted = {part for name in args.parts or known for part in GROUPS.get(name, (name,))}
    args.out.mkdir(parents=True, exist_ok=True)
    out = args.out.resolve()
    parts = [part for part in parts_of(out) if part.name in wanted]
    if args.limit is not None:
        parts = [replace(part, limit_seconds=args.limit) for part in parts]
    return check(parts, out)


if __name__ == "__main__":
    sys.exit(main())
