"""Write a timeline as Chrome's trace events: one process per device, one thread for compute and one for the fabric."""

from __future__ import annotations

import json
from pathlib import Path

from refsim import output
from refsim.timing.estimate import Estimate

_LANES = {"compute": 0, "fabric": 1}


def events(found: Estimate) -> list[dict]:
    """Return the list that https://ui.perfetto.dev opens; times are in us. Devices run alike, so every track shows
    the same.
    """
    out: list[dict] = []
    for rank in range(found.mesh.num_devices):
        row, column = found.mesh.coord(rank)
        out.append(
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"device {rank} ({row},{column})"}}
        )
        out += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}}
            for lane, tid in _LANES.items()
        ]
        for s in found.timeline.spans:
            if s.kind == "host":
                continue
            out.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": _LANES[s.lane],
                    "name": s.name,
                    "cat": s.kind,
                    "ts": round(s.start / 1000, 3),
                    "dur": round((s.end - s.start) / 1000, 3),
                    "args": {"stage": s.stage, "bound": s.bound},
                }
            )
    return out


def write(found: Estimate, path: Path) -> None:
    content = json.dumps({"traceEvents": events(found), "displayTimeUnit": "ms"})
    output.write(path, content.encode(), "--trace")
