"""What has another name now: the old one is not shown, and works for one version more, with a note on stderr."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import typer


def note(old: str, new: str) -> None:
    """Say on stderr that ``old`` is called ``new`` now."""
    typer.echo(f"refsim: {old} is called {new} now; the old name works for one version more.", err=True)


def old_command(group: typer.Typer, old: str, new: str, command: Callable[..., Any]) -> None:
    """Add a command under its old name, too; ``old`` and ``new`` are all the words behind ``refsim``."""

    @wraps(command)
    def run(**values: Any) -> Any:
        note(f"`refsim {old}`", f"`refsim {new}`")
        return command(**values)

    group.command(old.rpartition(" ")[2], hidden=True)(run)
