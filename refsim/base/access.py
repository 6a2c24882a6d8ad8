"""What a user names and this machine cannot give: files that are there but cannot be read, file descriptors."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

from refsim.base.errors import UserError

_LONGEST = 120  # characters of a name that a sentence quotes
_OWN_DESCRIPTORS = 64  # what Python, its libraries and the files of a checkpoint hold open at a time


def refuse_unreadable(path: str | Path, what: str) -> None:
    """Raise ``UserError`` if a file or folder is there but cannot be read, with the system's reason.

    What is not there passes: the caller knows what to say of it.

    Args:
        what: what the user gave it as, such as ``checkpoint``.
    """
    try:
        mode = os.stat(path).st_mode
        readable = os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0))
        reason = "" if readable else os.strerror(errno.EACCES)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: no name that a file could have
        return
    except OSError as e:
        reason = e.strerror or str(e)
    if reason:
        name = str(path) if len(str(path)) <= _LONGEST else f"{str(path)[:_LONGEST]}..."
        raise UserError(f"{what} '{name}' cannot be read ({reason}); give one that this user may read.")


def check_descriptors(ranks: int = 0) -> None:
    """Raise ``UserError`` if this process may not open enough files at a time for itself and so many ranks."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = _OWN_DESCRIPTORS + 3 * ranks
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        of = f" of {ranks} ranks" if ranks else ""
        raise UserError(
            f"a run{of} needs {needed} file descriptors but may have {allowed}; allow more with `ulimit -n 1024`."
        )


def out_of_descriptors(error: BaseException) -> bool:
    """Whether an error says that a process, or the machine, has too many files open."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
