"""Predicted device time of any program, operation by operation, with its range; nothing here is measured.

Prices come from refsim's timing model (``refsim.timing.cost.device_ops``), the same that is compared with profiler
files of real devices; the range of a price is how far such measurements lay from predictions of its class, 10th to 90th
percentile (``refsim.timing.predict.ranges``). An operation without a formula has no price: it is named and counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from refsim.timing.cost.device_ops import Unpriced, price
from refsim.timing.cost.fitted import get_params
from refsim.timing.predict.ranges import get_spread
from refsim.timing.read.device_op import DeviceOp, Wires
from refsim.timing.read.tensors import OpTensor
from tt_impl.harness.reports.prediction import Prediction
from tt_impl.harness.reports.schedule import schedule
from tt_impl.harness.watch.meter import Launch, Meter
from tt_impl.trace.graph import Operand

if TYPE_CHECKING:
    from tt_impl.harness.watch.session import Session

SOURCE = (
    "predicted by refsim's timing model, not measured; range: 10th to 90th percentile of measured / predicted of the "
    "operation's class on public profiler files of its chip (refsim.timing.predict.ranges)"
)
_DTYPES = {
    "BFLOAT16": "bf16",
    "FLOAT32": "fp32",
    "BFLOAT8_B": "bfp8",
    "BFLOAT4_B": "bfp4",
    "UINT32": "uint32",
    "INT32": "uint32",
    "UINT16": "bf16",
}
"""Names of the timing model for what has as many bytes."""
_GALAXY_GRIDS = ([8, 9], [12, 10])


def predict(meter: Meter) -> list[Prediction]:
    """Price all device operations, in order."""
    return [_predict(launch, meter.meshes[launch.mesh]) for launch in meter.launches]


def _predict(launch: Launch, mesh: dict[str, Any]) -> Prediction:
    wires, assumed = _wires(launch, mesh)
    try:
        op = DeviceOp(
            launch.program.name,
            mesh["arch"],
            launch.layout.cores if launch.layout else 0,
            launch.program.fidelity or "",
            tuple(_tensor(t) for t in launch.program.inputs),
            tuple(_tensor(t) for t in launch.program.outputs),
            launch.program.attributes + (launch.options["config"] or ""),
            wires,
            _is_causal(launch),
        )
        cost = price(op)
    except Unpriced as reason:
        return Prediction(launch, unpriced=str(reason))
    spread = get_spread(cost.kind, mesh["arch"])
    return Prediction(
        launch,
        cost.ns,
        cost.ns * spread.low,
        cost.ns * spread.high,
        cost.kind,
        cost.bound,
        cost.measured,
        tuple(assumed) if cost.kind == "collective" else (),
    )


def _is_causal(launch: Launch) -> bool:
    """Say whether attention is causal: ttnn's is unless it is told otherwise; joint attention never is."""
    causal = launch.options["causal"]
    return launch.op == "ttnn.transformer.scaled_dot_product_attention" if causal is None else bool(causal)


def _wires(launch: Launch, mesh: dict[str, Any]) -> tuple[Wires, list[str]]:
    """Return what a collective runs on, and what of it the program left to ttnn."""
    axis, links, ring = (launch.options[name] for name in ("axis", "links", "ring"))
    assumed = []
    if links is None:
        assumed.append("1 link")
        links = 1
    if isinstance(links, list | tuple):
        links = links[0]
    if ring is None:
        ring = "Topology::Ring" in launch.program.attributes
        assumed.append("Ring" if ring else "Linear")
    size = math.prod(mesh["shape"]) if not isinstance(axis, int) else mesh["shape"][axis]
    return Wires(size, int(links), ring, mesh["grid"] in _GALAXY_GRIDS), assumed


def _tensor(operand: Operand) -> OpTensor:
    if operand.dtype not in _DTYPES:
        raise Unpriced(f"dtype {operand.dtype}")
    memory = f"DEV_0_{operand.memory}"
    return OpTensor(operand.padded, _DTYPES[operand.dtype], memory, operand.layout, operand.logical[2])


def summary(session: Session, predictions: list[Prediction]) -> dict[str, Any]:
    """Return totals as JSON values.

    ``ns``, ``low_ns``, ``high_ns``: from the first program to the end of the last one, see
    :mod:`tt_impl.harness.reports.schedule`; ``gap_ns`` lies between two as under a trace. ``busy_ns``: of each device.
    ``by_kind``: ns by class, of all launches; ``unpriced``: device operations without a price, why, how often.
    ``by_class_only``: priced operations that no measurement was at hand for.
    """
    events = session.log.events
    meshes = session.meter.meshes
    plans = {bound: schedule(events, predictions, meshes, bound) for bound in ("ns", "low_ns", "high_ns")}
    by_kind: dict[str, float] = defaultdict(float)
    for p in predictions:
        if not p.unpriced:
            by_kind[p.kind] += p.ns
    unpriced = Counter((p.launch.program.name, p.unpriced) for p in predictions if p.unpriced)
    unpriced += Counter((event.op, "a TT-Lang kernel") for event in events if event.op.startswith("ttl."))
    by_class_only = Counter(p.launch.program.name for p in predictions if not p.unpriced and not p.measured)
    return {
        "source": SOURCE,
        **{bound: round(plan.ns, 1) for bound, plan in plans.items()},
        "launches": len(predictions),
        "priced": sum(not p.unpriced for p in predictions),
        "gap_ns": max((get_params(about["arch"]).gap_ns for about in meshes.values()), default=0.0),
        "busy_ns": {str(device): round(busy, 1) for device, busy in sorted(plans["ns"].busy.items())},
        "by_kind": {kind: round(ns, 1) for kind, ns in sorted(by_kind.items(), key=lambda item: -item[1])},
        "unpriced": [
            {"device_op": name, "reason": reason, "count": count} for (name, reason), count in unpriced.most_common()
        ],
        "by_class_only": [{"device_op": name, "count": count} for name, count in by_class_only.most_common()],
    }
