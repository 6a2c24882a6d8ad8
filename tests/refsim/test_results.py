"""``refsim.load_results``: a DataFrame per kind of record."""

import json
import math

import pytest

import refsim
from refsim.base.errors import UserError


def write(folder, name, value):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def test_every_kind_becomes_a_frame_and_runs_lie_beside_each_other(tmp_path):
    for number in (1, 2):
        records = [{"id": "a", "metrics": {"rel_rmse": 1e-7 * number}, "shape": {"n": 3}, "hazards": []}]
        write(tmp_path / f"run{number}", "results.json", {"started": str(number), "seed": number, "records": records})
    write(tmp_path, "faults.json", {"records": [{"id": "f", "metrics": {"gain": "nan"}}]})
    write(tmp_path, "plan.json", {"plans": [{"parallel": "sp2", "seconds": 1.5}], "infeasible": []})
    write(tmp_path, "accuracy.json", {"devices": [{"source": "t.csv", "device": 0, "measured_us": 3.5}], "worst": []})
    write(
        tmp_path, "history.json", {"metric": "PCC", "rows": [{"case": "a", "value": 0.5}, {"case": "a", "value": None}]}
    )
    found = refsim.load_results(tmp_path)
    assert set(found) == {"parity", "faults", "predictions", "measurements", "history"}
    assert found["measurements"].iloc[0].to_dict() == {
        "source": "accuracy.json", "file": "t.csv", "device": 0, "measured_us": 3.5
    }  # fmt: skip
    assert found["history"]["value"].sum() == 0.5 and set(found["history"]["source"]) == {"history.json"}
    parity = found["parity"]
    assert list(parity["source"]) == ["run1/results.json", "run2/results.json"]
    assert parity.groupby("id")["metrics.rel_rmse"].max()["a"] == pytest.approx(2e-7)
    assert list(parity["run.seed"]) == [1, 2]
    assert math.isnan(found["faults"]["metrics.gain"][0]) and found["faults"]["metrics.gain"].dtype == float
    assert found["predictions"]["seconds"][0] == 1.5


def test_nothing_to_read_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"holds no results; these are read: results\.json"):
        refsim.load_results(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        refsim.load_results(tmp_path / "none")
    write(tmp_path, "results.json", {})
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as results"):
        refsim.load_results(tmp_path)
