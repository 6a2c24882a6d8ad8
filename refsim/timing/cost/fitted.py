"""The numbers that ``calibrate.py`` has fitted (``calibrated.json``), and those of users' own chips."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from refsim.base.errors import UserError
from refsim.base.schema import read_object
from refsim.timing.cost.ops import Params

FITTED = Path(__file__).with_name("calibrated.json")


@cache
def get_params(arch: str) -> Params:
    """Return the fitted parameters of an architecture."""
    return Params(**json.loads(FITTED.read_text())["params"][arch])


@cache
def get_host_seconds() -> float:
    """Return the seconds of one picture that the host takes (see ``stages.py``)."""
    return json.loads(FITTED.read_text())["host_seconds"]


@dataclass(frozen=True)
class Calibration:
    """Parameters of a user's own chips, as ``refsim calibrate`` writes them; ``version``: the file and its bytes."""

    arch: str
    params: Params
    version: str

    def of(self, arch: str) -> Params:
        """Return the parameters; ``UserError`` if they are of another architecture."""
        if arch != self.arch:
            raise UserError(f"the calibration {self.version} is of {self.arch}; the mesh has {arch}.")
        return self.params


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in a file; ``UserError`` if it holds none."""
    document = read_object(path)
    names = {f.name for f in fields(Params)}
    params = document.get("params")
    if not isinstance(params, dict) or set(params) != names or not isinstance(document.get("arch"), str):
        raise UserError(f"{path} is no calibration; write one with `refsim calibrate --trace FILE.csv --out {path}`.")
    for name, value in params.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise UserError(f"{path} has {name} = {value!r}; write a number of 0 or more.")
    version = f"{path.name}@{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    return Calibration(document["arch"], Params(**{name: float(value) for name, value in params.items()}), version)
