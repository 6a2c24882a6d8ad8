"""``refsim time --from ttnn-mock``: the model's program in TTNN, as ttnn builds it, priced beside refsim's reading.

One forward of one cfg group runs on the mock mesh with a block of every kind, on shapes alone; every device operation
that ttnn makes of it is priced by :mod:`tt_impl.harness.reports.cost`, and a block counts as often as the model has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from refsim.base.errors import UserError

if TYPE_CHECKING:
    from refsim.base.options import RunOptions
    from refsim.timing.predict.estimate import Estimate
    from refsim.timing.read.reading import Shape
    from refsim.timing.report.documents import InTtnn


def check(model: str, options: dict[str, Any]) -> None:
    """Raise ``UserError`` where there is no ttnn, no program of the model, or an option that such a program ignores."""
    from tt_impl.reports.ops import check_program
    from tt_impl.run.installed import ttnn_package

    check_program(model)
    ttnn_package()
    if chosen := [option for option, value in options.items() if value]:
        raise UserError(f"--from ttnn-mock prices the program in TTNN as it is written; leave out {chosen[0]}.")


def compare(predicted: Estimate, model: str, shape: Shape, run: Callable[..., Any] | None = None) -> InTtnn:
    """Return the program's seconds beside those of ``predicted``.

    Args:
        run: ``tt_impl.run.launch.execute`` if not given, or that of a warm ``Worker``.
    """
    from refsim.base.options import RunOptions
    from refsim.timing.predict.replay import Ran
    from refsim.timing.report.documents import InTtnn
    from refsim.timing.report.side_by_side import side_by_side
    from tt_impl.run.launch import execute

    options = RunOptions(predicted.mesh, predicted.parallel, dtype="bf16", backend="ttnn-mock")
    arguments = {"model": model, "shape": list(shape)}
    outcome = (run or execute)("refsim.cli.commands.time_ttnn:program", options, arguments, values=False)
    slow = predicted.timeline.slow
    priced = [Ran(**row | {"ns": row["ns"] * slow}) for row in outcome.report["priced"]]
    count = predicted.forwards_per_step * predicted.steps
    classes = side_by_side(predicted.timeline.programs, priced, predicted.machine.params.gap_ns * slow, count)
    seconds = sum(row.ttnn_s for row in classes)
    reference = sum(row.reference_s for row in classes)
    return InTtnn(outcome.ran, seconds, reference, classes, outcome.report["unpriced"])


def program(device: Any, options: RunOptions, *, model: str, shape: list[int]) -> tuple[dict[str, Any], dict]:
    """``priced`` (rows of ``refsim.timing.predict.replay.Ran``) and ``unpriced`` of one forward, no tensors."""
    from refsim.models.registry import find
    from tt_impl.harness.reports.cost import predict
    from tt_impl.harness.watch.meter import Meter
    from tt_impl.mock.log.events import EventLog
    from tt_impl.pipelines.ops import StagedOps, forward
    from tt_impl.trace.intercept import intercepted

    log = EventLog()
    ops = StagedOps(lambda: Meter(log))
    with intercepted(log):
        kinds, _ = forward(device, options, find(model)[1], tuple(shape), 1, ops, again=True)
    priced: list[dict[str, Any]] = []
    unpriced: Counter[tuple[str, str]] = Counter()
    for stage, meter in ops.of.items():
        times = kinds.get(stage, 1)
        for p in predict(meter):
            name = p.launch.program.name
            if p.unpriced:
                unpriced[name, p.unpriced] += times
            else:
                row = {"kind": p.kind, "name": name, "ns": p.ns, "count": times}
                priced.append(row | {"inputs": _inputs(p.kind, [t.padded for t in p.launch.program.inputs])})
    missing = [{"op": op, "reason": reason, "count": count} for (op, reason), count in unpriced.most_common()]
    return {"priced": priced, "unpriced": missing}, {}


def _inputs(kind: str, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shapes as refsim has them: a matmul's weight as (N, K), where ttnn has (K, N)."""
    if kind == "matmul" and len(shapes) > 1:
        *batch, k, n = shapes[1]
        shapes[1] = (*batch, n, k)
    return shapes


def text(row: InTtnn) -> str:
    """Return the table by class, and what makes up the classes that differ."""
    lines = [
        f"\nIts program in TTNN ({row.ran}): {row.seconds:.2f} s beside the reference's "
        f"{row.reference_seconds:.2f} s, priced by the same model.",
        f"{'op class':12} {'reference':>9} {'ttnn':>9} {'ratio':>6}",
    ]
    for compared in row.classes:
        ratio = "-" if compared.ratio is None else f"{compared.ratio:.2f}"
        lines.append(f"{compared.op_class:12} {compared.reference_s:9.3f} {compared.ttnn_s:9.3f} {ratio:>6}")
    for compared in (c for c in row.classes if c.ops):
        lines += ["", f"{compared.op_class}: count in a forward and seconds, reference | ttnn"]
        for op in compared.ops:
            sides = (f"{op[f'{s}count']:5} {op[f'{s}s']:8.3f}" for s in ("reference_", "ttnn_"))
            lines.append(f"  {op['op']:58} {' | '.join(sides)}")
    lines += [f"No price: {u['count']} x {u['op']} a forward ({u['reason']})." for u in row.unpriced]
    return "\n".join(lines)
