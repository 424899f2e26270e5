"""What can serve a call on a device, and the switches that ask for it."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from .. import _devices, registry

ISAS = ("baseline", "avx2", "avx512")

Switches = dict[str, int | str]
# What chooses among the exact kernels of a GPU and their configurations.
GPU_SWITCHES = {
    "GDN_STEP": (1, 0),
    "GDN_KEYHEAD": (0, 1),
    "GDN_PIPELINE": (1, 0),
    "GDN_LANES": (0, 1, 2),
    "GDN_SPLIT": (0, 1),
    "GDN_STEP_HEADS": (1, 2, 4),
    "GDN_FUSED_LAYER": (0, 1),
    "GDN_COMMIT_SPLIT": (1, 0),
    "GDN_CONVL2": (0, 1),
}
# The arguments that have an op's key heads and its value heads, [.., T, H, K] and [.., T, HV, V].
HEADS = (("q", "v"), ("k_log", "d_log"), ("k_logs", "d_logs"))


def isas() -> tuple[str, ...]:
    """The instruction sets of this machine."""
    with registry.overrides(GDN_CPU_ISA=None):
        return ISAS[: ISAS.index(registry.cpu_arch().removeprefix("cpu-")) + 1]


def sms(device: torch.device) -> int | None:
    """Multiprocessors of a GPU."""
    return None if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def choices(op: str, arch: str) -> list[Switches]:
    """All settings of the switches that an op's kernels on a GPU go by."""
    read = [name for name in GPU_SWITCHES if name in registry.switches_read(op, arch)]
    return [dict(zip(read, values, strict=True)) for values in product(*(GPU_SWITCHES[name] for name in read))]


def asked(op: str, device: torch.device, **shape: int) -> list[tuple[registry.Decision, Switches]]:
    """What can serve a call, each kernel and configuration once, with the switches that ask for it."""
    if device.type == "cpu":
        arch, settings = f"cpu-{isas()[-1]}", [{"GDN_CPU_ISA": isa} for isa in isas()]
    else:
        arch, settings = _devices.arch(device), choices(op, _devices.arch(device))
    return distinct(op, arch, sms(device), settings, **shape)


def distinct(
    op: str, arch: str, multiprocessors: int | None, settings: list[Switches], **shape: int
) -> list[tuple[registry.Decision, Switches]]:
    """The settings' decisions, each kernel and configuration once."""
    found: list[tuple[registry.Decision, Switches]] = []
    for switches in settings:
        decision = registry.decide(op, arch=arch, sms=multiprocessors, **shape, env=switches)
        if decision and (decision.kernel, decision.config) not in [(d.kernel, d.config) for d, _ in found]:
            found.append((decision, switches))
    return found


def shape_of(arguments: dict[str, Any]) -> dict[str, int]:
    """What a decision on a call with heads and states goes by; of another call nothing."""
    layer = {}
    if "qkv" in arguments:
        layer["width"] = arguments["conv_weight"].shape[1]
        (n, tokens, channels), (HV, V) = arguments["qkv"].shape, arguments["z"].shape[2:]
        H = arguments["num_key_heads"]
        K = (channels - HV * V) // (2 * H)
    else:
        names = [pair for pair in HEADS if set(pair) <= arguments.keys()]
        if not names:
            return {}
        keys, values = (x[0] if isinstance(x, list) else x for x in map(arguments.get, names[0]))
        (n, tokens, H, K), (HV, V) = keys.shape, values.shape[2:]
    bounds = arguments.get("cu_seqlens")
    if bounds is not None:
        n = len(bounds) - 1
        tokens = -(-tokens // max(n, 1))  # a sequence
    tree = arguments.get("parents") is not None
    return {"n": n, "tokens": tokens, "h": H, "hv": HV, "k": K, "v": V, "tree": tree} | layer
