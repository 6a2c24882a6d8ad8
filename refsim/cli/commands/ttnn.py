"""``refsim ttnn``: anyone's TTNN programs on meshes that are not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli.answer import answer, say
from refsim.files import output

ttnn = typer.Typer(no_args_is_help=True, add_completion=False)
Fallback = Annotated[
    bool, typer.Option("--fallback", help="Let ttnn's golden functions answer operations without a rule.")
]


@ttnn.callback()
def _group() -> None:
    """Run anyone's TTNN program without hardware: ttnn builds it, values are computed beside it."""


@ttnn.command(context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGUMENTS]...", help="A Python file and its arguments, or - for stdin."),
    ] = None,
    mesh: opt.Mesh = "t3k",
    module: Annotated[str | None, typer.Option("-m", "--module", help="Run a module instead of a file.")] = None,
    fallback: Fallback = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if the program has findings that are errors.")] = False,
    strict_kinds: Annotated[
        str,
        typer.Option(metavar="KINDS", help="Fail for findings of these kinds only, separated by commas; notes, too."),
    ] = "",
    allow: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Findings of this kind fail nothing; may be repeated.")
    ] = None,
    numerics: opt.Numerics = "off",
    values: Annotated[
        str,
        typer.Option(
            help="off computes no values: shapes, memory and ttnn's checks alone; what is read are zeros.",
            autocompletion=opt.complete(lambda: ("on", "off")),
        ),
    ] = "on",
    weights: Annotated[
        str,
        typer.Option(
            metavar="random[:SEED]",
            help="Models and safetensors files from their configuration or header alone, with random weights.",
        ),
    ] = "",
    report: Annotated[Path | None, opt.output(help="Write memory, collectives and time into this folder.")] = None,
    as_json: Annotated[
        bool, opt.output("--json", help="Print the verdict as JSON; the program prints to stderr.")
    ] = False,
) -> int:
    """Run a TTNN script on a mock mesh as it is, with values; exit code 1 if it fails or crashes."""
    from tt_impl.harness import script
    from tt_impl.harness.checks.strict import Strict, check_kinds
    from tt_impl.mock.hardware import check_values

    words = list(program or ())
    if not words and module is None:
        raise UserError("there is nothing to run; give a script and its arguments, -m MODULE, or - for stdin.")
    if module is not None:
        asked = script.Program(module, tuple(words), module=True)
    else:
        code = sys.stdin.read() if words[0] == "-" else None
        asked = script.Program(words[0], tuple(words[1:]), code=code)
    fails = Strict.of(strict_kinds or "all") if strict or strict_kinds else None
    allowed = tuple(check_kinds(allow or ()))
    computes = check_values(values)
    verdict = script.run(
        asked, script.Options(mesh, fallback, report, as_json, fails, allowed, numerics, computes, weights)
    )
    if as_json:
        typer.echo(output.document(verdict))
    else:
        say(f"refsim: {script.text(verdict)}")
    return 1 if verdict.outcome == "failed" else 0


@ttnn.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The older report (.json of --report), or a script.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The newer one.")],
    mesh: opt.Mesh = "t3k",
    pcc: Annotated[float, typer.Option(min=-1, max=1, help="Values that correlate so well are the same; 1: bits.")] = 1,
    memory: Annotated[float, typer.Option(min=0, help="Relative change of a peak that counts as none.")] = 0.0,
    time: Annotated[float, typer.Option(min=0, help="The same of the predicted time.")] = 0.0,
    fallback: Fallback = False,
    as_json: opt.AsJson = False,
) -> int:
    """Say where two versions of a program differ first: values, shapes, collectives, memory, predicted time.

    Exit code 1 if they do.
    """
    from tt_impl.harness.comparison.diff import Tolerance
    from tt_impl.harness.comparison.diff import diff as compared
    from tt_impl.harness.comparison.versions import report_of

    comparison = compared(report_of(a, mesh, fallback), report_of(b, mesh, fallback), Tolerance(pcc, memory, time))
    typer.echo(output.document(comparison) if as_json else comparison.text())
    return 0 if comparison.same else 1


@ttnn.command()
def coverage(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Python files, or folders with some.")],
    as_json: opt.AsJson = False,
) -> None:
    """Say of every ttnn operation that sources name what the mock knows: a rule, ttnn's golden function, nothing.

    Nothing is run. Exit code 1 if the mock does not know one of them by itself.
    """
    from tt_impl.harness.reports.coverage import Coverage
    from tt_impl.harness.reports.coverage import coverage as covered

    result = covered(paths)
    answer(result, Coverage.text, as_json=as_json, passed=result.complete)
