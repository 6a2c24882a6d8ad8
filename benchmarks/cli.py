"""``refsim bench``: benchmarks of this machine, and predictions beside measurements of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Benchmarks of this machine, and predictions beside measurements of others."""


@app.command()
def draft(
    out: Annotated[Path, typer.Option(help="Folder for the two tables.")] = Path("reports/draft"),
    predicted_only: Annotated[bool, typer.Option("--predicted-only", help="Leave measured.md as it is.")] = False,
) -> None:
    """The DFlash drafter by context length: predicted beside the document's figures, and measured on CPU."""
    from benchmarks.draft import write
    from refsim.output import check_folder

    check_folder(out, "--out")
    write(out, lambda text: typer.echo(text, err=True), measured=not predicted_only)
