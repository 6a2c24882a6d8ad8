"""The gate: verdicts, reports, exit codes; a case that fails never costs the others' results."""

import json
import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from parity.cases import AttentionShape, Layout, make_case
from parity.cli.parity import app
from parity.kinds import thresholds_for
from parity.kinds.base import Measured
from parity.measure import traces
from parity.report import results
from parity.run import case as run_case_module
from parity.run.runner import Runner
from parity.run.suite import Asked, Selected, run_cases, run_suite
from refsim.base.errors import RankFailure, UserError
from tests.json_output import loads

GOOD = {
    "rel_rmse": 1e-7,
    "one_minus_pcc": 1e-14,
    "one_minus_pcc_shard": 1e-14,
    "one_minus_pcc_seam": None,
    "lse_rel_max": 1e-7,
    "one_minus_ccc": 1e-14,
    "worst_token": 1e-7,
    "max_ulp": 2.0,
    "gain": 1e-8,
    "merged_gain": 1e-9,
    "wrong_dtypes": 0,
    "max_abs": 1e-6,
    "non_finite": 0,
} | {bound.metric: 0 for bound in traces.BOUNDS}


def case(tag, **more):
    return make_case("attention", "attention", Layout("n300", "sp2"), AttentionShape(), tag=tag, **more)


class FakeRunner(Runner):
    def __init__(self, answers):
        self.answers, self.ran, self.dropped, self.open = answers, [], [], False

    def __enter__(self):
        self.open = True
        return self

    def __exit__(self, *error):
        self.open = False

    def run(self, case, seed):
        self.ran.append((case.id, seed))
        answer = next(a for tag, a in self.answers.items() if case.id.endswith(tag))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Measured):
            return answer
        return Measured(
            answer, noise={"rel_rmse": 1e-7}, bytes_by_collective={"ring@ring": 1000}, sim_s=0.25, oracle_s=0.5
        )

    def drop(self, case, seed):
        self.dropped.append(case.id)


def run(answers, tmp_path=None, seed=0, **more):
    runner = FakeRunner(answers)
    cases = [case(tag, **more) for tag in answers]
    done = run_cases(cases, runner, Asked(seed=seed), out_dir=tmp_path)
    assert not runner.open
    return done, runner


def test_verdicts_and_reasons(tmp_path):
    done, _ = run(
        {
            "good": GOOD,
            "over": GOOD | {"one_minus_pcc_shard": 1e-6},
            "nan": GOOD | {"rel_rmse": float("nan")},
            "unmeasured": {k: v for k, v in GOOD.items() if k != "lse_rel_max"},
            "raises": ValueError("odd \x00 shape"),
            "dies": RankFailure("rank 3 was killed by SIGKILL.", rank=3, traceback="in ring step 2"),
        },
        tmp_path,
    )
    by_tag = {r.id.rsplit("-", 1)[1]: r for r in done.records}
    assert {tag: r.verdict for tag, r in by_tag.items()} == {
        tag: "passed" if tag == "good" else "failed" for tag in by_tag
    }
    assert by_tag["over"].reason == "one_minus_pcc_shard 1e-06 is above 1e-10"
    assert by_tag["nan"].reason == "rel_rmse nan is above 1e-06"
    assert by_tag["unmeasured"].reason == "lse_rel_max was not measured"
    assert by_tag["raises"].reason == "ValueError: odd \x00 shape"
    assert by_tag["dies"].reason == "rank 3 was killed by SIGKILL." and by_tag["dies"].error == "in ring step 2"
    assert done.counts == {"passed": 1, "failed": 5, "skipped": 0} and done.exit_code == 1


def test_reports_are_written_and_readable(tmp_path):
    done, _ = run(
        {"good": GOOD, "nan": GOOD | {"rel_rmse": float("nan")}, "raises": ValueError("odd \x00 shape")},
        tmp_path / "a" / "b",
        seed=7,
    )
    folder = tmp_path / "a" / "b"

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads((folder / "results.json").read_text(), parse_constant=refuse)
    assert data["counts"] == done.counts and data["seed"] == 7 and data["exit_code"] == 1
    wanted = {
        *("id", "model", "mesh", "parallel", "scheme", "backend", "dtype", "metrics", "thresholds", "noise"),
        *("verdict", "reason", "seed", "wall_s", "bytes_by_collective"),
    }
    assert all(wanted <= record.keys() for record in data["records"])
    assert data["records"][1]["metrics"]["rel_rmse"] == "nan"

    suite = ET.parse(folder / "junit.xml").getroot().find("testsuite")
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    kinds = {
        element.get("name").rsplit("-", 1)[1]: [child.tag for child in element] for element in suite.iter("testcase")
    }
    assert kinds == {"good": ["system-out"], "nan": ["failure", "system-out"], "raises": ["error", "system-out"]}

    text = (folder / "parity.md").read_text()
    assert "1 passed, 2 failed, 0 skipped" in text and "torch 2" in text and "seed 7" in text
    assert text.count("| attention-n300-sp2-ring-fp32-normal-") == 3
    assert "rel_rmse nan is above" in text
    for t in thresholds_for("attention", "fp32"):  # what was judged by, not what a kind allows at most
        assert f"| attention | fp32 | {t.metric} | {t.limit:g} | " in text


def test_operations_of_a_device_have_a_file_of_their_own(tmp_path):
    resources = {
        "operations": 3,
        "different": 2,
        "fidelities": {"HiFi2": 1, "none": 2},
        "cores": 64,
        "peak_l1": {"bytes": 123456, "op": "ttnn.linear"},
        "peak_dram": {"bytes": 7 << 20, "op": "ttnn.add", "total": 12 << 30},
    }
    rows = [{"op": "ttnn.linear", "count": 1}, {"op": "ttnn.add", "count": 2}]
    extra = {"resources": resources, "optable": rows}
    done, _ = run({"device": Measured(GOOD, {}, extra=extra), "cpu": GOOD}, tmp_path)
    name = done.records[0].id
    assert json.loads((tmp_path / "operations.json").read_text()) == {name: rows}
    records = json.loads((tmp_path / "results.json").read_text())["records"]
    assert records[0]["resources"] == resources and "optable" not in records[0]
    line = f"| {name} | 3 | 2 | HiFi2 1, none 2 | 123456 | ttnn.linear | 7.0 | 12288 | ttnn.add |"
    assert line in (tmp_path / "parity.md").read_text()
    assert results.files(done) == ("results.json", "junit.xml", "parity.md", "operations.json")
    done, _ = run({"cpu": GOOD}, tmp_path)
    assert (
        {p.name for p in tmp_path.iterdir()} == set(results.files(done)) == {"results.json", "junit.xml", "parity.md"}
    )


def test_all_passed_is_exit_code_0():
    assert run({"a": GOOD, "b": GOOD})[0].exit_code == 0


def test_a_case_without_the_memory_it_needs_is_skipped_and_skipping_everything_is_no_success():
    done, runner = run({"a": GOOD}, needs_gb=1e6)
    assert done.records[0].verdict == "skipped" and "1e+06 GiB" in done.records[0].reason
    assert not runner.ran and done.exit_code == 1


def test_memory_that_kept_ranks_hold_is_given_back_before_a_case_is_skipped(monkeypatch):
    held = [True]
    monkeypatch.setattr(run_case_module, "missing_memory", lambda case: "needs more" if held[0] else "")
    monkeypatch.setattr(run_case_module.launch, "end_ranks", lambda: held.__setitem__(0, False))
    done, runner = run({"a": GOOD})
    assert done.exit_code == 0 and runner.ran


def test_seeds_add_up_and_shared_state_is_dropped_after_its_last_use():
    runner = FakeRunner({"a": GOOD, "b": GOOD, "c": GOOD})
    cases = [case("a"), case("b", seed=2), case("c")]
    run_cases(cases, runner, Asked(seed=10))
    assert [seed for _, seed in runner.ran] == [10, 12, 10]
    assert [i.rsplit("-", 1)[1] for i in runner.dropped] == ["b", "c"]


def test_progress_is_told_before_and_after_each_case():
    told = []
    cases = [case("a"), case("b")]
    run_cases(cases, FakeRunner({"a": GOOD, "b": GOOD}), progress=lambda *x: told.append(x))
    assert [(i, n, c.id[-1], r and r.verdict) for i, n, c, r in told] == [
        (1, 2, "a", None),
        (1, 2, "a", "passed"),
        (2, 2, "b", None),
        (2, 2, "b", "passed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"suite": "nightly"}, "choose one of smoke, full"),
        ({"backend": "tpu"}, "choose one of cpu"),
        ({"expr": "no_model"}, "no case of suite 'smoke' matches -k 'no_model'"),
        ({"expr": "ring and"}, "a word is missing"),
    ],
)
def test_mistakes_are_one_sentence(arguments, says):
    with pytest.raises(UserError, match=says) as e:
        run_suite(Selected.of(Asked(**arguments)))
    assert e.value.exit_code == 2 and "\n" not in str(e.value)


def test_out_that_is_a_file_is_found_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    runner = FakeRunner({"a": GOOD})
    with pytest.raises(UserError, match="cannot be made a folder"):
        run_cases([case("a")], runner, out_dir=tmp_path / "file")
    assert not runner.ran


def test_command_line_lists():
    result = CliRunner().invoke(app, ["list", "-k", "large and 512px", "--json"])
    assert result.exit_code == 0
    (only,) = loads("parity list", result.stdout)
    assert only["id"] == "sd35_large-t3k-sp2_tp4-ring-bf16-512px" and only["parallel"] == "sp2_tp4"


@pytest.mark.parametrize("metrics, code", [(GOOD, 0), (GOOD | {"rel_rmse": 1.0}, 1)])
def test_command_line_runs(monkeypatch, tmp_path, metrics, code):
    fake = FakeRunner({"normal": metrics})
    monkeypatch.setattr("parity.run.cpu.CpuRunner", lambda: fake)
    monkeypatch.setattr("refsim.runtime.launch.warm_up", lambda: None)
    arguments = ["run", "-k", "attention and n300 and tp2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert f"{1 - code} passed, {code} failed, 0 skipped" in result.output
    assert {p.name for p in tmp_path.iterdir()} == {"results.json", "junit.xml", "parity.md"}
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert loads("parity run", as_json.stdout)["exit_code"] == code


def test_a_hazard_fails_a_case_whose_values_are_right(tmp_path, monkeypatch):
    sentence = "write-while-read: rank 0's send writes buffer k of rank 1 and rank 1's sdpa reads it."
    runner = FakeRunner({"good": GOOD})
    monkeypatch.setattr(runner, "run", lambda case, seed: Measured(GOOD, {}, hazards=[sentence]))
    done = run_cases([case("good")], runner, out_dir=tmp_path)
    (record,) = done.records
    assert (record.verdict, record.reason, record.hazards) == ("failed", sentence, [sentence])
    assert sentence in (tmp_path / "parity.md").read_text()


def test_several_seeds_are_several_records():
    runner = FakeRunner({"good": GOOD})
    done = run_cases([case("good")], runner, Asked(seed=3, seeds=2))
    assert [record.id[-11:] for record in done.records] == ["-good-seed3", "-good-seed4"]
    assert [seed for _, seed in runner.ran] == [3, 4]
    assert len(runner.dropped) == 2


@pytest.mark.parametrize(
    ("numerics", "says"), [("fast", "numerics is for ttnn-mock; leave it out on cpu"), ("quick", "off, fast, exact")]
)
def test_numerics_that_no_case_would_have_are_refused_before_any_runs(numerics, says):
    with pytest.raises(UserError, match=says):
        Selected.of(Asked(numerics=numerics), [case("good")])
