"""Records the lines that a case executes, with coverage.py, in the launcher and in the processes of its jobs.

A rank outlives a case and may be killed, so nothing is left to the end of a process: every job carries a ``fault``
that changes nothing and records, and its process writes what it saw next to what the others wrote.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.faults.around import Patch, around
from refsim.base import scratch
from refsim.base.errors import UserError
from refsim.base.jobs import Job

IN_A_JOB = f"{__name__}:in_a_job"
_FOLDER = "REFSIM_RECORD_TO"
_FILES = "REFSIM_RECORD_FILES"
_ROOT = Path(__file__).resolve().parents[2]

Lines = dict[str, set[int]]
"""Line numbers by file, its path from the folder of the packages."""


def needs_coverage() -> None:
    """Raise ``UserError`` if coverage.py is not installed."""
    try:
        import coverage  # noqa: F401
    except ImportError as e:
        raise UserError(
            "which lines a case executes is recorded by coverage.py, which is not installed; "
            "pip install 'refsim[mutation]'."
        ) from e


def every_job(**changes: Any) -> Patch:
    """Change options of every job that this process starts in the block, such as ``fault`` and ``timeout_s``."""

    def to_json(original: Callable, job: Job) -> dict[str, Any]:
        return original(replace(job, options=replace(job.options, **changes)))

    return around(Job, "to_json", to_json)


@contextmanager
def recorded_jobs(files: list[str]) -> Iterator[Path]:
    """Let every job of this block record the lines of ``files``; gives the folder for :func:`case`."""
    with scratch.Folder("lines") as folder:
        os.environ |= {_FOLDER: folder, _FILES: json.dumps(files)}  # before the fork server starts
        with every_job(fault=IN_A_JOB):
            yield Path(folder)


@contextmanager
def case(folder: Path) -> Iterator[Lines]:
    """Record what this process and its jobs execute in the block; the lines are there after it."""
    seen: Lines = {}
    with _recording(seen):
        yield seen
    for path in folder.iterdir():
        for file, lines in json.loads(path.read_text(encoding="utf-8")).items():
            seen.setdefault(file, set()).update(lines)
        path.unlink()


@contextmanager
def in_a_job() -> Iterator[None]:
    """Record the program of one process; this is the fault of every job."""
    seen: Lines = {}
    try:
        with _recording(seen):
            yield
    finally:
        text = json.dumps({file: sorted(lines) for file, lines in seen.items()})
        with tempfile.NamedTemporaryFile("w", dir=os.environ[_FOLDER], delete=False, encoding="utf-8") as f:
            f.write(text)


@contextmanager
def _recording(seen: Lines) -> Iterator[None]:
    from coverage import Coverage

    include = [str(_ROOT / file) for file in json.loads(os.environ[_FILES])]
    recorder = Coverage(data_file=None, config_file=False, include=include)
    recorder.start()
    try:
        yield
    finally:
        recorder.stop()
        data = recorder.get_data()
        for file in data.measured_files():
            lines = seen.setdefault(Path(file).relative_to(_ROOT).as_posix(), set())
            lines.update(data.lines(file) or ())
