"""Where modules are imported from: not from the folder one happens to stand in, which may be a stranger's checkpoint.

It loads next to nothing, because whatever is imported before :func:`leave_current_folder` still comes from there.
"""

from __future__ import annotations

import os
import sys

_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def trusted() -> list[str]:
    """Return ``sys.path`` without the current folder, however it came there (``''``, ``python -m``, ``PYTHONPATH=:``).

    It stays where PYTHONPATH names it, and where this project itself lies in it.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it has been removed
        return [place for place in sys.path if place]
    named = {os.path.realpath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place}
    may = {_HOME, *named}
    return [place for place in sys.path if place and (os.path.realpath(place) != here or here in may)]


def leave_current_folder() -> None:
    """Import nothing more from the current folder in this process, and in those that it starts."""
    sys.path[:] = trusted()
