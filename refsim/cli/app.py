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
from refsim.cli.commands.numerics import numerics
from refsim.cli.commands.ops import ops
from refsim.cli.commands.plan import plan
from refsim.cli.commands.report import report
from refsim.cli.commands.run import run
from refsim.cli.commands.schema import schema
from refsim.cli.commands.time import time
from refsim.cli.commands.ttnn import ttnn

CONTRIBUTORS = "For contributors"
app = typer.Typer(
    name="refsim",
    help="Run parallel diffusion-transformer inference on CPU, one process per mesh device, and judge it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
for command in (run, generate, explain, plan, time, memory, ops, meshes, calibrate, schema):
    app.command()(command)
app.command(rich_help_panel=CONTRIBUTORS)(kernels)
app.add_typer(ttnn, name="ttnn", help="Run anyone's TTNN programs on meshes that are not there, and compare two.")
app.add_typer(numerics, name="numerics", help="Predict what a device's rounding does, and judge a measured PCC by it.")
app.add_typer(
    report, name="report", help="Write predictions, ttnn's memory and all results as tables, plots and one page."
)
app.add_typer(
    bench,
    name="bench",
    help="Measure this machine, and show predictions beside measurements.",
    rich_help_panel=CONTRIBUTORS,
)


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


def _check_packages(*names: str) -> None:
    """Raise ``UserError`` for a package that does not lie beside refsim: these names are not refsim's alone."""
    beside = Path(__file__).resolve().parents[2]
    for name in names:
        spec = importlib.util.find_spec(name)
        where = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if where != beside / name / "__init__.py":
            other = f"another at '{where}'" if where else "none"
            raise UserError(
                f"refsim's package '{name}' is hidden, Python finds {other}; give refsim an environment of its own."
            )


def mount() -> None:
    """Add the commands of the packages above refsim, once.

    Raises:
        UserError: another package of the same name is found in place of one of them.
    """
    if any(group.name == "parity" for group in app.registered_groups):
        return
    _check_packages("parity", "tt_impl", "benchmarks")
    from parity.cli.faults import app as faults
    from parity.cli.history import app as history
    from parity.cli.parity import app as parity
    from parity.cli.schedules import app as schedules

    for group, name, text in (
        (parity, "parity", "Judge the simulator against code nobody here wrote."),
        (faults, "faults", "Put known mistakes in and see that the gate catches them."),
        (schedules, "schedules", "Show that every schedule gives the same bits, and which buffer policy is safe."),
        (history, "history", "Show results by commit: what became worse, and when."),
    ):
        app.add_typer(group, name=name, help=text, rich_help_panel=CONTRIBUTORS)
