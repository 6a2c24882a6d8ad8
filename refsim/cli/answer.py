"""How commands answer: a result on stdout, for people or as JSON, what goes on meanwhile on stderr, an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer

from refsim.files import output

T = TypeVar("T")
say = partial(typer.echo, err=True)
"""Print a line on stderr."""


def answer(result: T, text: Callable[[T], str], *, as_json: bool, passed: bool = True) -> None:
    """Print a result, as JSON or as what ``text`` makes of it; exit code 1 unless it ``passed``."""
    typer.echo(output.document(result) if as_json else text(result))
    if not passed:
        raise typer.Exit(1)


def exit_code(hazards: Iterable[str], *, passed: bool) -> int:
    """Say which hazards a run has had; return 1 if there are any, or unless it ``passed``, else 0."""
    for hazard in hazards:
        say(f"refsim: {hazard}")
        passed = False
    return 0 if passed else 1


def check_out(out: Path | None) -> None:
    """Raise ``UserError`` unless results can be written to the folder of ``--out``, if one is named."""
    if out is not None:
        output.check_folder(out, "--out")
