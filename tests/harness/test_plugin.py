"""The pytest plugin on a suite in the style of TTNN's own: what passes on what evidence, how failures are called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.harness import words
from tests.harness.suites import Ran, run_suite
from tests.tree import ROOT

VALUES = {
    "test_matmul": "own",
    "test_wrong_value": "assertion",
    "test_refused_by_ttnn": "refused",
    "test_ttnn_refuses_as_expected": "own",
    "test_no_such_operation": "version",
    "test_no_such_file": "environment",
    "test_without_a_device": "no-device",
    "test_on_the_other_architecture": "skipped",
    "test_more_cores": "skipped",
    "test_known_to_fail": "expected",
    "test_shared": "own",
}
EVIDENCE = {
    "test_missing_rule": "rule",
    "test_golden_function": "rule",
    "test_rule": "own",
    "test_refused_option": "option",
    "test_unseen_value": "unseen",
    "test_caught": "caught",
    "test_caught_and_skipped": "caught",
    "test_caught_as_expected": "caught",
    "test_caught_at_the_end": "caught",
}
ENDS = {
    "test_before": "own",
    "test_crash": "crash",
    "test_between": "own",
    "test_crash_after_an_operation": "crash",
    "test_hang": "timeout",
    "test_behind": "own",
}


def by_function(ran: Ran) -> dict[str, str]:
    """Categories of the tests, cases of one function taken together; they must be of one category."""
    found: dict[str, set[str]] = {}
    for name, category in ran.categories.items():
        found.setdefault(name.partition("[")[0], set()).add(category)
    assert all(len(categories) == 1 for categories in found.values()), found
    return {name: categories.pop() for name, categories in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Three files in one run, one case of each function, on one device, without golden functions."""
    return run_suite(
        tmp_path_factory.mktemp("whole"),
        "--ttnn-mock=n150",
        "--ttnn-mock-sample=2",
        "--ttnn-mock-timeout=20",
        "--continue-on-collection-errors",
        files=("test_values.py", "test_evidence.py", "test_ends.py", "test_import.py"),
    )


def test_every_test_is_what_it_is(whole: Ran) -> None:
    found = by_function(whole)
    assert found.pop("test_add") == "own"
    assert found.pop("test_import.py") == "version"
    assert found == VALUES | EVIDENCE | ENDS, whole.out[-4000:]
    assert whole.code == 1
    assert whole.left == []


def test_what_a_run_says_word_for_word(whole: Ran) -> None:
    words.check("suite.txt", whole.told())


def test_names_of_what_failed(whole: Ran) -> None:
    """Each failure names the operation, in ttnn's words or ours, without the stack of C++."""
    verdicts = whole.verdicts
    assert verdicts["test_missing_rule"].missing == "ttnn.suite_unknown"
    assert verdicts["test_refused_option"].op == "ttnn.suite_scaled"
    assert "mode" in verdicts["test_refused_option"].message
    assert verdicts["test_unseen_value"].op == "ttnn.add"
    assert verdicts["test_refused_by_ttnn"].message.startswith("TT_FATAL: The width of the first tensor must be equal")
    assert re.search(r"test_values\.py:\d+$", verdicts["test_refused_by_ttnn"].where)
    assert verdicts["test_crash"].op == "ttnn.suite_crash"
    assert verdicts["test_crash"].message == "the process was killed by SIGSEGV in ttnn.suite_crash on [[64, 32]]."
    assert "SIGSEGV after ttnn.add on [[32, 96]]" in verdicts["test_crash_after_an_operation"].message
    assert "gave no answer in 20 s" in verdicts["test_hang"].message
    assert "a_package_that_is_not_there" in verdicts["test_import.py"].message
    assert "backtrace" not in whole.out and "_ttnncpp.so" not in whole.out
    assert 'File "' in whole.out and "in test_crash" in whole.out  # where Python was
    assert "intercept.py" not in whole.out  # which lies between the test and ttnn


def test_the_summary_counts_what_the_verdicts_say(whole: Ran) -> None:
    text = whole.out.partition("= ttnn mock n150 =")[2]
    counts = [int(count) for count in re.findall(r"^ {0,5}(\d+)  \S", text, re.MULTILINE)]
    assert sum(counts) == len(whole.verdicts)
    assert re.search(r"^ +1  failed: an operation has no rule\n +1  ttnn.suite_unknown$", text, re.MULTILINE) is None
    assert re.search(r"^ +2  failed: an operation has no rule$", text, re.MULTILINE)
    assert re.search(r"^ +1  ttnn.suite_unknown$", text, re.MULTILINE)
    assert re.search(r"^ +4  failed: caught an error by which the mock said", text, re.MULTILINE)


def test_an_error_of_the_mock_is_a_failure_even_if_it_is_caught(whole: Ran) -> None:
    """For pytest, too: as a failure of the test or, where a fixture caught it, as an error at its end."""
    said = "ttnn.suite_unknown has no shadow rule."
    for name in ("test_caught", "test_caught_and_skipped", "test_caught_as_expected", "test_caught_at_the_end"):
        assert (whole.verdicts[name].outcome, whole.verdicts[name].message) == ("failed", said)
        assert re.search(rf"^(FAILED|ERROR) test_evidence.py::{name} - the mock knows", whole.out, re.MULTILINE)
        assert whole.junit[name] == (["error"] if name.endswith("end") else ["failure"])


def test_subtests_and_files_that_are_skipped(tmp_path: Path) -> None:
    """A failed subtest fails its test; a file that is skipped as a whole is told."""
    ran = run_suite(tmp_path, "--ttnn-mock=n150", files=("test_parts.py", "test_left_out.py"))
    assert by_function(ran) == {
        "test_parts": "assertion",
        "test_fixture": "assertion",
        "test_right": "no-device",
        "test_left_out.py": "skipped",
    }
    assert ran.code == 1 and ran.out.count("SUBFAILED") == 3
    assert ran.junit["test_parts"] == ["failure", "failure"] and ran.junit["test_right"] == []


def test_what_was_not_run_is_told(tmp_path: Path) -> None:
    """And what was set up for all tests of a file is put away, though its last one has not run."""
    ran = run_suite(tmp_path, "--ttnn-mock=n150", "-x", "-k", "no_such", files=("test_values.py",))
    assert by_function(ran) == {"test_no_such_operation": "version", "test_no_such_file": "not-run"}
    assert (tmp_path / "suite" / "put_away").exists()
    assert ran.code == 1 and re.search(r"^ +1  not run: the run ended before$", ran.out, re.MULTILINE)


@pytest.mark.parametrize("values", ["on", "off"])
def test_a_session_word_for_word(values: str, tmp_path: Path) -> None:
    """On the plugin's own fixtures, with random weights; out of memory once, and with values or without."""
    options = ("--ttnn-mock=n300", f"--ttnn-mock-values={values}", "--ttnn-mock-weights=random:3", "--color=no")
    ran = run_suite(tmp_path, *options, files=("test_session.py",), conftest=False)
    cases = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    properties = {
        case.attrib["name"]: [[value.attrib["name"], value.attrib["value"]] for value in case.iter("property")]
        for case in cases
    }
    memory = (
        ran.out.partition("ttnn mock memory ---")[2].partition("\n---")[0].partition("\n")[2].partition("\n====")[0]
    )
    words.check(f"session_{values}.txt", "\n".join([ran.told(), json.dumps(properties), memory, ""]))


def test_a_closed_device_holds_nothing(tmp_path: Path) -> None:
    """Values of one test outlive it for a module's fixtures, but not the device that they were on."""
    ran = run_suite(tmp_path, "--ttnn-mock=n150", files=("test_closed.py",), conftest=False)
    assert [verdict.category for verdict in ran.verdicts.values()] == ["own"] * 3, ran.out[-4000:]


def test_golden_functions_on_request(tmp_path: Path) -> None:
    """They answer what has no rule or refuses an option, and such a pass is counted apart."""
    ran = run_suite(
        tmp_path,
        "--ttnn-mock=n150",
        "--ttnn-mock-fallback",
        "--ttnn-mock-numerics=fast",
        files=("test_values.py", "test_evidence.py"),
    )
    found = by_function(ran)
    assert found["test_golden_function"] == "fallback"
    assert ran.verdicts["test_golden_function"].fallbacks == {"ttnn.suite_golden": 1}
    assert found["test_missing_rule"] == "rule" and found["test_rule"] == "own"
    assert re.search(r"^ +1  passed with ttnn's golden functions.*circular", ran.out, re.MULTILINE)
    assert ran.verdicts["test_rule"].numerics == {"level": "fast", "rounded": {}, "once": {"ttnn.suite_scaled": 1}}
    told = r"^numerics fast: [1-9]\d* operations rounded as the kernels do, 2 of \d+ kinds rounded once: ttnn.suite_"
    assert re.search(told, ran.out, re.MULTILINE)


def test_a_timeout_of_pytest_timeout(tmp_path: Path) -> None:
    """It ends the test and not its process, which goes on with the next one."""
    ran = run_suite(
        tmp_path, "--ttnn-mock=n150", "--timeout=10", "-k", "hang or behind", files=("test_values.py", "test_ends.py")
    )
    assert by_function(ran) == {"test_hang": "timeout", "test_behind": "own"}, ran.out[-4000:]
    assert ran.verdicts["test_hang"].message.startswith("Timeout")


def test_a_mesh_for_every_test(tmp_path: Path) -> None:
    """With xdist, too: two workers, each with processes of its own for every mesh."""
    ran = run_suite(tmp_path, "--ttnn-mock=auto", "-n2", files=("test_meshes.py", "test_hybrid.py"))
    meshes = {name: verdict.mesh for name, verdict in ran.verdicts.items()}
    assert {verdict.outcome for verdict in ran.verdicts.values()} == {"passed"}, ran.out[-4000:]
    assert meshes.pop("test_one_device") == meshes.pop("test_cores_have_places_of_their_own") == "n150"
    assert meshes.pop("test_all_devices") == "t3k" and meshes.pop("test_collected_with_eight") == "t3k"
    assert sorted(meshes.values()) == ["galaxy", "n300", "t3k", "t3k"]
    assert ran.code == 0 and ran.left == []


def test_a_device_opened_while_tests_are_collected(tmp_path: Path) -> None:
    """All that is forked would have its cluster, which is said."""
    ran = run_suite(tmp_path, "--ttnn-mock=auto", files=("test_opened.py",))
    assert by_function(ran) == {"test_another_mesh": "crash"}
    assert "a module opened a device while tests were collected" in ran.out


def test_findings_and_reports(tmp_path: Path) -> None:
    """What the checks find is told beside a pass, with the suite's line; a report has its files for every test."""
    ran = run_suite(tmp_path, "--ttnn-mock=t3k", "--ttnn-report=../report", files=("test_findings.py",))
    assert by_function(ran) == {"test_ring_on_a_line": "own", "test_random": "own"}, ran.out[-4000:]
    (finding,) = [f for verdict in ran.verdicts.values() for f in verdict.findings if ": error: " in f]
    assert re.match(r"test_findings.py:13: error: ring-without-link: ttnn.all_gather along axis 1 ", finding)
    assert finding in ran.out
    assert ran.verdicts["test_random"].emulated == {"ttnn.rand": 1}
    assert re.search(r"^emulated, so that .*: ttnn.rand 1$", ran.out, re.MULTILINE)
    written = [path.name for path in (tmp_path / "report").glob("test_*")]
    for suffix in (".md", ".csv", ".trace.json", ".visualizer"):
        assert sum(name.endswith(suffix) for name in written) == 2, written


def test_more_devices_than_the_mesh_has(tmp_path: Path) -> None:
    """On a named mesh the suite's own fixtures skip what does not fit; a process for each test is possible."""
    ran = run_suite(tmp_path, "--ttnn-mock=n300", "--ttnn-mock-isolate=test", files=("test_meshes.py",))
    outcomes = [verdict.outcome for verdict in ran.verdicts.values()]
    assert (outcomes.count("passed"), outcomes.count("skipped")) == (3, 4), ran.out[-4000:]
    assert ran.left == []


def test_in_this_process(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=n150", "--ttnn-mock-isolate=none", files=("test_values.py",))
    found = by_function(ran)
    assert found.pop("test_add") == "own" and found == VALUES
    assert ran.left == []


def test_a_sample_is_drawn(tmp_path: Path) -> None:
    """What is drawn by which seed: ``test_selection.py``."""
    options = ("--ttnn-mock-sample=2", "--ttnn-mock-cases=5", "--ttnn-mock-seed=1")
    ran = run_suite(tmp_path, "--ttnn-mock=n150", "--collect-only", "-q", *options, files=("test_values.py",))
    assert len(re.findall(r"^test_values.py::(.+)$", ran.out, re.MULTILINE)) == 5
    assert "deselected" in ran.out and ran.left == []


def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=t4k", files=("test_values.py",))
    assert not (tmp_path / "log.json").exists()  # nor the verdicts of an earlier run
    assert ran.code == 4 and "mesh 't4k' does not exist; choose one of n150" in ran.out


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--ttnn-report=no/where", "ERROR: --ttnn-report 'no/where' is no folder and lies in none"),
        ("--ttnn-mock-sample=-1", "ERROR: --ttnn-mock-sample -1 is no number of cases; 0 takes all."),
        ("--ttnn-mock-cases=-1", "ERROR: --ttnn-mock-cases -1 is no number of cases; 0 takes all."),
        ("--ttnn-mock-weights=small", "ERROR: weights can be random or random:SEED, not 'small'."),
        (
            "--ttnn-mock=auto --ttnn-mock-isolate=none",
            "--ttnn-mock auto needs a process per mesh; name a mesh, or leave",
        ),
        ("-o ttnn_mock_numerics=maybe", "ERROR: level 'maybe' does not exist; choose one of exact, fast."),
        ("-o ttnn_mock_strict=ring", "'ring' is no kind of finding"),
        ("--ttnn-mock=auto --pdb", "--ttnn-mock auto needs a process per mesh; name a mesh, or leave"),
    ],
)
def test_an_option_that_cannot_be_met_is_told_before_tests_run(tmp_path: Path, option: str, sentence: str) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=n150", *option.split(), files=("test_values.py",))
    assert ran.code == 4 and sentence in ran.out and "Traceback" not in ran.out and ran.verdicts == {}


LEAKS = """
import pytest
import ttnn

@pytest.mark.parametrize("memory", [ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG])
def test_two(memory):
    assert memory is None
"""


def test_the_summary_is_the_last_thing_said(tmp_path: Path) -> None:
    """ttnn lists at its end what outlives it, as the parameters of a failed test do."""
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-p", "tt_impl.harness.plugin", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_PLUGINS", None)
    done = subprocess.run(
        [*command, "--ttnn-mock", "n150", "-q", "test_leaks.py"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("2 failed in "), done.stdout
