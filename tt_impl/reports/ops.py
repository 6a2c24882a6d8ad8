"""What a transformer's program does on a device, operation by operation, without hardware: ``refsim ops``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.keys import Document
from refsim.models.registry import find, published, spec_of
from tt_impl.run.installed import ttnn_package
from tt_impl.run.launch import Outcome, execute

MIB = 1024 * 1024
PROGRAM = "tt_impl.pipelines.ops:program"
_HEAD = f"  {'count':>5}  {'operation':46} {'fuses':26} {'read':>8} {'written':>8} {'links':>8} {'cores':>5} {'L1':>6}"


@dataclass
class Totals:
    """Sums over the operations of a block, bytes of one device.

    Attributes:
        fused: how many of them are.
        collectives: fused ones too.
        link_bytes: that a device receives.
        cores: the most that an operation takes.
        l1_bytes: the most that one takes of the fullest core: circular buffers, tensors and semaphores.
        l1_op: the operation that does.
    """

    operations: int
    fused: int
    collectives: int
    read_bytes: int
    written_bytes: int
    link_bytes: int
    cores: int
    l1_bytes: int
    l1_op: str


@dataclass
class Operation:
    """Bytes of one call on one device; ``count`` calls are alike. See :class:`tt_impl.trace.optable.OpTable`."""

    op: str
    device_op: str
    fidelity: str | None
    fp32_acc: bool | None
    outputs: list[dict[str, Any]]
    l1_bytes: int
    dram_bytes: int
    read_bytes: int
    written_bytes: int
    programs: int
    cores: int
    cb_bytes: int
    inputs: list[list[int]]
    fuses: list[str]
    link_bytes: int
    count: int


@dataclass
class Block:
    """One kind of block, or what is around all of them: how many there are, and the operations of one."""

    kind: str
    count: int
    operations: list[Operation]
    totals: Totals


@dataclass
class Operations(Document):
    """The operations of a transformer; blocks are JSON values, as they come from the process that ran it."""

    mesh: str
    parallel: str
    ran: str
    wall_s: float
    model: str
    size: str
    batch: int
    shape: list[int]
    blocks: list[Block]
    around: Block


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
    """Make the report of ``tt_impl.pipelines.ops`` for a published transformer or a checkpoint folder.

    Args:
        options: the mesh, the factors and a ttnn backend.
        size: one of the model's sizes, or pixels; the largest one if left out.
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
