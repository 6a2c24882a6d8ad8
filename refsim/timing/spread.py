"""How far measured operations lie from predictions, by class: ``python -m refsim.timing.spread TRACES_DIR``.

Of every distinct measured operation (those that parameters were fitted on, and those that none was fitted on, a trace
of eight Blackholes with collectives among them) the ratio measured / predicted is taken;
``spread.json`` keeps the 10th and the 90th percentile of each class. A prediction times these two is its range: four
in five operations like the measured ones lie in it.
"""

from __future__ import annotations

import json
import statistics
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from refsim.timing import device_ops, measured
from refsim.timing.chips import get_chip
from refsim.timing.fitted import get_params

KEPT = Path(__file__).with_name("spread.json")


@dataclass(frozen=True)
class Spread:
    """``low`` and ``high``: measured / predicted of the 10th and the 90th percentile of ``shapes`` operations."""

    low: float
    high: float
    shapes: int


@cache
def get_spread(kind: str) -> Spread:
    """Return the spread of a class: matmul, conv, norm, elementwise, layout, collective or sdpa."""
    return Spread(**json.loads(KEPT.read_text())["classes"][kind])


UNSEEN = "bh_8xp150_deepseek_v3_d_p.csv"
"""A trace that no parameter was fitted on."""


def of(samples: list[measured.Sample], profiled: list[tuple[device_ops.DeviceOp, float]]) -> dict:
    """Return what is kept in ``spread.json``."""
    ratios: dict[str, list[float]] = {}
    for op, ns in profiled:
        with suppress(device_ops.Unpriced):
            priced = device_ops.price(op)
            ratios.setdefault(priced.kind, []).append(ns / priced.ns)
    for s in samples:
        predicted = measured.predict(get_chip(s.arch), get_params(s.arch), s).ns
        ratios.setdefault(s.kind, []).append(s.ns / predicted)
    classes = {}
    for kind, found in sorted(ratios.items()):
        deciles = statistics.quantiles(found, n=10, method="inclusive")
        classes[kind] = {"low": round(deciles[0], 3), "high": round(deciles[-1], 3), "shapes": len(found)}
    return {
        "classes": classes,
        "from": [*measured.CALIBRATION[:4], *measured.VALIDATION, UNSEEN],
    }


def main(folder: Path) -> None:
    samples = [*measured.calibration(folder), *measured.validation(folder)]
    found = of(samples, device_ops.profiled(folder / UNSEEN))
    KEPT.write_text(json.dumps(found, indent=2) + "\n")
    for kind, row in found["classes"].items():
        print(f"{kind:12} {row['low']:6.2f} to {row['high']:6.2f} of the prediction ({row['shapes']} shapes)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
