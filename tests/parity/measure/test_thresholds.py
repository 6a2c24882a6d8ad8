"""Bounds: never above what the acceptance asks for, tightened by measured floors, applied to the last digit."""

import math

import pytest

from parity.cases.kinds import KINDS
from parity.kinds import load, thresholds_for
from parity.measure.thresholds import FROM_FLOOR, MARGIN, calibration, judge, limit_of

CALIBRATED = [("attention", "fp32"), ("attention", "bf16"), ("transformer", "fp32"), ("transformer", "bf16")]


@pytest.mark.parametrize(("kind", "dtype"), [(kind, dtype) for kind in KINDS for dtype in load(kind).thresholds])
def test_a_floor_only_ever_tightens(kind, dtype):
    asked = {t.metric: t.limit for t in load(kind).thresholds[dtype]}
    for t in thresholds_for(kind, dtype):
        assert t.limit <= asked.get(t.metric, math.inf)
        assert t.reason


@pytest.mark.parametrize(("kind", "dtype"), CALIBRATED)
def test_what_has_no_other_bound_has_its_floor(kind, dtype):
    floors = calibration()["floors"][f"{kind} {dtype}"]
    limits = {t.metric: t.limit for t in thresholds_for(kind, dtype)}
    for metric in FROM_FLOOR:
        assert limits[metric] == limit_of(metric, floors[metric])
        assert limits[metric] / floors[metric] == pytest.approx(MARGIN**2 if "one_minus" in metric else MARGIN)


def test_the_stored_floors_say_what_they_were_measured_with():
    made = calibration()["made"]
    assert made["seeds"] >= 16
    assert made["cases"] > 0
    assert {"torch", "diffusers"} <= made["versions"].keys()


def test_the_floor_itself_passes_and_the_margin_does_not():
    bounds = thresholds_for("attention", "fp32")
    floors = {m: v for m, v in calibration()["floors"]["attention fp32"].items() if m in FROM_FLOOR}
    rest = {t.metric: 0.0 for t in bounds if t.metric not in floors}
    assert judge(rest | floors, bounds) == []
    assert len(judge(rest | {m: limit_of(m, v) * 1.001 for m, v in floors.items()}, bounds)) == len(floors)
