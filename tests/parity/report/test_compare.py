"""Two runs beside each other: a verdict or a bit that differs is found, and so is what cannot be compared."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from parity.cases import AttentionShape, Layout, make_case
from parity.cli.parity import app
from parity.measure.digests import tensor_digest, tensor_digests
from parity.measure.records import Record, SuiteRun
from parity.measure.thresholds import Threshold
from parity.report.compare import compare, read
from parity.report.results import results_json
from refsim.base.errors import UserError
from refsim.files.keys import as_json
from tests.json_output import loads

CASE = make_case("attention", "attention", Layout("n300", "sp2"), AttentionShape(), other_layout=Layout("n300", "tp2"))
SAME = {"out": "aa", "lse": "bb"}


def record(name, verdict="passed", **digests):
    made = Record.of(replace(CASE, id=name), "cpu", 3, (Threshold("rel_rmse", 1e-6, "rounding"),))
    return replace(made, verdict=verdict, digests=digests)


def write(folder, *records):
    folder.mkdir(exist_ok=True)
    run = SuiteRun("smoke", None, "cpu", 3, {"torch": "2"}, {"cpus": 2}, "2026-11-21T00:00:00", records=list(records))
    path = folder / "results.json"
    path.write_text(results_json(run))
    return path


def test_the_same_run_twice_is_the_same(tmp_path):
    a = write(tmp_path / "a", record("x", **SAME), record("y", "failed", **SAME))
    found = compare(read(a), read(a))
    assert (found.compared, found.differences, found.exit_code) == (2, (), 0)


@pytest.mark.parametrize(
    ("after", "verdicts", "digests"),
    [
        (record("x", "failed", **SAME), ("passed", "failed"), ()),
        (record("x", out="aa", lse="cc"), None, ("lse",)),
        (record("x", out="aa"), None, ("lse",)),
        (record("x", "skipped"), ("passed", "skipped"), ("lse", "out")),
    ],
)
def test_a_verdict_or_a_bit_that_differs_is_found(tmp_path, after, verdicts, digests):
    a, b = write(tmp_path / "a", record("x", **SAME)), write(tmp_path / "b", after)
    (difference,) = compare(read(a), read(b)).differences
    assert (difference.id, difference.verdicts, difference.digests) == ("x", verdicts, digests)
    ran = CliRunner().invoke(app, ["compare", str(a), str(b)])
    assert ran.exit_code == 1
    assert ran.stdout.startswith("x: ") and "1 of 1 cases differ" in ran.stdout
    told = loads("parity compare", CliRunner().invoke(app, ["compare", str(a), str(b), "--json"]).stdout)
    assert (told["exit_code"], told["schema"], told["differences"][0]["id"]) == (1, 1, "x")


def test_cases_of_one_run_are_listed_and_no_difference(tmp_path):
    a = write(tmp_path / "a", record("x", **SAME), record("gone", **SAME))
    b = write(tmp_path / "b", record("x", **SAME), record("new"))
    ran = CliRunner().invoke(app, ["compare", str(a), str(b)])
    assert ran.exit_code == 0
    assert "gone: only in the first run\nnew: only in the second run\n0 of 1 cases differ" in ran.stdout


def test_nothing_in_common_shows_nothing(tmp_path):
    a, b = write(tmp_path / "a", record("x", **SAME)), write(tmp_path / "b", record("y", **SAME))
    assert compare(read(a), read(b)).exit_code == 1


def test_cases_without_digests_are_counted(tmp_path):
    a = write(tmp_path / "a", record("x", "failed"))
    assert compare(read(a), read(a)).without_digests == 1
    assert "1 only the verdicts" in CliRunner().invoke(app, ["compare", str(a), str(a)]).stdout


@pytest.mark.parametrize(
    ("text", "says"), [(None, "cannot be read"), ("{", "not valid JSON"), ('{"records": []}', "has schema None")]
)
def test_what_is_no_results_json_is_one_sentence(tmp_path, text, says):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=says) as e:
        read(path)
    assert "\n" not in str(e.value)


def test_a_record_says_where_it_ran():
    """The field names are what others read; dropping or renaming one raises the schema."""
    said = as_json(record("x", **SAME))
    assert list(said) == [
        *("id", "kind", "model", "mesh", "parallel", "scheme", "prompt_layout", "ring_order", "math", "dtype"),
        *("family", "shape", "guidance", "other_layout", "suite", "backend", "seed", "verdict", "reason", "error"),
        *("last_events", "metrics", "thresholds", "noise", "bytes_by_collective", "digests", "hazards"),
        *("sim_s", "oracle_s", "wall_s"),
    ]
    assert (said["prompt_layout"], said["ring_order"], said["other_layout"]) == ("replicated", "step", "n300-tp2-ring")


def test_digests_see_one_bit_and_no_strides():
    x = torch.arange(12.0).reshape(3, 4)
    assert tensor_digest(x) == tensor_digest(x.t().contiguous().t())
    flipped = x.clone()
    flipped[1, 2] = torch.nextafter(flipped[1, 2], torch.tensor(99.0))
    assert tensor_digest(x) != tensor_digest(flipped)
    assert list(tensor_digests({"b": x, "a": x.bfloat16()})) == ["a", "b"]
