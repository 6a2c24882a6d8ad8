"""``refsim calibrate``: the timing model's parameters of a user's own chips, from profiler files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refsim.cli import options as opt
from refsim.cli.answer import answer
from refsim.files import output


def calibrate(
    trace: Annotated[list[Path], typer.Option("--trace", help="A profiler file (CSV); may be given several times.")],
    out: Annotated[Path, opt.output(help="File for the parameters, which `--calibration` of time and plan takes.")],
    arch: opt.Arch = None,
    as_json: opt.AsJson = False,
) -> None:
    """Fit the timing model to profiler files of your own chips, and say which parameters they do not determine."""
    from refsim.timing.fit import calibrate as calibrations

    output.check_target(out, "--out")
    made = calibrations.fit(trace, arch)
    output.write(out, output.document(made).encode() + b"\n")
    answer(made, calibrations.text, as_json=as_json)
