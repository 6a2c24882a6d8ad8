"""Files for the user: written whole or not at all, and only where the user said.

Bytes go to a hidden file next to the target, which takes the target's name once everything is on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from refsim.base import scratch
from refsim.base.access import out_of_descriptors
from refsim.base.errors import UserError
from refsim.files.keys import as_json


def document(result: Any, indent: int = 2) -> str:
    """Return the JSON of a result, or of a list of some, for programs to read."""
    return json.dumps(as_json(result), indent=indent)


def check_target(path: Path, option: str, *inputs: Path) -> None:
    """Raise ``UserError`` unless ``path`` can be written as an ordinary file and is none of (or in) ``inputs``.

    A device, a pipe and a link are no ordinary files: the link's file may be anyone's.
    """
    with _refusing(f"{option} '{path}' cannot be written"):
        ordinary = path.is_file() if path.exists() or path.is_symlink() else not path.is_dir()
        folder = path.absolute().parent
        if not ordinary or not folder.is_dir():
            raise UserError(f"{option} '{path}' is not a file in an existing folder; create the folder first.")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"{option} '{path}' lies in a folder that cannot be written to; choose another place.")
        if len(os.fsencode(path.name)) + len(_prefix(path)) > os.pathconf(folder, "PC_NAME_MAX") - 16:
            raise UserError(f"{option} has a file name of {len(path.name)} characters; choose a shorter one.")
        real = path.resolve()
        for source in inputs:
            if real == source.resolve() or real.is_relative_to(source.resolve()):
                raise UserError(f"{option} '{path}' would overwrite the input '{source}'; choose another place.")
        _refuse_special(path, option)


def check_folder(path: Path, option: str, *inputs: Path) -> None:
    """Raise ``UserError`` unless ``path`` is a folder or can become one, and lies in none of ``inputs``."""
    with _refusing(f"{option} '{path}' cannot be written"):
        place = path if path.exists() or path.is_symlink() else path.absolute().parent
        if not place.is_dir():
            raise UserError(f"{option} '{path}' is no folder and lies in none; create the one it is to lie in.")
        if not os.access(place, os.W_OK | os.X_OK):
            raise UserError(f"{option} '{path}' cannot be written to; choose another place.")
        for source in inputs:
            if path.resolve().is_relative_to(source.resolve()):
                raise UserError(f"{option} '{path}' lies in the input '{source}'; choose another place.")


def write(path: str | Path, content: bytes | Callable[[IO[bytes]], None], option: str = "--out") -> None:
    """Write bytes, or what ``content`` writes, to ``path``; a file that was there stays whole until then.

    Raises:
        UserError: the disk is full, or the folder went away, or may not be written to, or what lies there is no
            ordinary file, which it was not when it was checked or nobody has checked it.
    """
    with _refusing(f"{option} '{path}' could not be written", "free space there or choose another place"):
        _refuse_special(Path(path), option)
        target = Path(path).resolve()
        fd, name = tempfile.mkstemp(prefix=_prefix(target), dir=target.parent)
        try:
            with scratch.unfinished(name), open(fd, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(fd)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


@contextlib.contextmanager
def _refusing(what: str, instead: str = "choose another place") -> Iterator[None]:
    """Raise ``UserError``, ``what (why); instead.``, for what the system refuses in the block."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as e:
        if out_of_descriptors(e):
            raise
        reason = (isinstance(e, OSError) and e.strerror) or str(e)
        raise UserError(f"{what} ({reason}); {instead}.") from e


def _refuse_special(path: Path, option: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise UserError(f"{option} '{path}' is a link; name the file itself, or another one.")
    if not stat.S_ISREG(mode):
        raise UserError(f"{option} '{path}' is not an ordinary file; choose another place.")


def _prefix(path: Path) -> str:
    return f".{path.name[:32]}-"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
