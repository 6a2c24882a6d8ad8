"""The tool that runs upstream's tests, without upstream's tree: plans, jobs and which cases are run."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

import refsim
from benchmarks.upstream import campaign, jobs, select, table

LINE = {"id": f"{jobs.UNIT}/operations/reduce/test_a.py::test_x[1]", "outcome": "passed", "category": "own"}


def _tree(root, files):
    for name, functions in files.items():
        path = root / jobs.UNIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"def test_{i}(): ...\n" for i in range(functions)), encoding="utf-8")
    return root


def test_unit_jobs_share_the_cases_by_functions(tmp_path):
    tree = _tree(tmp_path, {"operations/a/test_a.py": 30, "operations/a/test_b.py": 240, "base/test_c.py": 30})
    planned = {job.name: job for job in jobs.unit_jobs(tree, 600, 3, "7", 60)}
    assert sorted(planned) == ["unit-base-0", "unit-operations-a-0", "unit-operations-a-1"]
    quotas = {name: next(o for o in job.options if "cases" in o) for name, job in planned.items()}
    assert quotas["unit-base-0"] == quotas["unit-operations-a-0"] == "--ttnn-mock-cases=60"
    assert quotas["unit-operations-a-1"] == "--ttnn-mock-cases=480"
    assert all(
        "--ttnn-mock-seed=7" in job.options and "--ttnn-mock-sample=3" in job.options for job in planned.values()
    )


def test_jobs_of_the_night_are_of_its_folder(tmp_path):
    tree = _tree(tmp_path, {"operations/a/test_a.py": 3, f"../../../{jobs.NIGHTLY}/operations/b/test_b.py": 3})
    (job,) = jobs.unit_jobs(tree, 6, 2, "7", 60, jobs.NIGHTLY)
    assert (job.name, job.files) == ("unit-operations-b-0", (f"{jobs.NIGHTLY}/operations/b/test_b.py",))


def test_files_are_drawn_by_seed(tmp_path):
    tree = _tree(tmp_path, {f"operations/a/test_{i}.py": 1 for i in range(9)} | {"base/test_0.py": 1})
    drawn = {seed: [job.files for job in jobs.file_jobs(tree, 4, seed, 60)] for seed in "12"}
    assert drawn["1"] == [job.files for job in jobs.file_jobs(tree, 4, "1", 60)] != drawn["2"]
    every = jobs.file_jobs(tree, 99, "1", 60)
    assert len({job.name for job in every}) == len(every) == 10
    assert all("sample" not in option for job in every for option in job.options)


def test_tt_dit_jobs_leave_out_pipelines(tmp_path):
    for name in (
        "models/wan/test_pipeline_wan.py",
        "models/wan/test_rope.py",
        "unit/test_linear.py",
        "dataset_eval/test_x.py",
    ):
        path = tmp_path / jobs.DIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_x(): ...\n", encoding="utf-8")
    planned = jobs.dit_jobs(tmp_path, 2, "0", 60)
    assert [job.name for job in planned] == ["dit-models-wan", "dit-unit"]
    assert [file for job in planned for file in job.files if "pipeline" in file] == []


def test_a_job_is_run_once_and_a_slow_one_is_cut(tmp_path, capsys):
    (tmp_path / "test_fast.py").write_text("def test_fast(): ...\n", encoding="utf-8")
    planned = [jobs.Job("fast", ("test_fast.py",), limit_s=0.01)]
    out = tmp_path / "out"
    jobs.run(tmp_path, planned, out, 1, 5)
    assert json.loads((out / "fast.done").read_text())["cut"]
    assert "cut" in capsys.readouterr().out
    jobs.run(tmp_path, planned, out, 1, 5)
    assert capsys.readouterr().out.startswith("0 of 1 jobs")


def test_a_job_that_was_broken_off_goes_on_with_the_other_cases(tmp_path):
    text = "import pytest\n@pytest.mark.parametrize('x', range(3))\ndef test_x(x): ...\n"
    (tmp_path / "test_three.py").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    told = {"id": "test_three.py::test_x[1]", "outcome": "passed", "category": "own", "by hand": True}
    (out / "three.jsonl").write_text(json.dumps(told) + "\n", encoding="utf-8")
    (out / "three.by").write_text("refsim of before\n", encoding="utf-8")
    jobs.run(tmp_path, [jobs.Job("three", ("test_three.py",), limit_s=60)], out, 1, 30)
    assert "2 passed, 1 deselected" in (out / "three.log").read_text(encoding="utf-8")
    assert json.loads((out / "three.jsonl").read_text(encoding="utf-8")) == told  # without the mock no test has a line
    assert table.read(out).by == {jobs.own_version(), "refsim of before"}
    assert sorted(path.suffix for path in out.glob("three.*")) == [".done", ".jsonl", ".log"]


def test_functions_without_a_passing_case_get_one_that_passes_elsewhere(tmp_path):
    def write(name, *cases):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        lines = [
            {"id": case, "outcome": outcome, "category": "own", "seconds": seconds} for case, outcome, seconds in cases
        ]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    write("here/dit-unit.jsonl", ("a.py::test_x[1]", "failed", 1), ("a.py::test_y[1]", "passed", 1))
    write("here/dit-unit-again.jsonl", ("a.py::test_z[1]", "passed", 1))
    write("there/dit-unit.jsonl", ("a.py::test_x[1]", "failed", 1), ("a.py::test_x[2]", "passed", 9))
    write("there/dit-unit-again.jsonl", *((f"a.py::test_{name}[3]", "passed", 8) for name in "xyz"))
    job = jobs.Job("dit-unit", ("a.py",))
    assert jobs.passing_elsewhere(job, tmp_path / "here", tmp_path / "there") == ["a.py::test_x[3]"]


@pytest.mark.parametrize(("value", "devices"), [((2, 4), 8), (4, 4), ((4, 8), 32), (None, 1), ("T3K", 1)])
def test_devices_that_a_case_asks_for(value, devices):
    assert select.devices_of(value) == devices


class Item:
    def __init__(self, nodeid, **parameters):
        self.nodeid, self.callspec = nodeid, type("Callspec", (), {"params": parameters})


@pytest.mark.parametrize(("wanted", "kept"), [("0", "test_small[2x4]"), ("1", "test_mochi_block[long_seq-2x4]")])
def test_a_run_has_small_cases_or_large_ones(wanted, kept, monkeypatch):
    monkeypatch.setenv("UPSTREAM_LARGE", wanted)
    cases = ["test_small[2x4]", "test_mochi_block[long_seq-2x4]"]
    items = [*(Item(case, mesh_device=(2, 4)) for case in cases), Item("test_small[4x8]", mesh_device=(4, 8))]
    assert [item.nodeid for item in items if not select.left_out(item)] == [kept]


def test_a_run_on_a_galaxy_has_cases_for_more_than_eight_devices_alone(monkeypatch, tmp_path):
    """Large ones are left out of it, too, and those for Blackhole."""
    monkeypatch.setenv("UPSTREAM_GALAXY", "1")
    items = [Item("test_small[2x4]", mesh_device=(2, 4)), Item("test_small[4x8]", mesh_device=(4, 8))]
    others = ("test_mochi_block[long_seq-4x8]", "test_x[bh_4x8sp1]", "test_x[broadcast-bh4x8links2]")
    items += [Item(case, mesh_device=(4, 8)) for case in others]
    assert [item.nodeid for item in items if not select.left_out(item)] == ["test_small[4x8]"]
    tests = tmp_path / jobs.DIT / "unit"
    tests.mkdir(parents=True)
    (tests / "test_a.py").touch()
    (job,) = jobs.dit_jobs(tmp_path, 1, "0", 60, mesh="galaxy")
    assert "--ttnn-mock=galaxy" in job.options and job.environment["UPSTREAM_GALAXY"] == "1"


def test_large_cases_are_named():
    assert select.large("x.py::test_wan_transformer_block[wormhole_b0-14b-720p-2x4sp0tp1]")
    assert not select.large("x.py::test_wan_transformer_model[wormhole_b0-short_seq-2x4sp0tp1-True]")


def test_a_conftest_that_cannot_be_imported_costs_its_own_folder_only(tmp_path):
    places = "f'{__file__}: ' + os.path.expanduser('~/x ') + sys.prefix + '/y'"
    broken = f"import os, sys\nraise RuntimeError({places})\n"
    for folder, text in (("a", ""), ("b", broken)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").write_text(text, encoding="utf-8")
        (tmp_path / folder / f"test_{folder}.py").write_text("def test_x(): ...\n", encoding="utf-8")
    job = jobs.Job("both", ("a/test_a.py", "b/test_b.py"), limit_s=60)
    jobs.run(tmp_path, [job], tmp_path / "out", 1, 30)
    found = table.read(tmp_path / "out")
    end = json.loads((tmp_path / "out" / "both.done").read_text())
    assert (end["code"], end["files"]) == (0, ["a/test_a.py"])
    assert found.modules == {"b/test_b.py": "RuntimeError: b/conftest.py: ~/x y"}  # not where these lie
    assert found.by == {jobs.own_version()}


def test_this_project_is_named_by_version_and_commit(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    assert jobs.own_version() == f"refsim {refsim.__version__} at an unknown commit"
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a")
    clean = jobs.own_version()
    assert re.fullmatch(rf"refsim {re.escape(refsim.__version__)} at [0-9a-f]{{8}}", clean)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "upstream.md").write_text("a")
    assert jobs.own_version() == clean
    (tmp_path / "code.py").write_text("a")
    assert jobs.own_version() == f"{clean} with uncommitted changes"


def test_again_forgets_runs_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / jobs.UNIT).mkdir(parents=True)
    monkeypatch.setenv("TT_METAL_TREE", str(tmp_path))
    with pytest.raises(SystemExit, match="holds no runs to forget"):
        campaign.main(["unit", "--out", str(tmp_path), "--again"])
    assert (tmp_path / jobs.UNIT).is_dir()


@pytest.mark.parametrize(
    ("category", "message"),
    [
        ("crash", "the process was killed by SIGKILL in ttnn.add."),
        ("timeout", "Timeout (>240.0s) from pytest-timeout."),
    ],
)
def test_a_case_that_was_ended_counts_as_it_ends_alone(tmp_path, category, message):
    killed = {"outcome": "failed", "category": category, "message": message}
    (tmp_path / "unit-a.jsonl").write_text(json.dumps(LINE | killed) + "\n")
    job = jobs.Job("unit-a", ("test_a.py",), ("--ttnn-mock=auto", "--ttnn-mock-sample=3"))
    again = jobs._again(job, tmp_path, 240)
    assert (again.name, again.files, again.options) == ("unit-a-again", (LINE["id"],), ("--ttnn-mock=auto",))
    assert table.read(tmp_path).not_alone == 1
    (tmp_path / "unit-a-again.jsonl").write_text(json.dumps(LINE) + "\n")
    run = table.read(tmp_path)
    assert ([case.kind for case in run.cases], run.alone, run.not_alone) == (["own"], 1, 0)
    (tmp_path / "unit-a-again.jsonl").write_text(json.dumps(LINE | killed) + "\n")
    (case,) = table.read(tmp_path).cases
    assert case.kind == ("memory" if category == "crash" else "failed")
    assert jobs._again(job, tmp_path, 240) is None
    other = {**LINE, **killed, "id": f"{LINE['id']}[other]"}
    (tmp_path / "unit-a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in (LINE | killed, other)))
    rest = jobs._again(job, tmp_path, 240)  # the first run of them by themselves was broken off
    assert (rest.name, rest.files) == ("unit-a-2-again", (other["id"],))
    assert rest.limit_s >= 3 * 240


def test_without_the_tree_nothing_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TT_METAL_TREE", str(tmp_path))
    assert campaign.main(["unit", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("skipped: TT_METAL_TREE")
    assert not (tmp_path / "out").exists()
