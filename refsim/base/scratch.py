"""Temporary folders that go with the process that made them, however it ends.

One that ends by itself removes them. What a killed one (SIGKILL, no memory left, no power) left behind goes when the
next process makes a folder: whether an owner still lives is told by a lock on the folder, which the kernel takes away
with the last process that holds it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "refsim-tmp-"
_NEW = "new-"  # a name that sweep() does not look at, until the folder is locked

_folders: dict[str, Folder] = {}
_unfinished: set[str] = set()
"""Files that take their real name when they are complete."""


class Folder:
    """A fresh folder, readable by its owner alone; ``name`` is its path. A context manager.

    Args:
        kind: a word on what it is for, which becomes a part of its name.
    """

    def __init__(self, kind: str) -> None:
        if not _folders:
            sweep()
            atexit.unregister(remove_all)
            atexit.register(remove_all)
        new = Path(tempfile.mkdtemp(prefix=f"{_NEW}{PREFIX}{kind}-"))
        self._owner = os.getpid()
        self._lock = os.open(new, os.O_RDONLY)
        with contextlib.suppress(OSError):  # no locks on this file system: then nobody finds it free either
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.name = str(new.rename(new.with_name(new.name.removeprefix(_NEW))))
        _folders[self.name] = self

    def cleanup(self) -> None:
        """Remove it now; nothing happens the second time, or in a forked child."""
        if os.getpid() == self._owner and self.name in _folders:
            shutil.rmtree(self.name, ignore_errors=True)  # a signal's handler that comes upon this does it again
            if _folders.pop(self.name, None) is not None:
                os.close(self._lock)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def nameless(purpose: str) -> int:
    """Return the descriptor of an empty file in memory without a name: nothing is left behind whoever dies.

    Where there is no such thing it is a temporary file that has been unlinked.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"refsim-{purpose}")
    fd, path = tempfile.mkstemp(prefix=f"refsim-{purpose}-")
    os.unlink(path)
    return fd


def sweep() -> None:
    """Remove the folders of processes that are gone; those of other users and links are left alone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, or gone already
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def unfinished(name: str) -> Iterator[None]:
    """Have :func:`remove_all` remove a file that is being written in this block."""
    _unfinished.add(name)
    try:
        yield
    finally:
        _unfinished.discard(name)


def remove_all() -> None:
    """Remove everything of this process that is temporary; for a process that ends at once."""
    for folder in list(_folders.values()):
        folder.cleanup()
    for name in list(_unfinished):
        with contextlib.suppress(OSError):
            os.unlink(name)
