"""Bounds that follow from rounding, stored by case; faults beside them. The session numerics runs the mock itself."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from parity.faults import hidden
from parity.faults.hidden import Hidden, Judged
from parity.kinds import thresholds_for
from parity.measure import rounding
from parity.measure.rounding import Bound, is_error, rounded
from parity.rounding import bounds
from parity.rounding.bounds import with_weights
from parity.run.ttnn import TTNNRunner
from refsim.base.errors import UserError
from refsim.base.options import WEIGHTS_DTYPES
from refsim.cli.app import app
from refsim.files.output import document
from tests.json_output import loads

USUAL = thresholds_for("ttnn_block", "bf16")
FAULTS = hidden.draw(4, 2, seed=0)
CASE = FAULTS[0].case


def test_a_bound_is_the_worst_seed_times_the_margin():
    alike = Bound.of("one_minus_pcc", [1.0e-4, 1.1e-4, 1.05e-4], "fast")
    assert (alike.limit, alike.margin) == (2.2e-4, 2.0)
    assert "1e-04" not in alike.reason and "0.0001 to 0.00011 predicted by numerics fast over 3 seeds" in alike.reason
    assert Bound.of("rel_rmse", [0.01, 0.01], "fast").margin == 1.41  # 1 - PCC is its square
    spread = Bound.of("one_minus_pcc", [1e-5, 1e-4, 1e-3], "fast")
    assert spread.margin == 1000 and "three spreads" in spread.reason


def test_bounds_of_errors_are_replaced_and_counts_stay():
    judged = {t.metric: t for t in rounded(USUAL, {"one_minus_pcc": Bound(0.5, 2.0, "why")})}
    assert (judged["one_minus_pcc"].limit, judged["one_minus_pcc"].reason) == (0.5, "why")
    assert judged.keys() == {"one_minus_pcc"} | {t.metric for t in USUAL if not is_error(t)}
    assert judged["comm_unexplained"].limit == 0 and judged["non_finite"].limit == 0


def test_stored_bounds_judge_with_numerics_only(monkeypatch):
    monkeypatch.setattr("parity.run.ttnn.stored", lambda: {CASE.id: {"one_minus_pcc": Bound(0.25, 2.0, "why")}})
    with_numerics, without = (TTNNRunner("ttnn-mock", numerics=level) for level in ("fast", "off"))
    assert next(t for t in with_numerics.thresholds(CASE) if t.metric == "one_minus_pcc").limit == 0.25
    assert without.thresholds(CASE) == thresholds_for(CASE.kind, CASE.dtype)


def test_every_stored_bound_has_a_margin_and_a_reason():
    for name, of_case in rounding.stored().items():
        for metric, bound in of_case.items():
            assert bound.margin > 1 and "seeds" in bound.reason, (name, metric)


def test_what_the_command_of_bounds_prints():
    made = bounds.Bounds("fast", [1, 2], {CASE.id: {"rel_rmse": vars(Bound(0.1, 2.0, "x"))}}, "rounding.json")
    assert loads("numerics bounds", document(made))["cases"][CASE.id]["rel_rmse"]["limit"] == 0.1


def test_bounds_of_one_more_case_join_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "STORED", tmp_path / "rounding.json")
    first = {"a": {"rel_rmse": Bound(0.1, 2.0, "x")}, "b": {"rel_rmse": Bound(0.2, 2.0, "x")}}
    rounding.STORED.write_text(rounding.as_stored(first, {"seeds": [1]}))
    cases = json.loads(rounding.as_stored({"b": {"rel_rmse": Bound(0.3, 2.0, "y")}}, {}))["cases"]
    assert {name: case["rel_rmse"]["limit"] for name, case in cases.items()} == {"a": 0.1, "b": 0.3}


def test_the_draw_depends_on_its_seed_alone():
    assert hidden.draw(4, 2, seed=0) == FAULTS
    assert len({fault.case.id for fault in FAULTS}) <= 2
    assert [fault.id for fault in hidden.draw(4, 2, seed=1)] != [fault.id for fault in FAULTS]


def test_the_cases_of_the_session_have_bounds():
    """Session `numerics` draws 40 faults in 8 cases; a corpus that has changed needs bounds of other ones."""
    drawn = {with_weights(fault.case, dtype).id for fault in hidden.draw(40, 8, seed=0) for dtype in WEIGHTS_DTYPES}
    assert drawn <= rounding.stored().keys()


@pytest.mark.parametrize(
    ("metrics", "by"),
    [
        ({"one_minus_pcc": 1e-3, "rel_rmse": 0.5}, "pcc"),
        ({"one_minus_pcc": 1e-5, "rel_rmse": 0.5}, "error"),
        ({"one_minus_pcc": 1e-5, "rel_rmse": 0.01, "comm_unexplained": 1}, "count"),
        ({"one_minus_pcc": 1e-5, "rel_rmse": 0.01}, ""),
    ],
)
def test_what_catches_a_fault(metrics, by):
    judged = rounded(USUAL, {"one_minus_pcc": Bound(1e-4, 2.0, ""), "rel_rmse": Bound(0.02, 2.0, "")})
    assert hidden.caught_by({"comm_unexplained": 0, "non_finite": 0} | metrics, judged) == by


def test_a_case_without_bounds_is_refused_with_the_command_that_makes_them(monkeypatch):
    monkeypatch.setattr(hidden, "stored", dict)
    with pytest.raises(UserError, match=f"refsim numerics bounds --corpus -k {CASE.id}"):
        hidden.run(FAULTS, dtypes=["bf16"])


def test_the_table_counts_by_dtype_and_names_what_hides():
    rows = [
        Judged("bf16", "c", "", "", 1e-4, 3e-4),
        Judged("bf16", "c", "far", "pcc", 1e-1, 3e-4),
        Judged("bf16", "c", "named", "refused", None, 3e-4),
        Judged("bfp4_b", "c-weights_bfp4_b", "", "pcc", 9e-2, 4e-2),
        Judged("bfp4_b", "c-weights_bfp4_b", "far", "", 2e-2, 4e-2),
    ]
    result = Hidden("fast", 0, 118, rows)
    assert [each.case for each in result.false_alarms] == ["c-weights_bfp4_b"]
    assert loads("numerics hidden", document(result))["judged"][1]["by"] == "pcc"
    text = hidden.text(result)
    assert "2 faults in 1 cases, drawn by seed 0 of the 118" in text
    plain = " ".join(text.split())
    assert "| bf16 | 2 | 1 | 1 | 0 | 0 | 0 | 0 of 1 |" in plain
    assert "| bfp4_b | far | c | 2.0e-02 | 4.0e-02 |" in plain


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bounds", "-k", "no_such_case"], "no case of suite"),
        (["bounds", "--corpus", "-k", "no_such_case"], "no case that has an error to bound"),
        (["hidden", "--weights-dtype", "bf15"], "choose of bf16, bfp8_b, bfp4_b"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(words, says):
    result = CliRunner().invoke(app, ["numerics", *words])
    assert says in " ".join(str(result.exception or result.output).split())


def test_weights_of_another_dtype_make_another_case():
    other = bounds.with_weights(CASE, "bfp4_b")
    assert other.id == f"{CASE.id}-weights_bfp4_b" and bounds.with_weights(CASE, "bf16") == CASE
    assert other.layout.options(other.dtype, backend="ttnn-mock").weights_dtype == "bfp4_b"
    assert bounds.usual(other) == bounds.usual(CASE)
