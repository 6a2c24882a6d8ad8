"""Whether a whole SD3.5 transformer fits a mesh, asked of ttnn's allocator without hardware: ``refsim memory``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from refsim.options import RunOptions
from tt_impl.installed import ttnn_package
from tt_impl.launch import Outcome, execute

MIB = 1024 * 1024
PROGRAM = "tt_impl.pipelines.memory:program"


def plan(
    model: dict[str, Any] | str,
    options: RunOptions,
    *,
    pixels: int = 1024,
    optable: bool = False,
    run: Callable[..., Outcome] = execute,
) -> Outcome:
    """The report of ``tt_impl.pipelines.memory`` for a named model or a config.json, as ``Outcome.report``.

    Args:
        options: the mesh, the factors and a ttnn backend.
        run: ``tt_impl.launch.execute``, or that of a warm ``Worker``.

    Raises:
        UserError: ttnn is not installed; no such mesh, model or configuration.
        RankFailure: ttnn refused; where the model does not fit, its message has the byte counts.
    """
    ttnn_package()
    return run(
        PROGRAM,
        options,
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


def main() -> None:
    """Become ``refsim memory`` with this process's arguments."""
    sys.stderr.write("refsim: this is called `refsim memory` now; the module works for one version more.\n")
    os.execv(sys.executable, [sys.executable, "-m", "refsim", "memory", *sys.argv[1:]])


if __name__ == "__main__":
    main()
