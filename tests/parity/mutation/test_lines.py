"""Which lines a case executes: the statements that count, the copy of the packages, the child, the recorded map."""

import json
import threading
import time

import pytest
from typer.testing import CliRunner

from parity.mutation import child, measure, tree
from parity.mutation import coverage as report
from parity.mutation.source import Statement, statements
from refsim.base.errors import UserError
from refsim.cli.app import app, mount
from refsim.models.registry import builtin
from tests.json_output import loads

SOURCE = '''"""Words."""
LIMIT = 3

def f(x):
    """Words."""
    if x is None:
        raise ValueError("no")
    with open(x) as a, \\
            open(x) as b:
        y = (1 +
             2)
    try:
        z = 1
    except OSError:
        z = 2
    return y

class A:
    size: int = 3

    def g(self): return self.size
'''


def test_statements_are_those_of_functions_without_docstrings_and_refusals():
    found = [(s.first, s.last) for s in statements(SOURCE)]
    assert found == [(6, 6), (8, 9), (10, 11), (12, 12), (13, 13), (15, 15), (16, 16), (21, 21)]


REFUSALS = """
def f(x):
    if x is None:
        known = g(x)
        for name in known:
            known = name
        raise ValueError(known)
    elif x:
        if x > 3:
            return 3
        raise ValueError("left by a return as well")
    try:
        y = g(x)
        raise ValueError("every run is in here")
    except OSError as e:
        y = 3
        raise ValueError("no") from e
    except ValueError:
        y = 2
    for x in y:
        known = x
        raise ValueError
    return y
"""


def test_refused_is_what_stands_before_a_raise_in_a_branch_that_only_this_raise_leaves():
    assert [s.first for s in statements(REFUSALS) if s.refuses] == [4, 5, 6, 16]
    executed = set(range(1, 30)) - {4, 6, 10, 16}
    counted = report.count("a.py", REFUSALS, executed)
    assert (counted.lines, counted.executed, counted.refused, counted.missing) == (14, 10, 3, [10])
    assert counted.percent == pytest.approx(100 * 10 / 14) and counted.percent_of_runs == pytest.approx(100 * 10 / 11)
    whole = report.total([counted, report.count("b.py", REFUSALS, set(), refused=True)])
    assert (whole.lines, whole.executed, whole.refused, whole.missing) == (28, 10, 17, [])


def test_models_that_every_run_refuses_are_known_by_their_spec():
    """Their folders; no file that a model which runs is made of."""
    files = report.timing_only()
    assert {f"refsim/models/motif/{file}.py" for file in ("config", "spec", "transformer")} <= files
    assert all((tree.ROOT / file).is_file() for file in files)
    timing_only = [spec.name for spec in builtin() if spec.timing_only]
    assert {file.split("/")[2] for file in files} == {*timing_only}


def test_a_statement_over_several_lines_counts_once():
    counted = report.count("a.py", SOURCE, {6, 9, 11, 12})
    assert (counted.lines, counted.executed, counted.missing) == (8, 4, [13, 15, 16, 21])
    assert report.ranges([3, 4, 5, 9, 11, 12]) == "3-5, 9, 11-12"
    assert report.total([counted, counted]).percent == 50.0


@pytest.mark.parametrize("name", ["nothing/here", "refsim/nothing.py", "/etc", "../secrets", "tests"])
def test_files_that_are_not_there_are_one_sentence(name):
    with pytest.raises(UserError, match="give paths such as refsim/parallel"):
        tree.files_under([name])


def test_files_folders_and_patterns():
    assert tree.files_under(["refsim/parallel/ring.py", "refsim/parallel/r*.py"]) == ["refsim/parallel/ring.py"]
    assert "refsim/models/sd35/config.py" in tree.files_under(["refsim/models/"])
    assert tree.files_under([str(tree.ROOT / "refsim/parallel/ring.py")]) == ["refsim/parallel/ring.py"]


SHOWN = "tests.parity.mutation.shown:shown"


def called(root, what, limit_s=60.0):
    heard = []
    ended = child.call(SHOWN, {"file": what}, root, limit_s=limit_s, hear=heard.append)
    return heard, ended.why


def test_the_child_runs_the_copy_and_the_users_file_stays(copy):
    file = "refsim/parallel/padding.py"
    before = (tree.ROOT / file).read_bytes()
    assert called(copy.root, "") == ([{"file": str(copy.root / file), "tile": 64}], "")
    with copy.changed(file, copy.read(file).replace("32", "48")):
        assert called(copy.root, "raise") == (
            [{"file": str(copy.root / file), "tile": 96}],
            "ValueError: on purpose",
        )
    assert called(copy.root, "")[0][0]["tile"] == 64
    started = time.monotonic()
    assert called(copy.root, "sleep", limit_s=4.0)[1] == "no end in 4 s" and time.monotonic() - started < 30
    assert (tree.ROOT / file).read_bytes() == before


def test_an_error_names_the_copied_files_it_came_through_and_a_death_none(copy):
    ends = [
        child.call(SHOWN, {"file": what}, copy.root, limit_s=60.0, hear=lambda _: None)
        for what in ("", "through", "raise", "die")
    ]
    assert [end.out_of_time for end in ends] == [False] * 4
    assert ends[0] == child.Ended() and ends[3] == child.Ended("the process died")
    assert "refsim/parallel/padding.py" in ends[1].files and "TypeError" in ends[1].why
    assert "refsim/parallel/padding.py" not in ends[2].files and ends[2].why == "ValueError: on purpose"


def test_lines_of_every_process_are_recorded_and_kept(tmp_path, all_forked, copy):
    """Two attention cases: the ring's loop runs on ranks, the cutting of inputs in the launcher."""
    files = tree.files_under(["refsim/parallel", "refsim/api/attention.py"])
    asked = measure.Asked(files, expr="attention-n300-sp2 and fp32-normal and not (split or gather)")
    ran = []
    found = measure.measured(asked, copy, tmp_path / "lines.json", lambda case: ran.append(case.case))
    assert len(ran) == 2 and not found.troubled
    again = measure.measured(asked, copy, tmp_path / "lines.json", lambda case: ran.append(case.case))
    assert again == found and len(ran) == 2
    source = (tree.ROOT / "refsim/parallel/ulysses.py").read_text()
    exchanged = next(i for i, text in enumerate(source.splitlines(), 1) if "all_to_all(" in text)
    cases = found.executing("refsim/parallel/ulysses.py", Statement(exchanged, exchanged))
    assert [case.case for case in cases] == ["attention-n300-sp2-ulysses-fp32-normal"]
    assert found.lines("refsim/api/attention.py")
    kept = json.loads((tmp_path / "lines.json").read_text())
    (tmp_path / "lines.json").write_text(json.dumps({**kept, "key": "of other sources"}))
    assert measure.digest(asked) == kept["key"] != measure.digest(measure.Asked(files))


def test_the_command_counts_and_fails_below_the_least(tmp_path):
    mount()
    command = ["parity", "coverage", "--files", "refsim/parallel/ring.py", "--files", "refsim/parallel/halo.py"]
    command += ["-k", "attention-n300-sp2-ring-fp32", "--out", str(tmp_path), "--least", "90"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 1, done.output
    told = loads("parity coverage", done.stdout)
    assert told == json.loads((tmp_path / "coverage.json").read_text())
    percent = {file["file"]: file["percent"] for file in told["files"]}
    assert percent["refsim/parallel/ring.py"] > 90 and percent["refsim/parallel/halo.py"] == 0
    assert told["percent_of_runs"] >= told["percent"] and told["refused"] == sum(f["refused"] for f in told["files"])
    assert "| refsim/parallel/ring.py |" in (tmp_path / "coverage.md").read_text()
    done = CliRunner().invoke(app, [*command[:-1], "30"])  # from the kept map
    assert done.exit_code == 0 and "refsim/parallel" in done.stdout, done.output


@pytest.mark.parametrize(("threads", "got"), [(1, "forked"), (2, "started anew")])
def test_a_server_is_forked_only_while_no_other_thread_may_be_importing(threads, got, monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    start = child._starter(lambda *_, **__: "started anew", lambda *_, **__: "forked")
    assert [start(server, env={}) for server in (*child.FORK_SERVERS, "else")] == [got, got, "started anew"]
