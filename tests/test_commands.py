"""`python -m strata_gdn`: a command imports nothing that it has no use for."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from strata_gdn.__main__ import main

def imported(*names):
    return [name for name in names if f"strata_gdn.{name}" in sys.modules]

status = [main(["info"]), main(["explain", "--op", "gdn_gates"])]
print(status, imported("bench", "parity", "demo"), file=sys.stderr)
status = main(["parity", "--op", "gdn_gates"])
print(status, imported("parity.check", "parity.turns", "bench.cases", "bench.peers", "demo"), file=sys.stderr)
"""


def test_a_command_imports_only_its_own_modules() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["[0, 0] []", "0 ['parity.check']"]
