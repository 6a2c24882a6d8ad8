"""How far a program is: it says so, the worker writes it beside the job, the launcher reads it there."""

from __future__ import annotations

from pathlib import Path

FILE = "progress"


_path: Path | None = None
"""Where this process's program writes; nowhere outside of a worker."""


def write_to(folder: Path) -> None:
    """Let :func:`report` write into the folder of a job."""
    global _path
    _path = folder / FILE


def report(done: int, total: int) -> None:
    """Say that ``done`` of ``total`` steps are over."""
    if _path is not None:
        _path.write_text(f"{done} {total}", encoding="utf-8")


def read(folder: Path) -> tuple[int, int] | None:
    """Return what the program of a job said last; None if it has said nothing, or is saying something just now."""
    path = folder / FILE
    words = path.read_text(encoding="utf-8").split() if path.exists() else []
    return (int(words[0]), int(words[1])) if len(words) == 2 else None
