"""tools/gpu_check: what fails is reported as failed, and does not stop the rest."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def load(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


gpu_check, gpu_check_tests = load("gpu_check"), load("gpu_check_tests")


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def part(name: str, *commands: tuple[str, ...], limit: float = 60, **more) -> gpu_check.Part:
    return gpu_check.Part(name, commands, limit, **more)


def check(tmp_path: Path, *parts: gpu_check.Part) -> tuple[int, dict]:
    status = gpu_check.check(parts, tmp_path)
    return status, json.loads((tmp_path / gpu_check.REPORT).read_text())


def test_all_parts_pass(tmp_path, capsys):
    status, report = check(
        tmp_path, part("one", python("print('3 passed')"), evidence="[1-9] passed"), part("two", python(""))
    )
    assert status == 0
    assert (report["passed"], report["complete"]) == (True, True)
    assert [(p["name"], p["status"], p["output_tail"]) for p in report["parts"]] == [
        ("one", "passed", ["3 passed"]),
        ("two", "passed", []),
    ]
    assert capsys.readouterr().out.splitlines()[-1].startswith("two: passed after ")


def test_a_failed_part_does_not_stop_the_others(tmp_path):
    status, report = check(
        tmp_path,
        part("exits", python("print('why'); raise SystemExit(3)"), python("print('not reached')")),
        part("absent", ("no-such-program",)),
        part("skips", python("print('0 passed, 9 skipped')"), evidence=r"\b[1-9]\d* passed"),
        part("works", python("")),
    )
    assert status == 1
    assert not report["passed"]
    assert [(p["name"], p["status"]) for p in report["parts"]] == [
        ("exits", "failed"),
        ("absent", "failed"),
        ("skips", "failed"),
        ("works", "passed"),
    ]
    exits, absent, skips, _ = report["parts"]
    assert (exits["reason"], exits["output_tail"]) == ("exit status 3 of python", ["why"])
    assert absent["reason"] == "no-such-program: No such file or directory"
    assert skips["reason"].startswith("nothing was tested: ")


def test_a_part_has_limited_time(tmp_path):
    """It ends with everything that it started."""
    child = tmp_path / "child"
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(child)!r}, "w").write(str(child.pid))
time.sleep(600)"""
    start = time.monotonic()
    status, report = check(tmp_path, part("hangs", python(code), limit=3), part("works", python("")))
    assert time.monotonic() - start < 60
    assert status == 1
    assert [(p["status"], p["reason"]) for p in report["parts"]] == [("timed out", "took over 3 s"), ("passed", "")]
    assert not alive(int(child.read_text()))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to notice does not."""
    stat = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)
    return False


def test_the_report_has_no_folders_of_this_machine(tmp_path):
    root = str(gpu_check.ROOT)
    _, report = check(tmp_path, part("one", python(f"print({root!r}, {str(tmp_path)!r})"), in_root=True))
    assert report["parts"][0]["output_tail"] == [". OUT"]
    assert root not in json.dumps(report)
    assert sys.executable not in json.dumps(report)


def test_parts_and_groups(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(gpu_check, "check", lambda parts, out: ran.extend(parts) or 0)
    assert gpu_check.main([str(tmp_path / "new"), "bench", "sanitizers", "tests", "--limit", "7"]) == 0
    assert [(p.name, p.limit_seconds) for p in ran] == [
        (name, 7) for name in ("tests", "memcheck", "racecheck", "initcheck", "synccheck", "bench")
    ]
    assert (tmp_path / "new").is_dir()
    ran.clear()
    gpu_check.main([str(tmp_path)])
    assert [p.name for p in ran] == [p.name for p in gpu_check.parts_of(tmp_path)]
    assert all(p.evidence for p in ran if p.name != "build")  # exit status 0 is enough for none


def test_only_what_needs_a_gpu(tmp_path):
    """All of it and nothing else: a test that skips without a GPU and gives another reason would not be run."""
    files = [file for file in gpu_check_tests.files() if file != __file__]
    skipping = {str(f) for f in TOOLS.parent.glob("tests/test_*.py") if "skipif(not torch.cuda.is_av" in f.read_text()}
    assert skipping - {__file__} == set(files)
    file = tmp_path / "test_some.py"
    file.write_text("""
import pytest

gpu = pytest.mark.skipif(False, reason="needs a GPU")

@gpu
def test_one():
    pass

@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=gpu)])
def test_two(where):
    assert where == "cuda"

@pytest.mark.skipif(False, reason="needs qemu")
def test_three():
    raise AssertionError

def test_four():
    raise AssertionError
""")
    script = f"""
import sys
sys.path.insert(0, {str(TOOLS)!r})
import gpu_check_tests, pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {str(file)!r}], plugins=[gpu_check_tests.OnlyGpuTests()]))"""
    done = subprocess.run(python(script), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 3 deselected" in done.stdout


def test_an_unknown_part(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        gpu_check.main([str(tmp_path), "sanitisers"])
    assert error.value.code == 2
    assert "no part 'sanitisers'; the parts are info, build, tests," in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_no_part_passes(tmp_path):
    environment = os.environ | {"STRATA_PYTHON": sys.executable}
    parts = ["info", "tests", "cpp_tests", "logits", "memcheck", "bench"]
    command = [TOOLS / "gpu_check.sh", tmp_path, *parts, "--limit", "120"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    report = json.loads((tmp_path / gpu_check.REPORT).read_text())
    assert done.returncode == 1, done.stderr
    assert report["complete"]
    assert {p["name"]: p["status"] for p in report["parts"]} == dict.fromkeys(parts, "failed")
    reasons = {p["name"]: p["reason"] for p in report["parts"]}
    assert reasons["tests"].startswith("nothing was tested: ")
    assert reasons["logits"] == reasons["bench"] == "exit status 2 of python"
