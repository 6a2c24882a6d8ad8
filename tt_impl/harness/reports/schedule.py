"""When the programs of a device run, as predicted: in order on each mesh, and no sooner than the host sends them.

    host      | enqueue a | enqueue b | read a ........| enqueue c
    mesh 1    | a a a a a a a a a a a a |              (the host sends at once, and waits only where it reads back)
    mesh 2                | b b b b b |                | c c c

Two halves of a batch on two submeshes run at once; where the program reads the first one back before it sends the
second one, they do not, and that is seen here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from refsim.timing.cost.fitted import get_params
from tt_impl.harness.reports.prediction import Prediction
from tt_impl.mock.log.events import Event

_READS = frozenset(
    f"ttnn.{name}"
    for name in (
        *("to_torch", "from_device", "synchronize_device", "event_synchronize", "Tensor.cpu", "Tensor.to_torch"),
        *("Tensor.to_numpy", "Tensor.to_list", "Tensor.item", "Tensor.to_torch_with_padded_shape"),
    )
)
"""What makes the host wait for the devices of its tensors, or for all where it has none."""


@dataclass
class Schedule:
    """``starts``: ns, of each prediction; ``ns``: when the last one ends; ``busy``: ns of each device."""

    starts: list[float] = field(default_factory=list)
    ns: float = 0.0
    busy: dict[int, float] = field(default_factory=lambda: defaultdict(float))


def schedule(
    events: Sequence[Event], predictions: Sequence[Prediction], meshes: dict[int, dict[str, Any]], bound: str = "ns"
) -> Schedule:
    """Lay the programs out.

    Args:
        events: of the whole program, in order.
        predictions: of its device operations, in order.
        meshes: as :class:`tt_impl.harness.watch.meter.Meter` has them.
        bound: ``ns``, ``low_ns`` or ``high_ns``.
    """
    result = Schedule()
    free: dict[int, float] = defaultdict(float)
    host = 0.0
    place = 0
    for event in events:
        while place < len(predictions) and predictions[place].launch.event <= event.number:
            p = predictions[place]
            about = meshes[p.launch.mesh]
            took = getattr(p, bound)
            start = max(host, *(free[device] for device in about["devices"]))
            result.starts.append(start)
            result.ns = max(result.ns, start + took)
            gap = 0.0 if p.unpriced else get_params(about["arch"]).gap_ns
            for device in about["devices"]:
                free[device] = start + took + gap
                result.busy[device] += took + gap
            place += 1
        if event.op in _READS and event.options.get("blocking", True):
            waited = [device for use in event.inputs for device in use.devices] or list(free)
            if event.inputs or event.op.endswith("synchronize") or event.op.endswith("synchronize_device"):
                host = max([host, *(free[device] for device in waited)])
    return result
