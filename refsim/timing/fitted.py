"""The numbers that ``calibration.py`` has fitted, as they stand in ``calibrated.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from refsim.timing.ops import Params

FITTED = Path(__file__).with_name("calibrated.json")


@cache
def get_params(arch: str) -> Params:
    """Return the fitted parameters of an architecture."""
    return Params(**json.loads(FITTED.read_text())["params"][arch])


@cache
def get_host_seconds() -> float:
    """Return the seconds of one picture that the host takes (see ``stages.py``)."""
    return json.loads(FITTED.read_text())["host_seconds"]
