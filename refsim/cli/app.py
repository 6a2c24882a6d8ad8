"""The command tree. Everything heavy is imported when its command runs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from refsim.base.errors import UserError
from refsim.cli.commands.bench import bench
from refsim.cli.commands.calibrate import calibrate
from refsim.cli.commands.explain import explain
from refsim.cli.commands.generate import generate
from refsim.cli.commands.kernels import kernels
from refsim.cli.commands.memory import memory
from refsim.cli.commands.meshes import meshes
from refsim.cli.commands.ops import ops
from refsim.cli.commands.plan import plan
from refsim.cli.commands.report import report
from refsim.cli.commands.run import run
from refsim.cli.commands.schema import schema
from refsim.cli.commands.time import time
from refsim.cli.commands.ttnn import ttnn

app = typer.Typer(
    name="refsim",
    help="Run parallel diffusion-transformer inference on CPU, one process per mesh device, and judge it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command()(meshes)
app.command()(run)
app.command()(generate)
app.command()(explain)
app.command()(time)
app.command()(plan)
app.command()(calibrate)
app.command()(memory)
app.command()(ops)
app.command()(kernels)
app.command()(schema)
app.add_typer(ttnn, name="ttnn", help="Anyone's TTNN programs on meshes that are not there.")
app.add_typer(bench, name="bench", help="Benchmarks of this machine, and predictions beside measurements.")
app.add_typer(report, name="report", help="Tables and plots of predicted performance.")


def _print_version(asked: bool) -> None:
    if asked:
        import refsim

        typer.echo(f"refsim {refsim.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, those of failing ranks too.")] = False,
) -> None:
    if debug:
        os.environ["REFSIM_DEBUG"] = "1"


def _check_own(*names: str) -> None:
    """Raise ``UserError`` for a package that does not lie beside refsim: these names are not refsim's alone."""
    beside = Path(__file__).resolve().parents[2]
    for name in names:
        spec = importlib.util.find_spec(name)
        where = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if where != beside / name / "__init__.py":
            found = f"another at '{where}'" if where else "none"
            raise UserError(
                f"refsim's package '{name}' is hidden, Python finds {found}; give refsim an environment of its own."
            )


def mount() -> None:
    """Add the commands of the packages above refsim, once.

    Raises:
        UserError: another package of the same name is found in place of one of them.
    """
    if any(group.name == "parity" for group in app.registered_groups):
        return
    _check_own("parity", "tt_impl", "benchmarks")
    from parity.cli.coverage import coverage
    from parity.cli.parity import app as parity_app

    parity_app.command()(coverage)
    app.add_typer(parity_app, name="parity", help="Judge the simulator against code nobody here wrote.")
    from parity.cli.faults import app as faults_app
    from parity.cli.history import app as history_app
    from parity.cli.schedules import app as schedules_app

    app.add_typer(faults_app, name="faults", help="Put known mistakes in and see that the gate catches them.")
    app.add_typer(schedules_app, name="schedules", help="Same bits under every schedule; which buffer policy is safe.")
    app.add_typer(history_app, name="history", help="Results by commit: what became worse, and when.")
