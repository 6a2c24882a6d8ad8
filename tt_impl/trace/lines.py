"""Which line of the user's code made a call of ttnn."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import ttnn

from tt_impl.trace import intercept

_HERE = Path(intercept.__file__).parents[1]
_PYTHON = str(Path(os.__file__).parent) + os.sep
_OURS = [_HERE / name for name in ("mock", "harness", "trace")]
_LIBRARIES = tuple(str(path) + os.sep for path in (Path(ttnn.__file__).parent, *_OURS))
_INSTALLED = tuple(f"site-packages{os.sep}{name}{os.sep}" for name in ("torch", "_pytest", "pluggy"))
_user_files: dict[str, str | None] = {}


def _user_file(file: str) -> str | None:
    """Return the path as messages show it, or None for a file of a library."""
    if file.startswith(("<frozen", *_LIBRARIES)) or any(name in file for name in _INSTALLED):
        return None
    if file.startswith(_PYTHON) and "site-packages" not in file:
        return None
    with contextlib.suppress(ValueError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def user_line() -> str:
    """``path.py:line`` of the innermost frame outside of the call's handlers and of libraries; empty if there is none.

    Paths below the current folder are relative to it.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not intercept._dispatch.__code__:
        frame = frame.f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _user_files:
            _user_files[file] = _user_file(file)
        if (shown := _user_files[file]) is not None:
            return f"{shown}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
