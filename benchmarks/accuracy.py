"""Error of the timing model per operation, on calibration and on validation data apart.

    refsim bench accuracy TRACES_DIR [--shapes]

Per arch and op class: distinct shapes, bias (median signed error), MAPE, median and worst error, the error weighted by
measured time, and the vendor's own ideal model (PM IDEAL) beside it where a trace has it. Validation data were looked
at to find which effects the model lacked; every constant of those comes from elsewhere, named where it stands.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

from refsim.timing.cost.device_ops import price
from refsim.timing.cost.fitted import get_params
from refsim.timing.fit import measured
from refsim.timing.fit.measured import Measured

_TABLES = {"matmul": "MinimalMatmulOp", "collective": "Collective", "sdpa": "RingJointSDPA"}
"""What lines of published tables are called, by class."""


def errors(samples: list[Measured]) -> list[tuple[Measured, float]]:
    """(sample, predicted / measured - 1) of each."""
    return [(s, price(s.op, get_params(s.op.arch)).ns / s.ns - 1) for s in samples]


def summary(found: list[tuple[Measured, float]]) -> dict[str, float]:
    size = [abs(e) for _, e in found]
    time = [s.ns * s.count for s, _ in found]
    vendor = [abs(s.ideal_ns / s.ns - 1) for s, _ in found if s.ideal_ns]
    return {
        "shapes": len(size),
        "bias": median(e for _, e in found),
        "mape": mean(size),
        "median": median(size),
        "worst": max(size),
        "by_time": sum(a * b for a, b in zip(size, time, strict=True)) / sum(time),
        "vendor_mape": mean(vendor) if vendor else float("nan"),
    }


def table(samples: list[Measured]) -> list[tuple[str, str, dict[str, float]]]:
    found, rows = errors(samples), []
    for arch in ("wormhole_b0", "blackhole"):
        of_arch = [f for f in found if f[0].op.arch == arch]
        for kind in ("matmul", "conv", "norm", "elementwise", "layout", "collective", "sdpa"):
            part = [f for f in of_arch if f[0].kind == kind]
            if part:
                rows.append((arch, kind, summary(part)))
            for case in sorted({s.use for s, _ in part if s.use}):
                rows.append((arch, f"- {case}", summary([f for f in part if f[0].use == case])))
        if of_arch:
            rows.append((arch, "all", summary(of_arch)))
    return rows


def print_tables(folder: Path, *, shapes: bool = False) -> None:
    """Print the errors on the calibration and the validation files of a folder, ``shapes`` one by one too."""
    for name, samples in (("calibration", measured.calibration(folder)), ("validation", measured.validation(folder))):
        heads = " ".join(f"{h:>8}" for h in ("bias", "MAPE", "median", "worst", "by time", "vendor"))
        print(f"\n{name}\n{'arch':12} {'class':28} shapes {heads}")
        for arch, kind, row in table(samples):
            numbers = " ".join(f"{row[k]:8.1%}" for k in ("bias", "mape", "median", "worst", "by_time", "vendor_mape"))
            print(f"{arch:12} {kind:28} {row['shapes']:6} {numbers}")
        for s, e in errors(samples) if shapes and name == "calibration" else ():
            name = f"{_TABLES[s.kind]} {s.use}" if s.use else s.op.name
            shapes = s.sizes or [t.shape for t in s.op.inputs[:2]]
            print(f"{e:+7.1%} {s.ns / 1000:9.1f} us x{s.count:<4} {name} {shapes}")
