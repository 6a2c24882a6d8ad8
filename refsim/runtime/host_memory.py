"""How much memory the machine has left and what a rank holds, so that a run ends before the machine does.

Linux tells; elsewhere nothing is known and nothing is bounded.
"""

from __future__ import annotations

import os
from pathlib import Path

from refsim.base.errors import UserError

RESERVE_BYTES = 512 << 20
"""A run is ended when the machine has less than this left: ranks fill some 100 MB between two looks."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LIMIT_VARIABLE = "REFSIM_RANK_MEMORY_GB"


def rank_limit_bytes() -> int | None:
    """Return what one rank may hold by ``REFSIM_RANK_MEMORY_GB`` (10^9 bytes), or None where it is not set.

    Raises:
        UserError: it is no number.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if text is None:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0.0 < limit < 1e9:
        raise UserError(f"{LIMIT_VARIABLE} is a number of GB above 0, not '{text}'.")
    return int(limit * 1e9)


def available_bytes() -> int | None:
    """Return the memory that can still be had without swapping, on this machine and in this control group."""
    free = [_field("/proc/meminfo", "MemAvailable")]
    group = Path("/sys/fs/cgroup")
    limit = _number(group / "memory.max")
    current = _number(group / "memory.current")
    if limit is not None and current is not None:
        free.append(limit - current + (_field(group / "memory.stat", "inactive_file", unit=1) or 0))
    known = [bytes_ for bytes_ in free if bytes_ is not None]
    return min(known) if known else None


def total_bytes() -> int | None:
    """Return the memory that this machine, or this control group, has in all."""
    limits = (_field("/proc/meminfo", "MemTotal"), _number(Path("/sys/fs/cgroup/memory.max")))
    known = [bytes_ for bytes_ in limits if bytes_ is not None]
    return min(known) if known else None


def check_fits(what: str, needed: dict[str, int], *, instead: str) -> None:
    """Raise ``UserError`` if this machine has less memory than is needed at the very least; nothing is allocated.

    Args:
        what: what is to run, as the sentence begins.
        needed: bytes by what they hold.
        instead: what to choose to make it fit.
    """
    have = total_bytes()
    least = sum(needed.values())
    if have is not None and least > have:
        each = ", ".join(f"{name} {bytes_ / 1e9:.1f} GB" for name, bytes_ in needed.items())
        raise UserError(
            f"{what} takes {least / 1e9:.1f} GB at least ({each}), but this machine has {have / 1e9:.1f} GB; {instead}."
        )


def private_bytes(pid: int) -> int | None:
    """Return the memory of a process that is no file's: what it has allocated, with pages its parent left it."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as f:
            return _private(f.read())
    except (OSError, ValueError):
        return None


def own_private_bytes() -> int | None:
    """Return :func:`private_bytes` of this process, whose file stays open: a trace asks at every event."""
    global _statm
    try:
        if _statm[0] != os.getpid():
            _statm = os.getpid(), os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        return _private(os.pread(_statm[1], 256, 0))
    except (OSError, ValueError):
        return None


_statm = (0, -1)
"""Whose file is open, and its descriptor: a forked process has its parent's."""


def _private(statm: bytes) -> int:
    _, resident, of_files, *_ = statm.split()
    return (int(resident) - int(of_files)) * _PAGE_BYTES


def _field(path: str | Path, name: str, *, unit: int = 1024) -> int | None:
    try:
        with open(path, encoding="ascii") as f:
            return next(int(line.split()[1]) * unit for line in f if line.startswith(name))
    except (OSError, StopIteration, ValueError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
