"""The tool that runs upstream's tests, without upstream's tree: causes, counts and the report."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.upstream import causes, jobs, page, seed, table
from benchmarks.upstream.causes import cause_of

LINE = {"id": f"{jobs.UNIT}/operations/reduce/test_a.py::test_x[1]", "outcome": "passed", "category": "own"}

FACTS = {
    "commit": "c0ffee",
    "ttnn": "1.2.3",
    "seed": "0",
    "refsim": "refsim 0.1 at abc with uncommitted changes",
    "machine": "2 cores",
}


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
    case = table.classified(LINE | changes)
    assert (case.kind, case.suite, case.directory) == (kind, "unit", "operations/reduce")


def test_what_a_cause_leaves_out_is_a_class_of_cases():
    """A comma too many in the table would make it something else."""
    left_out = {row["left_out"] for _, row in causes._CAUSES}
    assert left_out <= {"", *table.LEFT_OUT}
    assert not any(None in row for _, row in [*causes._CAUSES, *causes._FINDINGS])


def test_a_file_that_leaves_itself_out_is_a_skipped_case(tmp_path):
    """One that cannot be imported is none, and is named apart."""
    path = LINE["id"].partition("::")[0]
    lines = [
        {"id": path, "outcome": "skipped", "category": "skipped", "message": "Skipped: not on Wormhole"},
        {"id": "tests/test_b.py", "outcome": "failed", "category": "version", "message": "No module named 'tracy'"},
    ]
    (tmp_path / "job.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = table.read(tmp_path)
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
    cases = [table.classified(LINE | line) for line in lines]
    assert table.rates(cases) == {
        "counted": 5, "verdict_percent": 60.0, "pass_percent": 60.0, "own_percent": 40.0,
        "own_emulated": 1, "own_of_called_percent": 40.0, "theirs": 0, "pass_without_theirs_percent": 60.0,
    }  # fmt: skip
    theirs = {"id": "models/tt_dit/tests/encoders/clip/test_a.py::test_a", "outcome": "failed", "category": "error"}
    theirs |= {"message": "TextEmbeddings.forward() takes 2 positional arguments but 3 were given"}
    rates = table.rates(table.classified(LINE | line) for line in ({}, {"category": "no-device"}, theirs))
    assert (rates["own_percent"], rates["own_of_called_percent"]) == (33.3, 50.0)
    assert (rates["theirs"], rates["pass_percent"], rates["pass_without_theirs_percent"]) == (1, 66.7, 100.0)


def test_what_has_not_run_is_said(tmp_path):
    runs = tmp_path / "unit"
    runs.mkdir()
    (runs / "jobs.json").write_text(json.dumps(["unit-a", "unit-ccl", "unit-empty", "unit-later"]))
    (runs / "unit-a.jsonl").write_text(json.dumps(LINE))
    for name, code in (("unit-a", 1), ("unit-ccl", 4), ("unit-empty", 5)):
        done = {"name": name, "seconds": 1.0, "cut": False, "code": code, "by": FACTS["refsim"]}
        (runs / f"{name}.done").write_text(json.dumps(done))
    page.write(tmp_path, tmp_path, FACTS)
    text = (tmp_path / "upstream.md").read_text()
    assert "whose tests are not in the tables: unit-ccl (exit status 4).\n" in text
    assert "**Not run yet**, and not in the tables: unit-later." in text
    assert text.count("**Not run:**") == 8 and f"\nRun by {FACTS['refsim']}, seed `0`.\n" in text
    data = json.loads((tmp_path / "upstream.json").read_text())
    assert data["not_run"] == ["nightly", "files", "tt-dit", "galaxy", "numerics", "bugs", "attention", "memory"]
    assert (data["suites"]["unit"]["silent"], data["suites"]["unit"]["missing"]) == ({"unit-ccl": 4}, ["unit-later"])


def test_findings_in_passing_cases_are_explained_or_told(tmp_path):
    freed = f"{jobs.UNIT}/base_functionality/test_print_tensor.py::test_print[deallocate=True-a]"
    found = "a.py:1: error: freed: ttnn.Tensor.__repr__ uses argument 0."
    lines = [
        LINE | {"id": freed, "findings": [found, "a.py:2: note: unread: x."]},
        LINE | {"findings": [found]},
        LINE | {"id": LINE["id"] + "b", "outcome": "failed", "category": "assertion", "findings": [found]},
    ]
    (tmp_path / "job.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = "\n".join(page._findings(table.read(tmp_path).cases))
    assert "Findings in cases that pass (2, of which 1 unexplained):" in text
    assert "| 1 | 1 | `freed` | prints a tensor that it has freed |" in text
    assert "| 1 | 1 | `freed` | unexplained |" in text
    assert page._findings([]) == ["No finding in a case that passes."]


def test_a_bug_counts_only_where_the_test_passes_without_it():
    clean = {"bug": "", "case": "a", "caught": False, "how": "upstream's assert"}
    rows = [clean, {"bug": "rope-sign", "case": "a", "caught": True, "how": "upstream's assert"}]
    assert page._caught(rows)["caught"] == 0
    assert page._caught([clean | {"how": "passed"}, *rows[1:]])["caught"] == 1
    assert page._caught(rows[1:])["caught"] == 0


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
    long = {"video": "720p", "mesh": "t3k", "tokens": 75600, "heads": 4, "cpu_s": 94.0, "before_gib": 1.0}
    long |= {"peak_gib": 1.5, "error": 1.6e-3, "by": "refsim 2 at b"}
    (tmp_path / "out" / "attention").mkdir()
    (tmp_path / "out" / "attention" / "attention.jsonl").write_text(json.dumps(long))
    whole = {"model": "Wan", "size": "720p", "mesh": "galaxy", "ended": "to its end", "cpu_s": 71.2, "dram_mib": 2499.0}
    whole |= {"dram_of_mib": 12276.0, "l1_kib": 1199.9, "owners": [{"where": "a.py:1", "count": 2, "mib": 370.04}]}
    (tmp_path / "out" / "memory").mkdir()
    (tmp_path / "out" / "memory" / "memory.jsonl").write_text(json.dumps(whole))
    page.write(tmp_path / "out", tmp_path, FACTS)
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
    assert (
        data["not_run"] == ["nightly", "files", "tt-dit", "galaxy", "numerics"]
        and data["attention"] == [long]
        and data["refsim"] == FACTS["refsim"]
    )
    assert data["commit"] == "c0ffee" and data["suites"]["unit"]["pass_percent"] == 50.0
    assert data["bugs"]["caught"] == 1
    assert "| 720p | 75600 | t3k | 4 | 94 | 1.50 | 1.6e-03 | 940 | 6.0 |" in text
    assert "| to its end | 71 | 2,499 of 12,276 | 1,200 | 2 x `a.py:1` 370 |" in text
    shutil.rmtree(bugs)
    shutil.rmtree(tmp_path / "out" / "attention")
    (runs / "unit-a.jsonl").write_text(json.dumps(LINE))
    page.write(tmp_path / "out", tmp_path, FACTS)
    kept, data = (tmp_path / "upstream.md").read_text(), json.loads((tmp_path / "upstream.json").read_text())
    assert "1 cases started" in kept and "2 cases started" not in kept  # run again
    (tmp_path / "out" / "unit").rename(tmp_path / "out" / "tt-dit")
    page.write(tmp_path / "out", tmp_path / "other", FACTS)
    page.write(tmp_path / "none", tmp_path / "other", FACTS | {"commit": "beef"})
    assert (tmp_path / "other" / "upstream.md").read_text().count("**Not run:**") == 9  # another tree's
    assert (
        kept.count("1 of 2 caught") == kept.count("| 940 | 6.0 |") == 1
        and data["bugs"]["caught"] == 1
        and data["not_run"] == ["nightly", "files", "tt-dit", "galaxy", "numerics"]
    )  # kept


def test_the_report_says_how_many_whole_files_ran(tmp_path):
    runs = tmp_path / "out" / "files"
    runs.mkdir(parents=True)
    (runs / jobs.JOBS).write_text(json.dumps(["file-a", "file-b", "file-c"]))
    for name in ("file-a", "file-b"):
        (runs / f"{name}.jsonl").write_text(json.dumps(LINE | {"id": LINE["id"] + name}))
        (runs / f"{name}.done").write_text(json.dumps({"name": name, "seconds": 1.0, "cut": False}))
    page.write(tmp_path / "out", tmp_path, FACTS)
    text = (tmp_path / "upstream.md").read_text()
    assert "that was not noted, seed `0`. Files that ran: 2." in text
    assert "2 cases started, 2 counted" in text
    assert "**Not run yet**, and not in the tables: file-c." in text


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
        (
            {"outcome": "failed", "category": "unseen", "findings": ["a.py:1: error: freed: x."]},
            True,
            "a finding",
        ),
        ({"outcome": "failed", "category": "version", "message": "No module named 'x'"}, False, "version"),
        ({"outcome": "skipped", "category": "skipped"}, False, "skipped"),
        ({"outcome": "none", "category": "none"}, False, "none"),
    ],
)
def test_a_bug_is_caught_by_a_failure_or_a_finding(verdict, caught, how):
    judged = seed.judged(verdict)
    assert (judged["caught"], judged["how"]) == (caught, how)
