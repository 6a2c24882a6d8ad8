"""What parity runs on: is there enough memory, what is installed, at which commit, on what kind of machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.runtime.host_memory import available_bytes

if TYPE_CHECKING:
    from parity.cases import Case

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("refsim", "torch", "ttnn", "diffusers", "transformers", "safetensors")


def missing_memory(case: Case) -> str:
    """Say if the machine has less memory free than the case needs, where that can be found out."""
    free = available_bytes()
    if free is None or free >= case.needs_gb * 2**30:
        return ""
    return f"needs {case.needs_gb:g} GiB of free memory and the machine has {free / 2**30:.1f}"


def versions() -> dict[str, str]:
    """Return the versions of what computes the answers and of what judges them; ``-`` for what is not installed."""

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "-"

    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def git(folder: Path, *words: str) -> str | None:
    """Return what git says of a folder; None where it says nothing: no checkout, or no git."""
    try:
        asked = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def commit() -> dict[str, str]:
    """Return ``commit`` of the checkout that this code is loaded from, and when ``committed``; empty if installed.

    As in ``git describe``, ``-dirty`` follows a commit from which the packages differ.
    """
    asked = git(ROOT, "log", "-1", "--format=%H %cI") if (ROOT / ".git").exists() else None
    if not asked:
        return {"commit": "", "committed": ""}
    name, _, date = asked.partition(" ")
    changed = git(ROOT, "--no-optional-locks", "status", "--porcelain", "--", "refsim", "tt_impl", "parity")
    return {"commit": name + "-dirty" * bool(changed), "committed": date}


def machine() -> dict[str, Any]:
    """Return operating system, architecture and number of usable cores."""
    return {"system": platform.system(), "arch": platform.machine(), "cpus": cores()}


def cores() -> int:
    """Return the processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
