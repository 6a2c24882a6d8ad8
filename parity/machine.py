"""The machine that parity runs on: is there enough memory, what is installed, what kind of machine it is."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from parity.cases import Case

PACKAGES = ("refsim", "torch", "ttnn", "diffusers", "transformers", "safetensors")


def missing_memory(case: Case) -> str:
    """A sentence if the machine has less memory free than the case needs, where that can be found out."""
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) / 2**20
    except (OSError, StopIteration, ValueError):
        return ""
    if free >= case.needs_gb:
        return ""
    return f"needs {case.needs_gb:g} GiB of free memory and the machine has {free:.1f}"


def versions() -> dict[str, str]:
    """The versions of what computes the answers and of what judges them; ``-`` for what is not installed."""

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "-"

    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """Operating system, architecture and number of usable cores."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": platform.system(), "arch": platform.machine(), "cpus": cpus}
