"""Two runs beside each other: what got worse, by how much, noise or not; and what GitHub's runner is given."""

import copy
import json

import pytest
from typer.testing import CliRunner

from parity.cli.parity import app
from parity.measure.records import Record, SuiteRun
from parity.measure.thresholds import calibration
from parity.report import ci
from parity.report.compare import read
from parity.report.diff import diff, markdown
from refsim.base.errors import UserError
from refsim.files.keys import as_json
from refsim.files.tables import as_csv
from tests.json_output import loads

FLOOR = calibration()["floors"]["attention fp32"]["rel_rmse"]


def record(name="a", **more):
    fields = dict.fromkeys(
        ("model", "mesh", "parallel", "scheme", "prompt_layout", "ring_order", "family", "suite"), "x"
    )
    known = {"id": name, "kind": "attention", "dtype": "fp32", "shape": {"n": 3}, "backend": "cpu", "seed": 0}
    known |= {"guidance": None, "other_layout": None, "math": "reference", "verdict": "passed", "sim_s": 1.0}
    known |= {
        "metrics": {"rel_rmse": FLOOR / 4},
        "thresholds": {"rel_rmse": 1e-6},
        "bytes_by_collective": {"ring@ring": 10},
    }
    return Record(**fields | known | more)


def run(*records):
    return SuiteRun("smoke", None, "cpu", 0, {"torch": "2"}, {"cpus": 2}, "2026-01-01T00:00:00", 2.0, list(records))


def changed(**more):
    a = as_json(run(record()))
    b = copy.deepcopy(a)
    b["records"][0] |= more
    return diff(a, b)


def test_the_same_run_has_no_change():
    found = changed()
    assert (found.rows, found.exit_code, found.compared) == ([], 0, 1)


@pytest.mark.parametrize(("factor", "noise", "code"), [(2.0, True, 0), (40.0, False, 1)])
def test_what_stays_below_the_oracles_own_rounding_is_noise(factor, noise, code):
    found = changed(metrics={"rel_rmse": FLOOR / 4 * factor})
    assert [(row.what, row.noise, row.worse) for row in found.rows] == [("rel_rmse", noise, True)]
    assert found.rows[0].factor == pytest.approx(factor)
    assert found.exit_code == code


def test_what_falls_is_better_and_not_a_number_is_worse():
    assert changed(metrics={"rel_rmse": FLOOR / 40}).exit_code == 0
    assert changed(metrics={"rel_rmse": "nan"}).exit_code == 1
    assert changed(metrics={}).exit_code == 1  # it is not measured any more


def test_a_loosened_limit_is_shown_as_such():
    found = changed(thresholds={"rel_rmse": 1e-5})
    assert [(row.what, row.factor) for row in found.worse] == [("limit of rel_rmse", pytest.approx(10.0))]
    assert changed(thresholds={"rel_rmse": 1e-7}).exit_code == 0


def test_verdicts_and_bytes_and_missing_cases():
    assert changed(verdict="failed").worse[0].what == "verdict"
    assert changed(bytes_by_collective={"ring@ring": 20}).worse[0].what == "bytes of ring@ring"
    gone = diff(as_json(run(record(), record("b"))), as_json(run(record())))
    assert gone.only_before == ["b"] and gone.exit_code == 1
    assert diff(as_json(run(record())), as_json(run(record("b")))).exit_code == 1


def test_the_worst_comes_first():
    a = as_json(run(record(metrics={"rel_rmse": FLOOR, "gain": 1e-9}, thresholds={"rel_rmse": 1e-6, "gain": 1.0})))
    b = copy.deepcopy(a)
    b["records"][0]["metrics"] = {"rel_rmse": FLOOR * 3, "gain": 1e-3}
    assert [row.what for row in diff(a, b).rows] == ["gain", "rel_rmse"]
    assert markdown(diff(a, b)).splitlines()[2].startswith("| `a` | gain | 1e-09 | 0.001 |")


def test_the_command_takes_folders_and_writes_csv(tmp_path):
    for name, more in (("before", {}), ("after", {"verdict": "failed"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(as_json(run(record(**more)))))
    folders = [str(tmp_path / "before"), str(tmp_path / "after")]
    result = CliRunner().invoke(app, ["diff", *folders, "--csv", str(tmp_path / "diff.csv")])
    assert result.exit_code == 1 and "| `a` | verdict | passed | failed |" in result.stdout
    assert (tmp_path / "diff.csv").read_text().splitlines()[1].startswith("a,verdict,passed,failed,")
    assert loads("parity diff", CliRunner().invoke(app, ["diff", *folders, "--json"]).stdout)["worse"] == 1
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path)


EXPLANATION = {
    "place": {"text": "first wrong tensor: out, rank 2 at mesh (0, 2)"},
    "maps": [{"title": "error", "lines": "heads", "columns": "shards", "errors": [[1e-8, 1.0], [None, "inf"]]}],
    "causes": [{"fault": "one-row", "sentence": "One row is zero.", "likelihood": 0.93}],
    "again": "refsim parity why a",
    "problem": "",
}


def test_a_summary_and_annotations_for_githubs_runner(tmp_path, monkeypatch, capsys):
    path = tmp_path / "summary.md"
    done = run(
        record("a:1", verdict="failed", reason="rel_rmse 1\n100%", extra={"explanation": EXPLANATION}), record("b")
    )
    ci.tell(done)
    assert not path.exists() and not capsys.readouterr().err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ci.tell(done)
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("::error title=a%3A1::rel_rmse 1%0A100%25%0Afirst wrong tensor: out, rank 2")
    text = path.read_text()
    assert "1 passed, 1 failed, 0 skipped" in text and "one-row (One row is zero), 0.93" in text
    assert "| b | " in text
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    ci.tell(done)
    assert "cannot be written" in capsys.readouterr().err


def test_csv_has_a_line_a_record_and_a_column_a_value():
    lines = as_csv([as_json(record()), as_json(record("b"))]).splitlines()
    header = lines[0].split(",")
    assert len(lines) == 3 and {"id", "metrics.rel_rmse", "shape.n", "bytes_by_collective.ring@ring"} <= set(header)
    assert lines[2].split(",")[0] == "b"
