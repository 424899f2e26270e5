#!/usr/bin/env python3
"""Runs the package's ops on RDNA without a card: every call of the parity table under the RDNA runner, against the CPU.

A line a call: whether all bits are the CPU's, and the wave instructions executed, by class. The exit status is 1 where
a bit differs or the runner finds a fault. docs/rocm.md.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch
from rdna import toolchain
from rdna.engine import ULPS, Fault

from strata_gdn._table import columns
from strata_gdn.parity.calls import CALLS, MORE_CALLS, call
from strata_gdn.parity.check import poisoned_memory
from strata_gdn.parity.compare import difference_in_bits


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*", default=list(toolchain.ARCHES), metavar="gfx1201")
    parser.add_argument("--call", default="", help="those with this in their name")
    parser.add_argument("--more", action="store_true", help="the larger calls and the special values too")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which waves and work-groups run")
    parser.add_argument("--ulp", choices=ULPS, default="exact", help="what rcp, rsq, sqrt, exp and log are off by")
    options = parser.parse_args(arguments)
    if unknown := set(options.arch) - set(toolchain.ARCHES):
        parser.error(f"{', '.join(sorted(unknown))}: the targets are {', '.join(toolchain.ARCHES)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    if missing := toolchain.missing():
        raise SystemExit(f"not installed: {missing}")
    from rdna.ops import Ops
    from rdna.runner import Options

    names = [name for name in (CALLS | MORE_CALLS if options.more else CALLS) if options.call in name]
    failures = 0
    for arch in options.arch:
        ops = Ops(arch, Options(seed=options.seed, ulp=options.ulp))
        for name in names:
            before = ops.runner.counts.copy()
            problem = _problem(ops, name)
            failures += bool(problem)
            print(f"{arch}  {name}: {problem or 'the same bits'}; {_words(ops.runner.counts - before)}", flush=True)
        print(columns([[kind, f"{count:,}"] for kind, count in ops.runner.counts.most_common() if count], indent=2))
    print(f"{len(names) * len(options.arch)} calls, {failures} failures")
    return 1 if failures or not names else 0


def _problem(ops: object, name: str) -> str:
    """What differs from the CPU, or the fault; empty: nothing."""
    torch.manual_seed(0)
    made = call(name)
    with poisoned_memory():
        here = made.copy()
        expected = here.run()
        try:
            with ops.device():
                there = made.copy()
                actual = there.run(ops)
        except Fault as fault:
            return str(fault)
    pairs = [(f"result {i}", a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True))]
    pairs += [(n, a, e) for (n, a), (_, e) in zip(there.buffers(), here.buffers(), strict=True)]
    return "; ".join(f"{what}: {found}" for what, a, e in pairs if (found := difference_in_bits(a, e)))


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) or "nothing ran"


if __name__ == "__main__":
    raise SystemExit(main())
