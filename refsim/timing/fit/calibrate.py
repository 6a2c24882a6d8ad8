"""Fit ``Params`` to measured operations: those of a user's own chips, and those that are stored.

    refsim calibrate --trace FILE.csv --out my_chip.json        a user's chips, from profiler files
    python -m refsim.timing.fit.calibrate TRACES_DIR            ``calibrated.json``, from what ``measured.py`` has

    distinct operations of all files ---> four in five are fitted on  ---> parameters
                                    \\-> one in five, by a hash of     ---> errors on what nothing was fitted on
                                        what it is, is held out

The same operation in two files is one, and is on one side only. A parameter is fitted if it moves enough operations;
the others keep the stored value, and are named.

The stored ones are fitted to the two CLIP text encoder traces, ttnn's default matmuls of tech_reports/GEMM_FLOPS as
kernel time (from the table's device utilisation), and the linears of ``published.py``. Taken, not fitted: Wormhole's
unpacker (46 cycles a tile, 24 a step: minimax_h3_wormhole/ff1.md) and the DRAM share of ``published.PASSES``. SDPA's
two parameters are fitted after the others, on published ring attention of 128-wide heads (MiniMax-H3,
Wan2.2-TI2V-5B). ``host_seconds`` is what Flux.1's published seconds leave at no steps beyond its encoders and decoder
here, the mean of two meshes; no end-to-end figure of a model that is judged here is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import pandas as pd

from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.files.keys import Document, Key
from refsim.models import registry
from refsim.timing.cost import device_ops
from refsim.timing.cost.chips import get_chip
from refsim.timing.cost.device_ops import Unpriced
from refsim.timing.cost.fitted import FITTED, get_params
from refsim.timing.cost.ops import Params
from refsim.timing.fit import measured, published, search
from refsim.timing.fit.measured import Measured
from refsim.timing.predict import replay, stages
from refsim.timing.read import profile
from refsim.timing.read.device_op import DeviceOp

HELD_OUT = 5
"""One distinct operation of so many is held out."""
MOVES = 0.02
"""An operation says something of a parameter if half or twice the value moves its price by this share at least."""
LEAST = 3
"""Operations that must say something of a parameter."""
HOST_FROM = ("flux1-schnell", "flux1-dev")
"""Published models that differ in their steps alone: what two figures of a mesh leave at no steps is not denoising."""
_TAKEN = {"wormhole_b0": {"unpack_cycles": 46.0, "step_cycles": 24.0}, "blackhole": {}}
_SDPA_START = [
    {"softmax_cycles": softmax, "chunk_cycles": chunk}
    for softmax in (10.0, 30.0, 100.0, 300.0)
    for chunk in (1e3, 3e3, 1e4, 3e4)
]
"""Many, because the two trade against each other: from one, single steps end in a valley."""
_FITTED = {
    "launch_ns": (3000.0, 200.0, 2e4),
    "unpack_cycles": (30.0, 8, 64),
    "step_cycles": (24.0, 1, 100),
    "page_ns": (100.0, 10, 400),
    "block_ns": (1000.0, 50, 1e4),
    "relay_gbps": (12.0, 3, 60),
    "tile_ns": (1200.0, 50, 1e4),
}
"""Where a parameter's search begins, and its bounds."""
_START = {name: start for name, (start, _, _) in _FITTED.items()}
BOUNDS = {name: (low, high) for name, (_, low, high) in _FITTED.items()}
BOUNDS |= {"softmax_cycles": (1, 2000), "chunk_cycles": (100, 1e5), "dram_share": (0.05, 1.0), "gap_ns": (0.0, 1e6)}
Pair = tuple[DeviceOp, float]
"""An operation and its ns."""


@dataclass
class Validation:
    """Errors on distinct operations that nothing was fitted on; null if there are none."""

    shapes: int
    mape_before: float | None
    mape_after: float | None


@dataclass
class Fit(Document):
    """What was found.

    Attributes:
        determined: Fitted parameters, with how many operations say something of each.
        undetermined: parameters that too few operations say anything of; they have the stored values.
        shapes, held_out: distinct operations fitted on, and not.
        before, after: MAPE on those held out, with the stored and with the found parameters; NaN if there are none.
        unclassified: names without a price, with how many distinct operations.
        left_out: rows and files that were not fitted on, by reason.
    """

    KEYS = ("arch", "rounded", "determined", "undetermined", "files", "shapes", "errors", "unclassified", "left_out")

    arch: str
    params: Params
    files: Annotated[list[str], Key("from")]
    determined: dict[str, int] = field(default_factory=dict)
    undetermined: Annotated[list[str], Key("kept")] = field(default_factory=list)
    shapes: Annotated[int, Key("fitted_shapes")] = 0
    held_out: int = 0
    before: float = math.nan
    after: float = math.nan
    unclassified: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def rounded(self) -> Annotated[dict[str, float], Key("params")]:
        """The parameters to four digits."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self.params).items()}

    @property
    def errors(self) -> Annotated[Validation, Key("held_out")]:
        """On operations that were held out."""
        return Validation(self.held_out, *(None if math.isnan(mape) else mape for mape in (self.before, self.after)))


def fit(paths: list[Path], arch: str | None = None) -> Fit:
    """Return the parameters that profiler files determine.

    Args:
        arch: of files that do not name their chip.

    Raises:
        UserError: two files are the same, they are of several chips, or nothing in them has a price.
    """
    _refuse_duplicates(paths)
    tables, left_out = profile.read_all(paths, arch)
    rows = pd.concat(tables, ignore_index=True)
    if len(archs := sorted(rows["arch"].unique())) != 1:
        named = " and ".join(archs) or "no chip at all"
        raise UserError(f"the files are of {named}; calibrate one architecture at a time.")
    stored = get_params(archs[0])
    pairs = []
    loose = Counter[str]()
    for each in measured.of_rows(rows):
        try:
            device_ops.price(each.op, stored)
        except Unpriced:
            loose[each.op.name] += 1
        else:
            pairs.append((each.op, float(each.ns)))
    if not pairs:
        raise UserError(
            "no operation in these files has a price; see `refsim bench accuracy FILE.csv` for the reasons."
        )
    unseen = [pair for pair in pairs if is_held_out(pair[0])]
    fitted_on = [pair for pair in pairs if not is_held_out(pair[0])] or pairs
    files = [table["source"].iloc[0] for table in tables]
    made = Fit(archs[0], stored, files, unclassified=dict(loose), left_out=dict(left_out))
    made.determined = determined(stored, fitted_on)
    made.undetermined = [name for name in asdict(stored) if name not in made.determined and name != "gap_ns"]
    start = {name: getattr(stored, name) for name in made.determined}
    best = search.least(lambda values: _loss(replace(stored, **values), fitted_on), start, BOUNDS)
    made.params = replace(stored, **best)
    _fit_gap(made, rows)
    made.shapes = len(fitted_on)
    made.held_out = len(unseen)
    made.before, made.after = (_mape(params, unseen) for params in (stored, made.params))
    return made


def _fit_gap(made: Fit, rows: pd.DataFrame) -> None:
    """Take the 10th percentile of the gaps between operations that were replayed from a trace, as predictions are of;
    where the host dispatches one by one, gaps are the host's.
    """
    gaps = rows.loc[rows["traced"] & (rows["gap_ns"] > 0), "gap_ns"]
    if len(gaps) < LEAST:
        made.undetermined.append("gap_ns")
        return
    made.determined["gap_ns"] = len(gaps)
    made.params = replace(made.params, gap_ns=float(gaps.quantile(0.1)))


def _refuse_duplicates(paths: list[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); give a file of ttnn's profiler.") from error
        if digest in seen:
            raise UserError(f"{path} is the same as {seen[digest]}; give each file once.")
        seen[digest] = path


def is_held_out(op: DeviceOp) -> bool:
    """Whether an operation is kept out of the fit, by what it is: the same one always, whatever file it stands in."""
    return int(hashlib.sha256(repr(op).encode()).hexdigest(), 16) % HELD_OUT == 0


def determined(params: Params, pairs: list[Pair]) -> dict[str, int]:
    """Return the parameters that enough operations say something of, with how many."""
    counts = {}
    for name, (low, high) in BOUNDS.items():
        value = getattr(params, name)
        tried = [replace(params, **{name: min(max(value * factor, low), high)}) for factor in (0.5, 2.0)]
        says = 0
        for op, _ in pairs:
            ns = device_ops.price(op, params).ns
            says += any(abs(device_ops.price(op, other).ns / ns - 1) > MOVES for other in tried)
        if says >= LEAST:
            counts[name] = says
    return counts


def _loss(params: Params, pairs: list[Pair]) -> float:
    return sum(abs(math.log(device_ops.price(op, params).ns / ns)) for op, ns in pairs)


def _mape(params: Params, pairs: list[Pair]) -> float:
    errors = []
    for op, ns in pairs:
        with suppress(Unpriced):
            errors.append(abs(device_ops.price(op, params).ns / ns - 1))
    return sum(errors) / len(errors) if errors else math.nan


def text(made: Fit) -> str:
    """Return what was found as lines."""
    lines = [f"{made.arch}, fitted on {made.shapes} distinct operations of {', '.join(made.files)}."]
    if made.held_out:
        errors = f"MAPE {made.after:.1%}, with the stored parameters {made.before:.1%}"
        lines.append(f"On {made.held_out} operations held out: {errors}.")
    else:
        lines.append("No operation was held out: the files have too few, so that the error on others is not known.")
    stored = get_params(made.arch)
    for name, count in made.determined.items():
        lines.append(
            f"{name:15} {getattr(made.params, name):10.4g} (stored {getattr(stored, name):.4g}; {count} say so)"
        )
    if made.undetermined:
        lines.append(f"Not determined by these files, left as stored: {', '.join(made.undetermined)}.")
    if made.unclassified:
        named = ", ".join(f"{count} x {name}" for name, count in made.unclassified.items())
        lines.append(f"Without a price and left out: {named}.")
    if made.left_out:
        lines.append(f"Not counted: {profile.counted(Counter(made.left_out))}.")
    return "\n".join(lines)


def fit_stored(arch: str, measured: list[Measured]) -> Params:
    """Return the parameters with the least mean |log(predicted / measured)| over distinct shapes, by pattern search."""
    gaps = sorted(m.gap_ns for m in measured if m.gap_ns)
    fixed = _TAKEN[arch] | {
        "gap_ns": gaps[len(gaps) // 10] if gaps else 0.0,
        "dram_share": published.dram_share(arch, get_chip(arch).dram_gbps),
    }
    attention = [(m.op, m.ns) for m in measured if m.kind == "sdpa"]
    others = [(m.op, m.ns) for m in measured if m.kind not in ("collective", "sdpa")]

    def loss(values: dict[str, float], pairs: list[Pair]) -> float:
        return _loss(Params(**{**_SDPA_START[0], **fixed, **values}), pairs)

    start = {name: value for name, value in _START.items() if name not in fixed}
    fixed |= search.least(lambda values: loss(values, others), start, BOUNDS)
    ends = [search.least(lambda values: loss(values, attention), start, BOUNDS) for start in _SDPA_START]
    fixed |= min(ends, key=lambda values: loss(values, attention))
    return Params(**fixed)


def host_seconds(params: Params) -> dict[str, float]:
    """Return the host's share of one picture by mesh: Flux.1's published seconds at no steps, less its encoders and
    decoder as predicted. Schnell and dev run the same transformer, 4 and 28 times.
    """
    by_mesh: dict[str, dict[int, float]] = {}
    for (model, _, mesh, _), figure in registry.figures().items():
        if model in HOST_FROM:
            by_mesh.setdefault(mesh, {})[figure.run.steps or 0] = figure.seconds
    return {
        mesh: published.seconds_without_steps(by_steps) - around_seconds(HOST_FROM[0], mesh, params)
        for mesh, by_steps in by_mesh.items()
    }


def around_seconds(model: str, mesh: str, params: Params) -> float:
    """Return the seconds of a model's encoders and decoder at its largest size, without the host's."""
    known = registry.published()[model]
    machine = replay.machine(get_mesh(mesh), params)
    by_stage = stages.around(known, list(known.sizes.values())[-1], machine)
    return sum(seconds for stage, seconds in by_stage.items() if stage != "host")


def main(folder: Path) -> None:
    """Write ``calibrated.json``."""
    params = {}
    for arch in ("wormhole_b0", "blackhole"):
        of_arch = [m for m in measured.calibration(folder) if m.op.arch == arch]
        params[arch] = {name: float(f"{value:.4g}") for name, value in asdict(fit_stored(arch, of_arch)).items()}
        errors = [abs(device_ops.price(m.op, Params(**params[arch])).ns / m.ns - 1) for m in of_arch]
        print(arch, params[arch], f"median error {median(errors):.1%} of {len(of_arch)} shapes")
    host = host_seconds(Params(**params["wormhole_b0"]))
    print(f"host seconds by mesh {host}")
    written = {
        "params": params,
        "from": measured.CALIBRATION,
        "host_seconds": float(f"{sum(host.values()) / len(host):.3g}"),
    }
    FITTED.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
