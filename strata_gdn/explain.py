"""`python -m strata_gdn explain`: a decision of the registry in full."""

from __future__ import annotations

import argparse
import sys

from strata_gdn import registry
from strata_gdn._table import columns


def _switch(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE; got '{text}'")
    return name, value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", required=True, help="an op of torch.ops.strata_gdn")
    parser.add_argument(
        "--arch", default="cpu", help="such as sm_86, gfx1151, cpu-avx2; cpu (the default): this machine's"
    )
    parser.add_argument("--sms", type=int, help="SMs or CUs of the device")
    parser.add_argument("--tokens", type=int, default=1, help="T a sequence (default 1)")
    parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16 or float16 (default bfloat16)")
    parser.add_argument("--n", type=int, default=1, help="sequences (default 1)")
    parser.add_argument("--h", type=int, default=16, help="key heads (default 16)")
    parser.add_argument("--hv", type=int, default=48, help="value heads (default 48)")
    parser.add_argument("--k", type=int, default=128, help="key dimension (default 128)")
    parser.add_argument("--v", type=int, default=128, help="value dimension (default 128)")
    parser.add_argument("--width", type=int, default=4, help="taps of a layer's convolution (default 4)")
    parser.add_argument("--tree", action="store_true", help="a verify with parents")
    parser.add_argument("--precision", default="auto", help="auto, exact, fp32 or fast (default auto)")
    parser.add_argument("--env", type=_switch, action="append", metavar="NAME=VALUE",
                        help="a switch, repeatable; given once or more, these replace the environment's")  # fmt: skip


def _switch_lines(op: str, arch: str, env: dict[str, str] | None) -> list[str]:
    """The switches that the decision went by, and those that the user set in vain."""
    read = registry.switches_read(op, arch, env=env)
    lines = []
    for switch in registry.effective(arch, env=env):
        by_user = switch.source in ("environment", "override")
        if switch.name in read or by_user:
            value = "unset" if switch.value is None else switch.value
            effect = "" if switch.name in read else ": no effect on this decision"
            lines.append(f"{switch.name}={value} ({switch.source}){effect}")
    return lines


def _is_built(arch: str) -> bool:
    build = registry.build()
    return build.cuda if arch.startswith("sm_") else build.hip if arch.startswith("gfx") else True


def text(args: argparse.Namespace) -> str:
    """The lines that `explain` prints."""
    env = dict(args.env) if args.env else None
    arch = registry.cpu_arch() if args.arch == "cpu" and env is None else args.arch
    decision = registry.decide(
        args.op, arch=arch, sms=args.sms, dtype=args.dtype, tokens=args.tokens, n=args.n, h=args.h, hv=args.hv,
        k=args.k, v=args.v, width=args.width, precision=args.precision, tree=args.tree, env=env,
    )  # fmt: skip
    shape = f"N={args.n} T={args.tokens} H={args.h} HV={args.hv} K={args.k} V={args.v}"
    rows = [
        ("op", f"{args.op}, {shape}, {args.dtype}, precision {args.precision}{', a tree' * args.tree}"),
        ("device", arch if args.sms is None else f"{arch}, {args.sms} SMs"),
        ("kernel", decision.kernel or "none"),
        ("config", ", ".join(f"{name}={value}" for name, value in decision.config.items()) or "none"),
        ("reason", decision.reason),
    ]
    rows += [("rejected", f"{kernel}: {reason}") for kernel, reason in decision.rejected] or [("rejected", "none")]
    rows += [("switch", line) for line in _switch_lines(args.op, arch, env)]
    if decision and not _is_built(arch):
        rows.append(("build", f"has no kernels for {arch}; this is the decision of one that has"))
    return columns(rows)


def run(args: argparse.Namespace) -> int:
    try:
        print(text(args))
    except ValueError as error:
        print(f"strata_gdn: {error}", file=sys.stderr)
        return 2
    return 0
