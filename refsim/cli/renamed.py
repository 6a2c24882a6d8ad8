"""Flags that have another name now: the old one works for one version more, with a note on stderr."""

from __future__ import annotations

import sys
from typing import TypeVar

T = TypeVar("T")


def renamed(old: str, given: T | None, new: str, value: T) -> T:
    """Return ``given`` if the old flag was used, which is noted on stderr, else ``value``."""
    if given is None:
        return value
    sys.stderr.write(f"refsim: {old} is called {new} now; the old name works for one version more.\n")
    return given
