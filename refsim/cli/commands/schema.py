"""``refsim schema``: what ``--json`` of a command holds, as JSON Schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from refsim.base.errors import UserError


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="Words of a command, such as: parity run. None: all that have one.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the reference.")] = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json."""
    from refsim.cli import result_schemas

    if markdown:
        typer.echo(result_schemas.markdown(), nl=False)
        return
    words = " ".join(command or ())
    if not words:
        typer.echo("\n".join(result_schemas.RESULTS))
    elif words in result_schemas.RESULTS:
        typer.echo(json.dumps(result_schemas.schema_of(words), indent=2))
    else:
        raise UserError(f"'{words}' prints no JSON; choose one of {', '.join(result_schemas.RESULTS)}.")
