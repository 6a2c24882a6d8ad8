"""``refsim calibrate``: the timing model's parameters of a user's own chips, from profiler files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    trace: Annotated[list[Path], typer.Option("--trace", help="A profiler file (CSV); may be given several times.")],
    out: Annotated[Path, typer.Option(help="File for the parameters, which `--calibration` of time and plan takes.")],
    arch: Annotated[str | None, typer.Option(help="Of files that name no chip: wormhole_b0 or blackhole.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit the timing model to profiler files of your own chips, and say which parameters they do not determine."""
    from refsim.files import output
    from refsim.timing.fit import calibrate as calibrations

    output.check_target(out, "--out")
    made = calibrations.fit(trace, arch)
    output.write(out, output.document(made).encode() + b"\n")
    typer.echo(output.document(made) if as_json else calibrations.text(made))
