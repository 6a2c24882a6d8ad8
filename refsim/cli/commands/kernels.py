"""``refsim kernels``: the drafter's TT-Lang kernels on the functional simulator, judged against torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli.answer import answer, check_out, say


def kernels(
    real: Annotated[bool, typer.Option("--real", help="The drafter's own shapes; takes minutes.")] = False,
    out: Annotated[Path | None, opt.output(help="Folder for kernels.json and kernels.md.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run the TT-Lang kernels on tt-lang-sim and judge them; exit code 1 if a case fails or a kernel is refused."""
    for package, name in (("ttl", "tt-lang-sim"), ("ttnn", "ttnn")):
        if package not in sys.modules and importlib.util.find_spec(package) is None:  # once imported, it has no spec
            raise UserError(f"the kernels need {name}, which is not installed; pip install 'refsim[ttnn,kernels]'.")
    from tt_impl.kernels.check import run_checks, write

    check_out(out)
    checked = run_checks(real=real, progress=say)
    if out is not None:
        write(checked, out)
    counts = f"{checked.cases - checked.failed} passed, {checked.failed} failed"
    answer(checked, lambda _: counts, as_json=as_json, passed=not checked.failed)
