"""What a run was made on: the registry's name of a device, the device's own, and the versions of what computed."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from . import registry


def arch(device: torch.device) -> str:
    """The architecture as the registry names it: "sm_90", "gfx1151", "cpu-avx512"."""
    if device.type == "cpu":
        return registry.cpu_arch()
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]  # features follow a colon: "gfx1100:sramecc+"
    return f"sm_{properties.major}{properties.minor}"


def name(device: torch.device) -> str:
    """The product name, as the driver or the kernel gives it."""
    if device.type != "cpu":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def package_version(package: str) -> str:
    """An optional package's version, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe(device: torch.device) -> dict[str, str | int]:
    """What a measurement must name to be read later."""
    return {
        "device": name(device),
        "arch": arch(device),
        "threads": torch.get_num_threads(),
        "strata_gdn": version("strata-gdn"),
        "torch": torch.__version__,
        "transformers": package_version("transformers"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def command(*outputs: Path | None) -> list[str]:
    """The command line that a record names: output files without their folder, which is the machine's own affair."""
    names = {str(output): output.name for output in outputs if output}
    return ["python", "-m", "strata_gdn", *(names.get(argument, argument) for argument in sys.argv[1:])]
