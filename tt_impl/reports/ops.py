"""What a transformer's program does on a device, operation by operation, without hardware: ``refsim ops``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.models.registry import find, published, spec_of
from tt_impl.run.installed import ttnn_package
from tt_impl.run.launch import Outcome, execute

MIB = 1024 * 1024
PROGRAM = "tt_impl.pipelines.ops:program"
_HEAD = f"  {'count':>5}  {'operation':46} {'fuses':26} {'read':>8} {'written':>8} {'links':>8} {'cores':>5} {'L1':>6}"


def check_program(model: str) -> None:
    """Raise ``UserError`` for a model without a program in TTNN, naming those that have one."""
    name, described = find(model)
    if spec_of(described).ttnn is None:
        able = ", ".join(p for p, m in published().items() if spec_of(m).ttnn is not None)
        raise UserError(f"{name} has no program in TTNN; choose one of {able}.")


def count(
    model: str,
    options: RunOptions,
    *,
    size: str | None = None,
    batch: int = 1,
    run: Callable[..., Outcome] = execute,
) -> Outcome:
    """The report of ``tt_impl.pipelines.ops`` for a published transformer or a checkpoint folder.

    Args:
        options: the mesh, the factors and a ttnn backend.
        size: one of the model's sizes; the largest one if left out.
        batch: prompts that a cfg group computes at a time.
        run: ``tt_impl.run.launch.execute``, or that of a warm ``Worker``.

    Raises:
        UserError: ttnn is not installed; no such model, size or configuration, or the model has no program in TTNN.
        RankFailure: ttnn refused.
    """
    ttnn_package()
    check_program(model)
    return run(PROGRAM, options, {"model": model, "size": size, "batch": batch}, values=False)


def text(outcome: Outcome) -> str:
    """Tables for people, one per kind of block: sizes in MiB of one device, L1 in KiB of the fullest core."""
    report = outcome.report
    parts = [f"{report['model']} {report['size']}, batch {report['batch']}: {outcome.ran}"]
    for part in [*report["blocks"], report["around"]]:
        times = f" (x {part['count']})" if part["count"] > 1 else ""
        parts += ["", f"{part['kind']}{times}: {_sums(part['totals'])}", _HEAD]
        names = [row["op"] for row in part["operations"]]
        repeated = map(operator.eq, names, ["", *names])
        parts += [_line(*both) for both in zip(part["operations"], repeated, strict=True)]
    return "\n".join(parts)


def _sums(totals: dict[str, Any]) -> str:
    return (
        f"{totals['operations']} operations, {totals['fused']} fused, {totals['collectives']} with links; "
        f"MiB read {totals['read_bytes'] / MIB:.1f}, written {totals['written_bytes'] / MIB:.1f}, received "
        f"{totals['link_bytes'] / MIB:.1f}; L1 peak {totals['l1_bytes'] / 1024:.0f} KiB in {totals['l1_op']}"
    )


def _line(row: dict[str, Any], repeated: bool) -> str:
    """One row; the device operation is named where the row before has the same name: one call may become several."""
    name = row["op"].removeprefix("ttnn.").removeprefix("experimental.").removeprefix("transformer.")
    if repeated:
        name = f"{name} [{row['device_op'].removesuffix('DeviceOperation')}]"
    read, written, links = (row[key] * row["count"] / MIB for key in ("read_bytes", "written_bytes", "link_bytes"))
    return (
        f"  {row['count']:5}  {name:46} {' + '.join(row['fuses']):26} {read:8.2f} {written:8.2f} {links:8.2f} "
        f"{row['cores']:5} {(row['cb_bytes'] + row['l1_bytes']) / 1024:6.0f}"
    )
