"""The device operations of a program as a profiler's CSV, which tt-perf-report and refsim's own reader open.

One row per launch, on the first device of its mesh. ``DEVICE KERNEL DURATION [ns]`` is predicted, as the first
attribute of every row says; it is empty where there is no price, and such rows come out without a time.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from refsim.timing.cost.fitted import get_params
from tt_impl.harness.reports.prediction import Prediction
from tt_impl.harness.watch.meter import Meter
from tt_impl.trace.graph import Operand

_INPUTS = 8
_OUTPUTS = 3
_TENSOR = (*(f"{axis}_PAD[LOGICAL]" for axis in "WZYX"), "LAYOUT", "DATATYPE", "MEMORY")
COLUMNS = (
    *("OP CODE", "OP TYPE", "GLOBAL CALL COUNT", "DEVICE ID", "DEVICE ARCH", "ATTRIBUTES", "MATH FIDELITY"),
    *("CORE COUNT", "AVAILABLE WORKER CORE COUNT", "HOST START TS", "HOST END TS", "OP TO OP LATENCY [ns]"),
    *("DEVICE FW DURATION [ns]", "DEVICE KERNEL DURATION [ns]"),
    *(f"INPUT_{i}_{part}" for i in range(_INPUTS) for part in _TENSOR),
    *(f"OUTPUT_{i}_{part}" for i in range(_OUTPUTS) for part in _TENSOR),
    *("PM IDEAL [ns]", "PM COMPUTE [ns]", "PM BANDWIDTH [ns]"),
)


def table(meter: Meter, predictions: list[Prediction]) -> str:
    """Return the text of the file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    clock: dict[int, float] = {}
    for i, p in enumerate(predictions):
        about = meter.meshes[p.launch.mesh]
        device = about["devices"][0]
        gap = get_params(about["arch"]).gap_ns if device in clock else 0.0
        start = clock.get(device, 0.0) + gap
        clock[device] = start + p.ns
        writer.writerow(_row(p, i, about, gap) | {"HOST START TS": round(start), "HOST END TS": round(start + p.ns)})
    return text.getvalue()


def _row(p: Prediction, number: int, about: dict[str, Any], gap: float) -> dict[str, Any]:
    launch = p.launch
    duration = "" if p.unpriced else round(p.ns)
    origin = f"'duration': 'predicted'; 'op': '{launch.op}'; 'line': '{launch.where}'; "
    grid = about["grid"][0] * about["grid"][1]
    if launch.layout is None:
        origin += "'cores': 'not known, the whole grid'; "
    config = f"'program_config': '{launch.options['config']}'; " if launch.options["config"] else ""
    row: dict[str, Any] = {
        "OP CODE": launch.program.name,
        "OP TYPE": "tt_dnn_device",
        "GLOBAL CALL COUNT": (number + 1) * 1024,
        "DEVICE ID": about["devices"][0],
        "DEVICE ARCH": about["arch"],
        "ATTRIBUTES": ("{" + origin + config + f"'attributes': '{launch.program.attributes}'" + "}").replace(",", ";"),
        "MATH FIDELITY": launch.program.fidelity or "",
        "CORE COUNT": launch.layout.cores if launch.layout else grid,
        "AVAILABLE WORKER CORE COUNT": grid,
        "OP TO OP LATENCY [ns]": round(gap),
        "DEVICE FW DURATION [ns]": duration,
        "DEVICE KERNEL DURATION [ns]": duration,
    }
    for i, tensor in enumerate(launch.program.inputs[:_INPUTS]):
        row |= _tensor(f"INPUT_{i}", tensor)
    for i, tensor in enumerate(launch.program.outputs[:_OUTPUTS]):
        row |= _tensor(f"OUTPUT_{i}", tensor)
    return row


def _tensor(name: str, tensor: Operand) -> dict[str, str]:
    sizes = (f"{padded}[{logical}]" for padded, logical in zip(tensor.padded, tensor.logical, strict=True))
    cells = (*sizes, tensor.layout, tensor.dtype, f"DEV_0_{tensor.memory}")
    return {f"{name}_{part}": cell for part, cell in zip(_TENSOR, cells, strict=True)}
