"""Ranges of predictions: where they come from, how they add up, what they cannot tell apart; the order of systems."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from refsim.base.mesh import get_mesh
from refsim.cli.app import app
from refsim.files import output
from refsim.files.keys import as_json
from refsim.models import registry
from refsim.timing.fit import published, spread
from refsim.timing.predict import ranges
from refsim.timing.report import ranking
from refsim.timing.report.ranking import Compared, Run
from tests.json_output import loads

BH, WH = "blackhole", "wormhole_b0"
KEPT = {
    "classes": {
        BH: {
            "matmul": {"low": 0.9, "high": 1.3, "shapes": 9, "fitted": False},
            "norm": {"low": 0.6, "high": 1.4, "shapes": 9, "fitted": True},
        }
    },
    "pipelines": [
        *({"model": "a", "arch": BH, "ratio": 1 + i / 10} for i in range(5)),
        *({"model": "b", "arch": WH, "ratio": 2.0} for _ in range(5)),
    ],
    "loops": [{"model": "c", "arch": BH, "ratio": 1.5}],
}


@pytest.fixture
def kept(monkeypatch):
    ranges.get_spread.cache_clear()
    monkeypatch.setattr(ranges, "_stored", lambda: KEPT)
    yield
    ranges.get_spread.cache_clear()


def test_classes_err_apart_and_what_is_no_class_does_not_err(kept):
    found = ranges.forward({"matmul": 10.0, "norm": 10.0, "host": 5.0}, BH)
    assert found.low == pytest.approx(25 - math.hypot(1, 4)) and found.high == pytest.approx(25 + math.hypot(3, 4))
    assert found.fitted == ("norm",)
    assert ranges.forward({"matmul": 10.0, "norm": 0.0}, BH).fitted == ()


def test_stages_err_apart():
    found = ranges.together([(10.0, ranges.Range(7.0, 14.0)), (10.0, ranges.Range(6.0, 13.0, ("norm",)))])
    assert (found.low, found.high, found.fitted) == (pytest.approx(15), pytest.approx(25), ("norm",))


def test_pipelines_of_the_judged_model_have_no_part_and_few_pipelines_are_joined_by_the_other_chips(kept):
    assert ranges.pipeline_ratios(BH) == [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert ranges.pipeline_ratios(BH, without="a") == [*[2.0] * 5, 1.5]
    narrow = ranges.Range(9.0, 11.0)
    again = 10 * ranges.repeated()
    assert ranges.widened(10.0, narrow, BH).high == pytest.approx(10 + math.hypot(4.5, again))
    alone = ranges.widened(10.0, narrow, BH, without="a")
    assert (alone.low, alone.high) == (
        pytest.approx(10 - math.hypot(1, again)),
        pytest.approx(10 + math.hypot(10, again)),
    )


def test_a_pipeline_measured_again_lies_within_some_percent():
    """sqrt(12.43 / 11.58), sqrt(158.1 / 136.27), sqrt(293.265 / 252.3): 1.036, 1.077 and 1.078."""
    assert ranges.repeated() == pytest.approx((0.036 + 0.077 + 0.078) / 3, abs=1e-3)


def test_what_two_runs_have_in_common_says_nothing_of_their_difference(kept):
    assert not ranges.distinguishable({"matmul": 10.0}, {"matmul": 10.0}, BH)
    assert ranges.distinguishable({"matmul": 10.0, "norm": 50.0}, {"matmul": 9.0, "norm": 50.0}, BH)
    assert not ranges.distinguishable({"matmul": 30.0, "norm": 10.0}, {"matmul": 10.0, "norm": 29.0}, BH)


def test_a_prediction_lies_in_its_range():
    assert ranges.percentiles([1.2, 1.3, 1.4]) == (1.0, pytest.approx(1.38))
    assert ranges.percentiles([0.5]) == (0.5, 1.0)


def test_what_was_fitted_on_counts_only_where_too_little_else_is_left():
    own, other, fitted = (
        [(arch, "norm", fit, r)] * 5 for arch, fit, r in ((WH, False, 2), (BH, False, 3), (WH, True, 1))
    )
    assert spread.of([*own, *other, *fitted])[WH]["norm"]["high"] == 2
    assert spread.of([*own[:4], *other, *fitted])[WH]["norm"]["high"] == 3
    alone = spread.of([*own[:2], *fitted])[WH]["norm"]
    assert alone["shapes"] == 7 and alone["fitted"]


def test_stored_pipelines_are_the_published_ones():
    """Else ``python -m refsim.timing.fit.spread`` has not been run since a figure was added."""
    kept = json.loads(ranges.SPREADS.read_text())
    rows = kept["pipelines"]
    stored = {(r["model"], r["size"], r["mesh"], r["parallel"]): (r["published"], r["arch"]) for r in rows}
    assert stored == {key: (f.seconds, get_mesh(key[2]).arch) for key, f in registry.figures().items()}
    loops = [(r["model"], tuple(r["latent"]), r["mesh"], r["published"]) for r in kept["loops"]]
    assert loops == [(u.model, u.latent, u.mesh, round(u.seconds, 4)) for u in published.UNSEEN_LOOPS]


def test_a_configuration_that_does_not_fit_has_no_seconds_unless_asked_for():
    words = ["time", "sd35-large", "--mesh", "n150"]
    refused = CliRunner().invoke(app, [*words, "--json"])
    assert refused.exit_code == 1 and "does not fit" in refused.stderr and "--force" in refused.stderr
    assert loads("time", refused.stdout)["seconds"] is None
    forced = CliRunner().invoke(app, [*words, "--force"])
    assert forced.exit_code == 0 and "DOES NOT FIT" in forced.stdout and "with a chance of 80 %" in forced.stdout
    assert "partly from operations that parameters were fitted on" in forced.stdout


def test_predictions_say_their_range_units_wiring_and_calibration():
    words = ["plan", "sd35-large", "--mesh", "n300", "--attention", "ring", "--json"]
    plans = loads("plan", CliRunner().invoke(app, words, catch_exceptions=False).stdout)["plans"]
    for row in plans:
        for key in ("seconds", "total_seconds"):
            found = row[f"{key}_range"]
            assert found["low"] < row[key] < found["high"] and found["share"] == 0.8
        assert row["units"]["seconds"] == "s" and len(row["calibration"]) == 8
    assert (
        plans[0]["distinguishable_from_first"] and plans[0]["total_seconds_range"]["high"] > plans[0]["total_seconds"]
    )


def run(mesh: str, measured: float, predicted: float, model: str = "m", high: float = 99.0) -> Run:
    return Run(model, "1024", mesh, "sp2", WH, measured, predicted, predicted * 0.9, high, "somebody")


def test_tau_counts_pairs_in_the_right_order_less_those_in_the_wrong_one():
    """Four systems, one swap of neighbours: five of six pairs are right."""
    four = [run("a", 40, 41), run("b", 30, 19), run("c", 20, 20), run("d", 10, 9), run("a", 5, 6, model="n")]
    pairs = ranking.systems(four)
    assert len(pairs) == 6 and [(c.first[0], c.second[0]) for c in pairs if not c.right] == [("b", "c")]
    assert ranking.tau(pairs) == pytest.approx(4 / 6)
    assert ranking.tau([Compared("m", "1024", "a", "b", 2.0, 1.0, "")]) == 0, "predicted alike is no order"
    assert math.isnan(ranking.tau([]))


def test_the_tables_say_what_is_inside_and_what_is_wrong():
    known = [run("quietbox", 12, 10, high=13), run("galaxy", 6, 4, high=5)]
    wrong = Compared("m", "1024", "galaxy sp2 Linear", "galaxy sp2 Ring", 1.2, 0.9, "somebody")
    found = ranking.document(known, [wrong], known[1:])
    assert [row.mesh for row in found.others] == ["galaxy"] and found.other_chips[WH]["inside"] == 0
    assert found.chips[WH]["inside"] == 1 and found.chips[WH]["narrow"] == 2
    assert found.chips[WH]["geometric_mean"] == pytest.approx(math.sqrt(10 / 12 * 4 / 6))
    assert found.kendall_tau == {"m": 1.0} and not found.wirings[0].right
    assert loads("bench accuracy", output.document(found)) == as_json(found)
    assert "Other figures" not in ranking.markdown(known, [wrong])
    text = ranking.markdown(known, [wrong], known[1:])
    assert text.count("| 6 | 4.00 | 3.60 to 5.00 | no |") == 2
    assert "| 1.20 | 0.90 | no | somebody |" in text and "| 6 | 4.00 | 3.60 to 5.00 | no |" in text


def test_published_pairs_are_run_as_they_were(monkeypatch):
    asked = []

    def estimate(name, mesh, parallel, *, size, execution):
        asked.append((name, mesh.name, execution.topology.value, execution.fuse))
        seconds = 3.0 if execution.topology.value == "Linear" else 2.0
        return SimpleNamespace(seconds=seconds, total_seconds=seconds + 1)

    monkeypatch.setattr(ranking.estimates, "estimate", estimate)
    found = {c.model: c for c in ranking.wirings()}
    assert {("sd35-large", "bh-qb-1x4", "Ring", False), ("wan22-t2v-a14b", "galaxy", "Linear", False)} <= set(asked)
    assert found["sd35-large"].predicted == pytest.approx(4 / 3) and found["wan22-t2v-a14b"].predicted == 1.5
    assert all(c.right for c in found.values())
