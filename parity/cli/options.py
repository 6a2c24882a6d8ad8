"""Options that several commands of parity have; ``refsim.cli.options`` has those that refsim's have as well."""

from __future__ import annotations

from typing import Annotated

import typer

from refsim.cli.options import complete

Suite = Annotated[
    str,
    typer.Option(
        help="smoke or full (smoke and more seeds, families, sizes).",
        autocompletion=complete(lambda: ("smoke", "full")),
    ),
]
Expr = Annotated[
    str | None, typer.Option("-k", metavar="EXPR", help="Parts of case ids with and, or, not and parentheses.")
]
Part = Annotated[
    str | None, typer.Option(metavar="I/N", help="Part I of N, to run it on several machines or in several processes.")
]
Backend = Annotated[str, typer.Option(help="Who computes: cpu, ttnn-mock, ttnn-sim or ttnn-device.")]
