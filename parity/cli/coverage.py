"""``refsim parity coverage``: how many lines of the programs the parity cases execute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parity.cli.options import Backend, Expr, Suite
from refsim.cli import options as opt
from refsim.cli.answer import answer, check_out, say

FILES = {
    "cpu": ["refsim/parallel", "refsim/ccl", "refsim/layers", "refsim/models", "refsim/pipelines"],
    "ttnn-mock": ["tt_impl/parallel", "tt_impl/layers", "tt_impl/models"],
}
"""What computes on each backend."""
Files = Annotated[
    list[str] | None,
    typer.Option(help="Files, folders or patterns, such as refsim/parallel; may be repeated. Default: what computes."),
]


def coverage(
    files: Files = None,
    suite: Suite = "smoke",
    expr: Expr = None,
    backend: Backend = "cpu",
    least: Annotated[float, typer.Option(min=0, max=100, help="Percent of the lines that must be executed.")] = 0.0,
    out: Annotated[Path | None, opt.output(help="Folder for coverage.json, coverage.md and the map of lines.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run cases and count the lines of functions that they execute, in every process; exit code 1 below --least.

    What is left out: lines that run when a file is imported, docstrings, and `raise`. Lines that no right run gets to
    are counted apart as well: of models that every run refuses, and of branches that only a `raise` leaves.
    """
    from parity.mutation import coverage as report
    from parity.mutation.measure import Asked, measured
    from parity.mutation.tree import copied, files_under

    asked = Asked(files_under(files or FILES.get(backend, FILES["ttnn-mock"])), suite, expr, backend)
    check_out(out)
    with copied(asked.files) as tree:
        line_map = measured(
            asked,
            tree,
            out and out / "lines.json",
            lambda case: say(f"{case.verdict:7} {case.case} {case.seconds:.1f} s"),
        )
        refused = report.timing_only()
        counts = [report.count(file, tree.read(file), line_map.lines(file), file in refused) for file in asked.files]
    if out is not None:
        report.write(asked, counts, line_map, out)
    enough = report.total(counts).percent >= least
    lines = report.Lines.of(asked, counts, line_map)
    answer(lines, lambda _: report.text(counts, line_map), as_json=as_json, passed=enough)
