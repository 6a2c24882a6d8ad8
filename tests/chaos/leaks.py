"""What a run may not leave behind: processes, shared memory, files, file descriptors."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path

from refsim.runtime.ranks import pool as pools

MARK = "REFSIM_CHAOS_CASE"
SHM = Path("/dev/shm")


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def marked(mark: str) -> list[int]:
    """Living processes that were started, or forked from one that was started, with ``mark`` in the environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(condition, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Watch:
    """Compares what is there after a case on ranks with what was there before it."""

    def __init__(self, world_size: int) -> None:
        self._pool = pools.pool(world_size)
        self._pids = list(self._pool._pids)
        self._shm = set(os.listdir(SHM)) if SHM.is_dir() else set()
        self._descriptors = _descriptors()
        self._world_size = world_size

    def left_over(self) -> list[str]:
        """One line for each thing left; a pool that lives on for the next job is none."""
        found = []
        if not self._pool.alive:
            found += [f"process {pid}" for pid in self._pids if exists(pid)]
            gone = self._world_size + 2  # the ranks' sockets, the board and its mapping's own descriptor
            more = len(_descriptors()) - len(self._descriptors) + gone
            found += [f"{more} file descriptors"] if more > 0 else []
        found += [f"file {path}" for path in self._pool.server.run_dir.rglob("*")]
        shm = set(os.listdir(SHM)) - self._shm if SHM.is_dir() else set()
        found += [f"segment {name}" for name in sorted(shm) if not _somebody_elses(SHM / name)]
        return found


def _somebody_elses(segment: Path) -> bool:
    """Whether a segment is gone again, or a process that is not this one's child has mapped it."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(segment) in (entry / "maps").read_text(errors="replace"):
                    return True
    return not segment.exists()


def _descriptors() -> list[str]:
    gc.collect()
    return os.listdir("/proc/self/fd")
