"""The tool that runs upstream's tests, without upstream's tree: plans, edits, causes, counts and the report."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys

import pytest

import refsim
from benchmarks.upstream import campaign as upstream
from benchmarks.upstream import jobs as upstream_jobs
from benchmarks.upstream import report as upstream_report
from benchmarks.upstream import seed as upstream_seed
from benchmarks.upstream import select as upstream_select
from benchmarks.upstream import table as upstream_table
from benchmarks.upstream.bugs import BUGS
from benchmarks.upstream.causes import cause_of
from benchmarks.upstream.edits import (
    Argument,
    Assign,
    Condition,
    Drop,
    Keyword,
    NoSuchPlace,
    Result,
    SwapTargets,
    Unwrap,
    edited,
    install,
)

MODULE = """
class Layer:
    def forward(self, x, axis):
        first, second = self.split(x, 2)
        if self.parallel:
            x = ops.gather(x, dim=2, axis=axis)
        x = ops.gather(x.permute(1, 0), dim=3, axis=axis)
        x = x + first
        self.note(x)
        return x * second
"""


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (Keyword("gather", "dim", "1", 1), "x = ops.gather(x.permute(1, 0), dim=1, axis=axis)"),
        (Keyword("ops.gather", "axis", None), "x = ops.gather(x, dim=2)"),
        (Argument("gather", 0, "first", 1), "x = ops.gather(first, dim=3, axis=axis)"),
        (Unwrap("gather"), "x = x"),
        (Unwrap("permute", receiver=True), "x = ops.gather(x, dim=3, axis=axis)"),
        (Assign("x", "x + x + first", 2), "x = x + x + first"),
        (SwapTargets("first", "second"), "second, first = self.split(x, 2)"),
        (Condition("parallel", False), "if False:"),
        (Result("{} + 1"), "return x * second + 1"),
    ],
)
def test_an_edit_changes_what_it_says_and_nothing_else(edit, line):
    before = {text.strip() for text in edited(MODULE, "Layer.forward", [Result("None")]).splitlines()}
    after = {text.strip() for text in edited(MODULE, "Layer.forward", [edit]).splitlines()}
    assert line in after
    assert len(after - before - {"return x * second"}) <= 1


@pytest.mark.parametrize(("edit", "text"), [(Drop("note"), "note"), (Assign("x", None, 2), "x + first")])
def test_a_statement_is_left_out(edit, text):
    assert text in MODULE
    assert text not in edited(MODULE, "Layer.forward", [edit])


def test_the_only_statement_of_a_block_is_left_out():
    assert "pass" in edited(MODULE, "Layer.forward", [Assign("x", None)])


@pytest.mark.parametrize(
    ("function", "edit"),
    [
        ("Layer.backward", Drop("note")),
        ("Layer.forward", Drop("gather")),
        ("Layer.forward", Keyword("gather", "dim", "1", 2)),
        ("Layer.forward", Keyword("gather", "shape", "1")),
        ("Layer.forward", Assign("y", "1")),
        ("Layer.forward", SwapTargets("first", "third")),
        ("Layer.forward", Condition("serial", True)),
        ("Layer.forward", Keyword("gather", "dim", "2")),
    ],
)
def test_an_edit_without_a_place_is_an_error(function, edit):
    with pytest.raises(NoSuchPlace):
        edited(MODULE, function, [edit])


def test_an_installed_edit_is_seen_by_an_import(tmp_path, monkeypatch):
    folder = tmp_path / "somebodys_layers"
    folder.mkdir()
    (folder / "plain.py").write_text("def answer():\n    return 1\n", encoding="utf-8")
    (folder / "wrong.py").write_text("def answer():\n    return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install("somebodys_layers/wrong.py", "answer", [Result("{} + 1")])
    assert importlib.import_module("somebodys_layers.plain").answer() == 1
    assert importlib.import_module("somebodys_layers.wrong").answer() == 2
    assert (folder / "wrong.py").read_text(encoding="utf-8").endswith("return 1\n")


def test_thirty_bugs_are_told_apart():
    assert len(BUGS) == 30
    assert len({(bug.file, bug.function, bug.edits) for bug in BUGS.values()}) == 30
    assert all(
        bug.file.startswith("tt_dit/") and bug.case.path.startswith("models/tt_dit/tests/") for bug in BUGS.values()
    )


@pytest.mark.skipif(upstream.tree() is None, reason=upstream.WITHOUT)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_the_tree(name):
    bug = BUGS[name]
    source = (upstream.tree() / "models" / bug.file).read_text(encoding="utf-8")
    edited(source, bug.function, bug.edits)


def _tree(root, files):
    for name, functions in files.items():
        path = root / upstream_jobs.UNIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"def test_{i}(): ...\n" for i in range(functions)), encoding="utf-8")
    return root


def test_unit_jobs_share_the_cases_by_functions(tmp_path):
    tree = _tree(tmp_path, {"operations/a/test_a.py": 30, "operations/a/test_b.py": 240, "base/test_c.py": 30})
    jobs = {job.name: job for job in upstream_jobs.unit_jobs(tree, 600, 3, "7", 60)}
    assert sorted(jobs) == ["unit-base-0", "unit-operations-a-0", "unit-operations-a-1"]
    quotas = {name: next(o for o in job.options if "cases" in o) for name, job in jobs.items()}
    assert quotas["unit-base-0"] == quotas["unit-operations-a-0"] == "--ttnn-mock-cases=60"
    assert quotas["unit-operations-a-1"] == "--ttnn-mock-cases=480"
    assert all("--ttnn-mock-seed=7" in job.options and "--ttnn-mock-sample=3" in job.options for job in jobs.values())


def test_tt_dit_jobs_leave_out_pipelines(tmp_path):
    for name in (
        "models/wan/test_pipeline_wan.py",
        "models/wan/test_rope.py",
        "unit/test_linear.py",
        "dataset_eval/test_x.py",
    ):
        path = tmp_path / upstream_jobs.DIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_x(): ...\n", encoding="utf-8")
    jobs = upstream_jobs.dit_jobs(tmp_path, 2, "0", 60)
    assert [job.name for job in jobs] == ["dit-models-wan", "dit-unit"]
    assert [file for job in jobs for file in job.files if "pipeline" in file] == []


def test_a_job_is_run_once_and_a_slow_one_is_cut(tmp_path, capsys):
    (tmp_path / "test_fast.py").write_text("def test_fast(): ...\n", encoding="utf-8")
    jobs = [upstream_jobs.Job("fast", ("test_fast.py",), limit_s=0.01)]
    out = tmp_path / "out"
    upstream_jobs.run(tmp_path, jobs, out, 1, 5)
    assert json.loads((out / "fast.done").read_text())["cut"]
    assert "cut" in capsys.readouterr().out
    upstream_jobs.run(tmp_path, jobs, out, 1, 5)
    assert capsys.readouterr().out.startswith("0 of 1 jobs")


@pytest.mark.parametrize(("value", "devices"), [((2, 4), 8), (4, 4), ((4, 8), 32), (None, 1), ("T3K", 1)])
def test_devices_that_a_case_asks_for(value, devices):
    assert upstream_select.devices_of(value) == devices


class Item:
    def __init__(self, nodeid, **parameters):
        self.nodeid, self.callspec = nodeid, type("Callspec", (), {"params": parameters})


@pytest.mark.parametrize(("wanted", "kept"), [("0", "test_small[2x4]"), ("1", "test_mochi_block[long_seq-2x4]")])
def test_a_run_has_small_cases_or_large_ones(wanted, kept, monkeypatch):
    monkeypatch.setenv("UPSTREAM_LARGE", wanted)
    cases = ["test_small[2x4]", "test_mochi_block[long_seq-2x4]"]
    items = [*(Item(case, mesh_device=(2, 4)) for case in cases), Item("test_small[4x8]", mesh_device=(4, 8))]
    assert [item.nodeid for item in items if not upstream_select.left_out(item)] == [kept]


def test_large_cases_are_named():
    assert upstream_select.large("x.py::test_wan_transformer_block[wormhole_b0-14b-720p-2x4sp0tp1]")
    assert not upstream_select.large("x.py::test_wan_transformer_model[wormhole_b0-short_seq-2x4sp0tp1-True]")


LINE = {"id": f"{upstream_jobs.UNIT}/operations/reduce/test_a.py::test_x[1]", "outcome": "passed", "category": "own"}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "own"),
        ({"category": "fallback"}, "fallback"),
        ({"category": "no-device"}, "no_device"),
        ({"outcome": "skipped", "category": "skipped", "message": "not on Wormhole"}, "skipped"),
        ({"outcome": "skipped", "category": "skipped", "message": "LTX checkpoint missing"}, "download"),
        ({"outcome": "failed", "category": "assertion", "message": "0.5 >= 0.99"}, "failed"),
        ({"outcome": "failed", "category": "timeout", "message": "Timeout"}, "failed"),
        ({"outcome": "failed", "category": "caught", "message": "ttnn.x has no shadow rule."}, "failed"),
        ({"outcome": "not run", "category": "not-run"}, "failed"),
        ({"outcome": "failed", "category": "version", "message": "module 'ttnn' has no attribute 'x'"}, "failed"),
        ({"outcome": "failed", "category": "version",
          "message": "module 'ttnn.experimental' has no attribute 'gelu_bw'"}, "skew"),
        ({"outcome": "failed", "category": "version", "message": "No module named 'tt_impl.mock.x'"}, "failed"),
        ({"outcome": "failed", "category": "version", "message": "No module named 'tracy'"}, "module"),
        ({"outcome": "failed", "category": "version", "message": "'int' object has no attribute 'x'"}, "failed"),
    ],
)  # fmt: skip
def test_a_line_falls_in_one_class(changes, kind):
    case = upstream_table.classified(LINE | changes)
    assert (case.kind, case.suite, case.directory) == (kind, "unit", "operations/reduce")


def test_a_file_that_leaves_itself_out_is_a_skipped_case(tmp_path):
    """One that cannot be imported is none, and is named apart."""
    path = LINE["id"].partition("::")[0]
    lines = [
        {"id": path, "outcome": "skipped", "category": "skipped", "message": "Skipped: not on Wormhole"},
        {"id": "tests/test_b.py", "outcome": "failed", "category": "version", "message": "No module named 'tracy'"},
    ]
    (tmp_path / "job.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = upstream_table.read(tmp_path)
    assert [(case.id, case.kind) for case in run.cases] == [(path, "skipped")]
    assert run.modules == {"tests/test_b.py": "No module named 'tracy'"}


FUSED, SDPA = "a/fused/parallel_sequential/test_parallel_sequential.py::test_x", "a/sdpa/test_sdpa_decode.py::test_x"
QWEN = "tt_dit/tests/encoders/qwen25vl/test_qwen25vl.py::test_x"
FACTORY = "'ttnn._ttnn.operations.normalization.LayerNormShardedProgramFactory' object has no attribute "
GELU = "ttnn.gelu_bw(): incompatible function arguments. Called with: gelu_bw(ttnn.Tensor, approximate='none')"
SLIDING = (
    "the shadow rule of ttnn.transformer.scaled_dot_product_attention_decode does not know this call: "
    "scaled_dot_product_attention_decode() got an unexpected keyword argument 'sliding_window_size'."
)


@pytest.mark.parametrize(
    ("case", "category", "message", "left_out"),
    [
        (FUSED, "version", FACTORY + "'create_descriptor'", "skew"),
        (FUSED, "version", FACTORY + "'create'", None),
        (SDPA, "version", FACTORY + "'create_descriptor'", None),
        ("a/test_gelu_bw_main_ulp.py::test_x", "version", GELU, "skew"),
        ("a/test_gelu_bw_main_ulp.py::test_x", "version", GELU.replace("gelu_bw", "gelu"), None),
        ("a/test_gelu.py::test_x", "version", GELU, None),
        (QWEN, "error", "'Qwen2_5_VLConfig' object has no attribute 'hidden_act'", "skew"),
        (QWEN, "error", "'Qwen2_5_VLConfig' object has no attribute 'layers'", None),
        (QWEN, "error", "get_rope_index() missing 1 required positional argument: 'mm_token_type_ids'", None),
        (SDPA, "option", SLIDING, ""),
        (SDPA, "version", "relu() got an unexpected keyword argument 'x'", None),
        (SDPA, "error", "unhashable type: 'list'", None),
        (SDPA, "environment", "[Errno 2] No such file or directory: '/tmp/tt-impl-mock-1/soc.yaml'", None),
        (FUSED, "environment", "[Errno 2] No such file or directory: 'ttnn/cpp/ttnn/bmm.cpp'", "download"),
        (SDPA, "error", "the device is offline", None),
        (SDPA, "environment", "the weights of A (b) need a download.", "download"),
        (SDPA, "version", "cannot import name 'Rule' from 'tt_impl.mock.storage.values' (/a/values.py)", None),
        (SDPA, "version", "cannot import name 'A' from 'models.tt_dit.encoders' (/a/b.py)", "module"),
        ("a/test_binary.py::test_logits[UINT32]", "assertion", "assert False", None),
        (SDPA, "assertion", "assert 1 == 2", None),
        (SDPA, "rule", "ttnn.x has no shadow rule.", ""),
    ],
)
def test_only_what_is_documented_leaves_the_count(case, category, message, left_out):
    """What looks alike may be an error of the mock: it counts as failed, unexplained (None) or as ours ('')."""
    cause = cause_of(case, category, message)
    assert (cause and cause.left_out) == left_out
    assert left_out != "" or cause.who == "ours"


def test_rates_count_what_is_left():
    lines = [{"emulated": {"ttnn.record_event": 2}}, {"category": "fallback", "emulated": {"ttnn.execute_trace": 1}}]
    lines += [{"outcome": "failed", "category": "timeout", "message": "Timeout"}]
    lines += [{"outcome": "skipped", "category": "skipped"}] * 5 + [{}]
    lines += [{"outcome": "failed", "category": "crash", "message": "SIGSEGV"}]
    cases = [upstream_table.classified(LINE | line) for line in lines]
    assert upstream_table.rates(cases) == {
        "counted": 5, "verdict_percent": 60.0, "pass_percent": 60.0, "own_percent": 40.0,
        "own_emulated": 1,
    }  # fmt: skip


FACTS = {
    "commit": "c0ffee",
    "ttnn": "1.2.3",
    "seed": "0",
    "refsim": "refsim 0.1 at abc with uncommitted changes",
    "machine": "2 cores",
}


def test_what_has_not_run_is_said(tmp_path):
    runs = tmp_path / "unit"
    runs.mkdir()
    (runs / "jobs.json").write_text(json.dumps(["unit-a", "unit-ccl", "unit-empty", "unit-later"]))
    (runs / "unit-a.jsonl").write_text(json.dumps(LINE))
    for name, code in (("unit-a", 1), ("unit-ccl", 4), ("unit-empty", 5)):
        done = {"name": name, "seconds": 1.0, "cut": False, "code": code, "by": FACTS["refsim"]}
        (runs / f"{name}.done").write_text(json.dumps(done))
    upstream_report.write(tmp_path, tmp_path, FACTS)
    text = (tmp_path / "upstream.md").read_text()
    assert "whose tests are not in the tables: unit-ccl (exit status 4).\n" in text
    assert "**Not run yet**, and not in the tables: unit-later." in text
    assert text.count("**Not run:**") == 2 and f"\nRun by {FACTS['refsim']}.\n" in text
    data = json.loads((tmp_path / "upstream.json").read_text())
    assert data["not_run"] == ["tt-dit", "bugs"]
    assert (data["suites"]["unit"]["silent"], data["suites"]["unit"]["missing"]) == ({"unit-ccl": 4}, ["unit-later"])


def test_a_bug_counts_only_where_the_test_passes_without_it():
    clean = {"bug": "", "case": "a", "caught": False, "how": "upstream's assert"}
    rows = [clean, {"bug": "rope-sign", "case": "a", "caught": True, "how": "upstream's assert"}]
    assert upstream_report._caught(rows)["caught"] == 0
    assert upstream_report._caught([clean | {"how": "passed"}, *rows[1:]])["caught"] == 1
    assert upstream_report._caught(rows[1:])["caught"] == 0


def test_a_conftest_that_cannot_be_imported_costs_its_own_folder_only(tmp_path):
    broken = "import os\nraise RuntimeError(f'{__file__}: ' + os.path.expanduser('~/x'))\n"
    for folder, text in (("a", ""), ("b", broken)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").write_text(text, encoding="utf-8")
        (tmp_path / folder / f"test_{folder}.py").write_text("def test_x(): ...\n", encoding="utf-8")
    job = upstream_jobs.Job("both", ("a/test_a.py", "b/test_b.py"), limit_s=60)
    upstream_jobs.run(tmp_path, [job], tmp_path / "out", 1, 30)
    found = upstream_table.read(tmp_path / "out")
    end = json.loads((tmp_path / "out" / "both.done").read_text())
    assert (end["code"], end["files"]) == (0, ["a/test_a.py"])
    assert found.modules == {"b/test_b.py": "RuntimeError: b/conftest.py: ~/x"}  # not where the tree and one's home lie
    assert found.by == {upstream_jobs.own_version()}


def test_this_project_is_named_by_version_and_commit(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    monkeypatch.setattr(upstream_jobs, "ROOT", tmp_path)
    assert upstream_jobs.own_version() == f"refsim {refsim.__version__} at an unknown commit"
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a")
    clean = upstream_jobs.own_version()
    assert re.fullmatch(rf"refsim {re.escape(refsim.__version__)} at [0-9a-f]{{8}}", clean)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "upstream.md").write_text("a")
    assert upstream_jobs.own_version() == clean
    (tmp_path / "code.py").write_text("a")
    assert upstream_jobs.own_version() == f"{clean} with uncommitted changes"


def test_again_forgets_runs_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / upstream_jobs.UNIT).mkdir(parents=True)
    monkeypatch.setenv("TT_METAL_TREE", str(tmp_path))
    with pytest.raises(SystemExit, match="holds no runs to forget"):
        upstream.main(["unit", "--out", str(tmp_path), "--again"])
    assert (tmp_path / upstream_jobs.UNIT).is_dir()


def test_the_report_counts_and_explains(tmp_path):
    runs = tmp_path / "out" / "unit"
    runs.mkdir(parents=True)
    wrong = {"outcome": "failed", "category": "assertion", "message": "PCC 0.5", "id": LINE["id"] + "b"}
    file = {"id": "tests/ttnn/test_b.py", "outcome": "failed", "category": "version", "message": "No module named 'b'"}
    (runs / "unit-a.jsonl").write_text("\n".join(json.dumps(row) for row in (LINE, LINE, LINE | wrong, file)))
    (runs / "unit-a.done").write_text(json.dumps({"name": "unit-a", "seconds": 1.0, "cut": False}))
    (runs / "unit-a.left").write_text(json.dumps({"more than eight devices": 7}))
    bugs = tmp_path / "out" / "bugs"
    bugs.mkdir()
    rows = [
        {"bug": "", "case": "a", "caught": False, "how": "passed", "said": "", "seconds": 1, "by": "refsim 1 at a"},
        {"bug": "rope-sign", "case": "a", "caught": True, "how": "upstream's assert", "said": "PCC 0", "seconds": 1},
        {"bug": "ring-axis", "case": "a", "caught": False, "how": "passed", "said": "", "seconds": 1},
    ]
    (bugs / "bugs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    upstream_report.write(tmp_path / "out", tmp_path, FACTS)
    text, data = (tmp_path / "upstream.md").read_text(), json.loads((tmp_path / "upstream.json").read_text())
    assert "2 cases started, 2 counted: 100.0 % reach a verdict, 50.0 % pass" in text
    assert "| 1 | ? | unexplained | PCC 0.5 |" in text
    assert "| 1 | file not collected | No module named 'b' |" in text
    assert "Not drawn from: 7 more than eight devices." in text
    assert "1 of 2 caught; 1 of the 1 tests that run them pass without a bug" in text
    assert "last written by refsim 0.1 at abc with uncommitted changes on 2 cores; every part says" in text
    assert (
        "Run by refsim at a commit that was not noted." in text
        and "Run by refsim 1 at a, refsim at" in text
        and "**Not run yet:** row-weight-dim" in text
    )
    assert "**Not run:** there is no run of `python -m benchmarks.upstream tt-dit`." in text
    assert data["not_run"] == ["tt-dit"] and data["refsim"] == FACTS["refsim"]
    assert data["commit"] == "c0ffee" and data["suites"]["unit"]["pass_percent"] == 50.0
    assert data["bugs"]["caught"] == 1
    shutil.rmtree(bugs)
    (runs / "unit-a.jsonl").write_text(json.dumps(LINE))
    upstream_report.write(tmp_path / "out", tmp_path, FACTS)
    kept, data = (tmp_path / "upstream.md").read_text(), json.loads((tmp_path / "upstream.json").read_text())
    assert "1 cases started" in kept and "2 cases started" not in kept  # run again
    (tmp_path / "out" / "unit").rename(tmp_path / "out" / "tt-dit")
    upstream_report.write(tmp_path / "out", tmp_path / "other", FACTS)
    upstream_report.write(tmp_path / "none", tmp_path / "other", FACTS | {"seed": "1"})
    assert (tmp_path / "other" / "upstream.md").read_text().count("**Not run:**") == 3  # another seed's
    assert kept.count("1 of 2 caught") == 1 and data["bugs"]["caught"] == 1 and data["not_run"] == ["tt-dit"]  # kept


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
    job = upstream_jobs.Job("unit-a", ("test_a.py",), ("--ttnn-mock=auto", "--ttnn-mock-sample=3"))
    again = upstream_jobs._again(job, tmp_path, 240)
    assert (again.name, again.files, again.options) == ("unit-a-again", (LINE["id"],), ("--ttnn-mock=auto",))
    assert upstream_table.read(tmp_path).not_alone == 1
    (tmp_path / "unit-a-again.jsonl").write_text(json.dumps(LINE) + "\n")
    run = upstream_table.read(tmp_path)
    assert ([case.kind for case in run.cases], run.alone, run.not_alone) == (["own"], 1, 0)
    (tmp_path / "unit-a-again.jsonl").write_text(json.dumps(LINE | killed) + "\n")
    (case,) = upstream_table.read(tmp_path).cases
    assert case.kind == ("memory" if category == "crash" else "failed")
    assert upstream_jobs._again(job, tmp_path, 240) is None
    other = {**LINE, **killed, "id": f"{LINE['id']}[other]"}
    (tmp_path / "unit-a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in (LINE | killed, other)))
    rest = upstream_jobs._again(job, tmp_path, 240)  # the first run of them by themselves was broken off
    assert (rest.name, rest.files) == ("unit-a-2-again", (other["id"],))
    assert rest.limit_s >= 3 * 240


@pytest.mark.parametrize(
    ("verdict", "caught", "how"),
    [
        ({"outcome": "failed", "category": "error", "message": "PCC"}, True, "upstream's assert"),
        ({"outcome": "failed", "category": "refused", "message": "TT_FATAL"}, True, "refused by ttnn"),
        ({"outcome": "passed", "category": "own", "findings": ["a.py:1: error: freed: x."]}, True, "a finding"),
        ({"outcome": "passed", "category": "own", "findings": ["a.py:1: note: unread: x."]}, False, "passed"),
        ({"outcome": "passed", "category": "own"}, False, "passed"),
        ({"outcome": "failed", "category": "crash", "message": "SIGKILL"}, False, "crash"),
        ({"outcome": "failed", "category": "rule", "message": "ttnn.x has no shadow rule."}, False, "rule"),
        ({"outcome": "failed", "category": "version", "message": "No module named 'x'"}, False, "version"),
        ({"outcome": "skipped", "category": "skipped"}, False, "skipped"),
        ({"outcome": "none", "category": "none"}, False, "none"),
    ],
)
def test_a_bug_is_caught_by_a_failure_or_a_finding(verdict, caught, how):
    judged = upstream_seed.judged(verdict)
    assert (judged["caught"], judged["how"]) == (caught, how)


def test_without_the_tree_nothing_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TT_METAL_TREE", str(tmp_path))
    assert upstream.main(["unit", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("skipped: TT_METAL_TREE")
    assert not (tmp_path / "out").exists()
