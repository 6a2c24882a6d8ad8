"""Fit the parameters of a user's own chips to profiler files: ``refsim calibrate --trace FILE.csv --out my_chip.json``.

    distinct operations of all files ---> four in five are fitted on  ---> parameters
                                    \\-> one in five, by a hash of     ---> errors on what nothing was fitted on
                                        what it is, is held out

The same operation in two files is one, and is on one side only. A parameter is fitted if it moves enough operations;
the others keep the stored value, and are named.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import pandas as pd

from refsim.base.errors import UserError
from refsim.files.keys import Document, Key
from refsim.timing.cost import device_ops
from refsim.timing.cost.device_ops import DeviceOp, Unpriced
from refsim.timing.cost.fitted import get_params
from refsim.timing.cost.ops import Params
from refsim.timing.fit import calibration, search
from refsim.timing.read import profile

HELD_OUT = 5
"""One distinct operation of so many is held out."""
MOVES = 0.02
"""An operation says something of a parameter if half or twice the value moves its price by this share at least."""
LEAST = 3
"""Operations that must say something of a parameter."""
BOUNDS = calibration.BOUNDS | {"dram_share": (0.05, 1.0), "gap_ns": (0.0, 1e6)}


@dataclass
class HeldOut:
    """Errors on distinct operations that nothing was fitted on; null if there are none."""

    shapes: int
    mape_before: float | None
    mape_after: float | None


@dataclass
class Fit(Document):
    """What was found.

    Attributes:
        determined: Fitted parameters, with how many operations say something of each.
        kept: parameters that too few operations say anything of; they have the stored values.
        shapes, held_out: distinct operations fitted on, and not.
        before, after: MAPE on those held out, with the stored and with the found parameters; NaN if there are none.
        unclassified: names without a price, with how many distinct operations.
    """

    KEYS = ("arch", "rounded", "determined", "kept", "files", "shapes", "errors", "unclassified")

    arch: str
    params: Params
    files: Annotated[list[str], Key("from")]
    determined: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    shapes: Annotated[int, Key("fitted_shapes")] = 0
    held_out: int = 0
    before: float = math.nan
    after: float = math.nan
    unclassified: dict[str, int] = field(default_factory=dict)

    @property
    def rounded(self) -> Annotated[dict[str, float], Key("params")]:
        """The parameters to four digits."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self.params).items()}

    @property
    def errors(self) -> Annotated[HeldOut, Key("held_out")]:
        """On operations that were held out."""
        return HeldOut(self.held_out, *(None if math.isnan(mape) else mape for mape in (self.before, self.after)))


def fit(paths: list[Path], arch: str | None = None) -> Fit:
    """Return the parameters that profiler files determine.

    Args:
        arch: of files that do not name their chip.

    Raises:
        UserError: two files are the same, they are of several chips, or nothing in them has a price.
    """
    _refuse_duplicates(paths)
    rows = pd.concat([profile.read(path, arch) for path in paths], ignore_index=True)
    if len(found := sorted(rows["arch"].unique())) != 1:
        named = " and ".join(found) or "no chip at all"
        raise UserError(f"the files are of {named}; calibrate one architecture at a time.")
    stored = get_params(found[0])
    pairs, loose = [], Counter[str]()
    for row in profile.distinct(rows).itertuples():
        op = device_ops.of_row(row)
        try:
            device_ops.price(op, stored)
        except Unpriced:
            loose[op.name] += 1
        else:
            pairs.append((op, float(row.ns)))
    if not pairs:
        raise UserError(
            "no operation in these files has a price; see `refsim bench accuracy FILE.csv` for the reasons."
        )
    kept_out = [pair for pair in pairs if is_held_out(pair[0])]
    fitted_on = [pair for pair in pairs if not is_held_out(pair[0])] or pairs
    made = Fit(found[0], stored, [path.name for path in paths], unclassified=dict(loose))
    made.determined = determined(stored, fitted_on)
    made.kept = [name for name in asdict(stored) if name not in made.determined and name != "gap_ns"]
    start = {name: getattr(stored, name) for name in made.determined}
    best = search.least(lambda values: _loss(replace(stored, **values), fitted_on), start, BOUNDS)
    made.params = replace(stored, **best)
    _fit_gap(made, rows)
    made.shapes, made.held_out = len(fitted_on), len(kept_out)
    made.before, made.after = (_mape(params, kept_out) for params in (stored, made.params))
    return made


def _fit_gap(made: Fit, rows: pd.DataFrame) -> None:
    """Take the 10th percentile of the gaps between operations that were replayed from a trace, as predictions are of;
    where the host dispatches one by one, gaps are the host's.
    """
    gaps = rows.loc[rows["traced"] & (rows["gap_ns"] > 0), "gap_ns"]
    if len(gaps) < LEAST:
        made.kept.append("gap_ns")
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


def determined(params: Params, pairs: list[tuple[DeviceOp, float]]) -> dict[str, int]:
    """Return the parameters that enough operations say something of, with how many."""
    found = {}
    for name, (low, high) in BOUNDS.items():
        value = getattr(params, name)
        tried = [replace(params, **{name: min(max(value * factor, low), high)}) for factor in (0.5, 2.0)]
        says = 0
        for op, _ in pairs:
            ns = device_ops.price(op, params).ns
            says += any(abs(device_ops.price(op, other).ns / ns - 1) > MOVES for other in tried)
        if says >= LEAST:
            found[name] = says
    return found


def _loss(params: Params, pairs: list[tuple[DeviceOp, float]]) -> float:
    return sum(abs(math.log(device_ops.price(op, params).ns / ns)) for op, ns in pairs)


def _mape(params: Params, pairs: list[tuple[DeviceOp, float]]) -> float:
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
    if made.kept:
        lines.append(f"Not determined by these files, left as stored: {', '.join(made.kept)}.")
    if made.unclassified:
        named = ", ".join(f"{count} x {name}" for name, count in made.unclassified.items())
        lines.append(f"Without a price and left out: {named}.")
    return "\n".join(lines)
