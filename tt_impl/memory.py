"""``python -m tt_impl.memory``: does a whole SD3.5 transformer fit a mesh? Asked of ttnn's allocator, no hardware."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from refsim.errors import RefsimError
from refsim.options import RunOptions
from tt_impl.launch import Outcome, execute

MIB = 1024 * 1024
PROGRAM = "tt_impl.pipelines.memory:program"


def plan(
    model: dict[str, Any] | str,
    mesh: str,
    parallel: str,
    *,
    pixels: int = 1024,
    optable: bool = False,
    run: Callable[..., Outcome] = execute,
) -> Outcome:
    """The report of ``tt_impl.pipelines.memory`` for a named model or a config.json, as ``Outcome.report``.

    Args:
        run: ``tt_impl.launch.execute``, or that of a warm ``Worker``.

    Raises:
        UserError: no such mesh, model or configuration.
        RankFailure: ttnn refused; where the model does not fit, its message has the byte counts.
    """
    return run(
        PROGRAM,
        RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock"),
        {"model": model, "pixels": pixels},
        values=False,
        optable=optable,
    )


def text(outcome: Outcome, title: str) -> str:
    """A few lines for people, sizes in MiB of one device."""
    lines = [f"{title}: {outcome.ran}"]
    for number, group in enumerate(outcome.report["groups"]):
        shape = "x".join(map(str, group["shape"]))
        lines += [
            f"  cfg group {number} on {shape}, {group['parameters'] / 1e9:.2f} G parameters, MiB per device:",
            f"    DRAM      {_mib(group['total'])}",
            f"    weights   {_mib(group['weights'])}",
            f"    buffers   {_mib(group['persistent'] - group['weights'])}  of collectives, kept",
            f"    transient {_mib(group['peak'] - group['persistent'])}  at the peak, in {group['peak_op']}",
            f"    peak      {_mib(group['peak'])}",
            f"    headroom  {_mib(group['headroom'])}  largest free block {group['largest_free'] / MIB:.1f}",
        ]
    if outcome.resources is not None:
        peak = outcome.resources["peak_l1"]
        lines.append(f"  peak L1 of a core: {peak['bytes']} B in {peak['op']}")
    return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / MIB:9.1f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tt_impl.memory", description=__doc__)
    parser.add_argument("--model", default="large", help="a published model, its family left out or not")
    parser.add_argument("--mesh", default="t3k")
    parser.add_argument("--parallel", default="cfg2_sp2_tp2")
    parser.add_argument("--pixels", type=int, default=1024, help="side of the square image")
    parser.add_argument("--optable", action="store_true", help="also the operations' circular buffers and peak L1")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        outcome = plan(given.model, given.mesh, given.parallel, pixels=given.pixels, optable=given.optable)
    except RefsimError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if given.json:
        asked = {"mesh": given.mesh, "parallel": given.parallel}
        found: dict[str, Any] = (
            asked | {"ran": outcome.ran, "wall_s": round(time.monotonic() - started, 1)} | outcome.report
        )
        if given.optable:
            found |= {"resources": outcome.resources, "optable": outcome.optable}
        print(json.dumps(found, indent=2))
    else:
        print(text(outcome, f"SD3.5-{given.model} {given.parallel}, {given.pixels} px"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
