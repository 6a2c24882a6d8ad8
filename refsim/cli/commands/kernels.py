"""``refsim kernels``: the drafter's TT-Lang kernels on the functional simulator, judged against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def kernels(
    real: Annotated[bool, typer.Option("--real", help="The drafter's own shapes; takes minutes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for kernels.json and kernels.md.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")] = False,
) -> None:
    """Run the TT-Lang kernels on tt-lang-sim and judge them; exit code 1 if a case fails or a kernel is refused."""
    import importlib.util
    import sys

    from refsim.base.errors import UserError
    from refsim.files import output

    if "ttl" not in sys.modules and importlib.util.find_spec("ttl") is None:  # once imported, it has no spec
        raise UserError("the kernels need tt-lang-sim, which is not installed; pip install 'refsim[kernels]'.")
    from tt_impl.kernels.check import run_checks, write

    if out is not None:
        output.check_folder(out, "--out")
    found = run_checks(real=real, progress=lambda line: typer.echo(line, err=True))
    if out is not None:
        write(found, out)
    passed = found.cases - found.failed
    typer.echo(output.document(found) if as_json else f"{passed} passed, {found.failed} failed")
    if found.failed:
        raise typer.Exit(1)
