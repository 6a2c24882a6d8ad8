"""The closing summary and the JSON: every test that was collected is counted once, whatever became of it."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.harness import words
from tt_impl.harness import plugin
from tt_impl.harness.pytest import verdicts
from tt_impl.harness.pytest.summary import Summary, lines, read
from tt_impl.harness.pytest.verdicts import Verdict

WANTED = {
    "passes": ("passed", verdicts.RULES),
    "without a device": ("passed", verdicts.NO_DEVICE),
    "fails": ("failed", verdicts.ASSERTION),
    "has a failed subtest": ("failed", verdicts.ASSERTION),
    "fails at its end": ("failed", verdicts.ERROR),
    "has no fixture": ("failed", verdicts.ERROR),
    "is skipped": ("skipped", verdicts.SKIPPED),
    "fails as expected": ("skipped", verdicts.EXPECTED),
    "dies": ("failed", verdicts.CRASH),
    "loses its worker": ("failed", verdicts.CRASH),
    "is not run": ("not run", verdicts.NOT_RUN),
}
"""What may become of a test, and the outcome and category of its verdict."""


def config(path: Path) -> Any:
    options = {"ttnn_mock": "t3k", "ttnn_report": None, "collectonly": False, "ttnn_mock_json": str(path)}
    return SimpleNamespace(getoption=lambda name, default=None: options.get(name, default), getini=lambda name: "")


def reported(nodeid: str, when: str, outcome: str, category: str | None) -> Any:
    """A report of one phase; without a category it is one that xdist makes of a worker that is gone."""
    report = SimpleNamespace(nodeid=nodeid, when=when, failed=outcome == "failed", longrepr="worker 'gw0' crashed")
    if category is not None:
        report.ttnn_mock = {"when": when, "outcome": outcome, "category": category, "seconds": 0.0}
    return report


def phases(nodeid: str, fate: str) -> list[Any]:
    outcome, category = WANTED[fate]
    passed = "passed", verdicts.RULES
    shown: dict[str, list[tuple[str, tuple[str, str | None]]]] = {
        "is not run": [],
        "loses its worker": [("???", ("failed", None))],
        "dies": [("call", (outcome, category)), ("teardown", ("passed", category))],
        "has no fixture": [("setup", (outcome, category)), ("teardown", passed)],
        "fails at its end": [("setup", passed), ("call", passed), ("teardown", (outcome, category))],
        "has a failed subtest": [
            *(("setup", passed), ("call", (outcome, category)), ("call", passed), ("teardown", passed)),
        ],
    }
    usual = [("setup", passed), ("call", (outcome, category)), ("teardown", passed)]
    return [reported(nodeid, when, *found) for when, found in shown.get(fate, usual)]


@settings(deadline=None)  # how long an example takes is the machine's
@given(
    fates=st.lists(st.sampled_from(sorted(WANTED)), max_size=12),
    files=st.lists(st.sampled_from(["failed", "skipped"]), max_size=3),
    by_worker=st.booleans(),
)
@example(fates=sorted(WANTED), files=["failed", "skipped"], by_worker=False)
def test_every_collected_test_is_counted_once(fates: list[str], files: list[str], by_worker: bool) -> None:
    tests = {f"test_x.py::test_{i}": fate for i, fate in enumerate(fates)}
    with TemporaryDirectory() as folder:
        path = Path(folder, "log.json")
        summary = Summary(config(path))
        for i, outcome in enumerate(files):
            skipped = ("test_y.py", 1, "Skipped: no such package")
            longrepr: Any = skipped if outcome == "skipped" else "E ImportError: no"
            report = SimpleNamespace(
                nodeid=f"test_{i}.py", failed=outcome == "failed", skipped=outcome == "skipped", longrepr=longrepr
            )
            summary.pytest_collectreport(report)
        if by_worker:
            for _ in range(2):
                summary.pytest_xdist_node_collection_finished(list(tests))
        else:
            summary.pytest_collection_finish(SimpleNamespace(items=[SimpleNamespace(nodeid=name) for name in tests]))
        for name, fate in tests.items():
            for report in phases(name, fate):
                summary.pytest_runtest_logreport(report)
        summary.pytest_sessionfinish()
        summary.pytest_unconfigure()
        written = read(path)
    wanted = Counter(WANTED[fate] for fate in fates) + Counter(
        (outcome, verdicts.VERSION if outcome == "failed" else verdicts.SKIPPED) for outcome in files
    )
    assert written == summary.verdicts
    assert Counter((verdict.outcome, verdict.category) for verdict in written) == wanted
    assert {verdict.id for verdict in written} == {*tests, *(f"test_{i}.py" for i in range(len(files)))}
    counts = [re.match(r" {0,5}(\d+)  (\S.*)", line) for line in lines(written)]
    shown = {found[2]: int(found[1]) for found in counts if found}
    told: Counter[str] = Counter()
    for (_, category), count in wanted.items():
        told[verdicts.CATEGORIES[category]] += count
    assert shown == told and sum(shown.values()) == len(tests) + len(files)


def test_nothing_is_missed_where_nothing_was_to_run(tmp_path: Path) -> None:
    found = config(tmp_path / "log.json")
    found.getoption = lambda name, default=None: name == "collectonly" or None
    summary = Summary(found)
    summary.pytest_collection_finish(SimpleNamespace(items=[SimpleNamespace(nodeid="a")]))
    summary.pytest_sessionfinish()
    assert summary.verdicts == []


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match=r"^--ttnn-mock-json .*/no/log.json: No such file or directory\.$"):
        Summary(config(tmp_path / "no" / "log.json"))


def test_older_verdicts_go_but_nothing_else(tmp_path: Path) -> None:
    older, link, pipe = (tmp_path / name for name in ("older.json", "link.json", "pipe"))
    older.write_text("{}\n")
    link.symlink_to(older)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path, tmp_path / "nowhere"):
        plugin._forget(path)
    assert link.is_symlink() and older.exists() and pipe.is_fifo() and tmp_path.is_dir()
    plugin._forget(older)
    assert not older.exists()


def _raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "category", "said"),
    [
        (_raised(RuntimeError("no model"), ModuleNotFoundError("No module", name="timm")), verdicts.VERSION, "timm is"),
        (_raised(RuntimeError("no model"), ConnectionError("no route")), verdicts.ENVIRONMENT, "no model"),
        (type("ConnectError", (Exception,), {"__module__": "httpx._exceptions"})("down"), verdicts.ENVIRONMENT, "down"),
        (RuntimeError("got <urlopen error [Errno -2] Name or service not known>"), verdicts.ENVIRONMENT, "urlopen"),
        (ZeroDivisionError("division by zero"), verdicts.ERROR, "division"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_is_missing_is_told_from_what_is_wrong(error: BaseException, category: str, said: str) -> None:
    assert verdicts.failed(error)[0] == category
    assert said in verdicts.failed(error)[2]


@pytest.mark.parametrize("count", [12, 13])
def test_no_more_than_a_dozen_of_each_are_shown(count: int) -> None:
    """The most frequent first; names are cut to a line."""
    names = [f"ttnn.op{number} {'x' * 200}" for number in range(count)]
    met = [Verdict("t", "failed", verdicts.RULE, op=name, findings=[name], unreported=name) for name in names]
    met += [Verdict("t", "passed", verdicts.RULES, emulated={name: 1}) for name in names]
    text = lines([*met, Verdict("t", "failed", verdicts.RULE, op=names[-1])])
    shown = [line for line in text if line.startswith("           ")]
    assert shown[0] == f"{2:12d}  {names[-1][:160]}"
    assert sum(line.startswith(f"{1:12d}  ttnn.op") for line in shown) == 11 + 12
    more = ["              and 1 more", "  and 1 more; --ttnn-mock-json has all of them"]
    assert [line for line in text if re.match(" +and ", line)] == more * (count - 12)
    assert sum(line.startswith("    ttnn.op") for line in text) == sum(line == "  t" for line in text) == 12
    (emulated,) = (line for line in text if line.startswith("emulated, "))
    assert emulated.count("ttnn.op") == 12


def test_tests_of_one_name_are_counted_each() -> None:
    found = config(Path(os.devnull))
    summary = Summary(found)
    items = [SimpleNamespace(nodeid=name) for name in ("a", "a", "a", "b")]
    summary.pytest_collection_finish(SimpleNamespace(items=items))
    for _ in range(2):
        for report in phases("a", "passes"):
            summary.pytest_runtest_logreport(report)
    summary.pytest_sessionfinish()
    assert Counter((verdict.id, verdict.outcome) for verdict in summary.verdicts) == {
        ("a", "passed"): 2, ("a", "not run"): 1, ("b", "not run"): 1
    }  # fmt: skip


def test_a_summary_word_for_word() -> None:
    """A test of every category, findings, what is emulated, rounded, not computed, and not reported."""
    several = {"ttnn.b": 1, "ttnn.a": 3}
    names = {"op": "ttnn.op", "message": "message", "where": "a.py:1", "fallbacks": several}
    found = [Verdict(f"t{place}", "failed", category, **names) for place, category in enumerate(verdicts.CATEGORIES)]
    found += [Verdict("t", "failed", category, message="no more") for category in (verdicts.RULE, verdicts.MEMORY)]
    numerics = {"level": "fast", "rounded": {"ttnn.add": 2}, "once": {"ttnn.sum": 1}}
    more = {"emulated": several, "numerics": numerics, "unreported": "no room", "findings": ["one", "two"]}
    found += [Verdict("last", "passed", verdicts.RULES, values=False, **more), Verdict("t", "passed", verdicts.RULES)]
    words.check("summary.txt", "\n".join([*lines(found), "", *lines(found[-2:], strict=True), ""]))


@pytest.mark.parametrize(
    ("text", "category", "message"),
    [
        ("a\n\nE   ImportError: no\nz", verdicts.VERSION, "E ImportError: no"),
        ("E   ModuleNotFoundError: x", verdicts.VERSION, "E ModuleNotFoundError: x"),
        ("E   AttributeError: x", verdicts.VERSION, "E AttributeError: x"),
        ("a\n  SyntaxError: no \n\n", verdicts.ERROR, "SyntaxError: no"),
        ("", verdicts.ERROR, ""),
    ],
)
def test_files_that_cannot_be_collected(text: str, category: str, message: str, tmp_path: Path) -> None:
    """What is found is in the file at once, whatever becomes of the run."""
    path = tmp_path / "log.json"
    summary = Summary(config(path))
    report = SimpleNamespace(nodeid="test_a.py", failed=True, skipped=False, longrepr=text)
    summary.pytest_collectreport(report)
    assert read(path) == summary.verdicts == [Verdict("test_a.py", "failed", category, message=message)]
    summary.pytest_unconfigure()
    assert summary._file is not None and summary._file.closed
