"""A history by commit: nothing counts twice, noise is no news, and the commit that broke something is named."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess

import pytest

from parity.measure import machine
from parity.report import history
from refsim.cli.process import run_command
from refsim.files.keys import as_json
from tests.json_output import loads
from tests.parity.report import page_records
from tests.parity.report.test_diff import FLOOR, record, run
from tests.refsim.helpers import assert_one_sentence

CASE = {"rel_rmse": FLOOR / 4, "one_minus_pcc": 1e-12}
LIMITS = {"rel_rmse": 1e-3, "one_minus_pcc": 1e-10}


def put(tmp_path, number, *records, commit=None, day=None):
    """Add a run of its own commit, ``c0`` and on, one a day."""
    folder = tmp_path / f"run{number}"
    folder.mkdir(exist_ok=True)
    done = run(*records)
    done.commit, done.committed = commit or f"c{number}", f"2026-01-{(day or number) + 10}T00:00:00Z"
    (folder / "results.json").write_text(json.dumps(as_json(done)))
    return history.add(folder, tmp_path / "h.sqlite")


def case(name="a", error=FLOOR / 4, limit=1e-3, **more):
    return record(name, metrics=CASE | {"rel_rmse": error}, thresholds=LIMITS | {"rel_rmse": limit}, **more)


def turns(tmp_path, *errors, **more):
    for number, error in enumerate(errors):
        put(tmp_path, number, case(error=error, **more))
    return [(turn.before, turn.commit) for turn in history.bisect(history.read(tmp_path / "h.sqlite"))]


def command(capsys, *words):
    code = run_command(["history", *map(str, words)])
    return code, *capsys.readouterr()


def test_adding_twice_is_not_double(tmp_path):
    assert put(tmp_path, 0, case(), case("b")) == history.Added("c0", "2026-01-10T00:00:00+00:00", 2, 0)
    assert put(tmp_path, 0, case(), case("b", error=1.0)).replaced == 2
    found = history.rows(history.read(tmp_path / "h.sqlite"), "rel_rmse")
    assert [(row["case"], row["value"]) for row in found] == [("a", FLOOR / 4), ("b", 1.0)]
    put(tmp_path, 1, case())
    assert len(history.read(tmp_path / "h.sqlite", "a")) == 2


def test_results_without_a_run_join_their_commit(tmp_path):
    put(tmp_path, 0, case())
    page_records.write(tmp_path / "more")
    (tmp_path / "more" / "results.json").unlink()
    done = history.add(tmp_path / "more", tmp_path / "h.sqlite", commit="c0")
    assert (done.date, done.replaced) == ("2026-01-10T00:00:00+00:00", 0)
    assert {entry.version for entry in history.read(tmp_path / "h.sqlite")} == {"-"}


def test_noise_is_no_turn_and_what_is_beyond_is(tmp_path):
    assert turns(tmp_path, FLOOR / 4, FLOOR / 2, FLOOR) == []
    assert turns(tmp_path, FLOOR / 4, FLOOR / 2, FLOOR * 10, FLOOR * 10) == [("c1", "c2")]


def test_small_steps_add_up_and_what_got_better_is_the_new_measure(tmp_path):
    assert turns(tmp_path, *(FLOOR * 2 * 1.02**step for step in range(5))) == [("c2", "c3")]


def test_worse_again_after_a_repair_is_worse(tmp_path):
    assert turns(tmp_path, FLOOR * 8, FLOOR * 2, FLOOR * 6) == [("c1", "c2")]


def test_a_failure_is_a_turn_and_a_skipped_case_says_nothing(tmp_path):
    put(tmp_path, 0, case(), case("b", verdict="failed"), case("c"))
    put(tmp_path, 1, record(verdict="skipped", metrics={}), case("b"), case("c"))
    put(tmp_path, 2, case(), case("b"), case("c", verdict="failed"))
    found = history.bisect(history.read(tmp_path / "h.sqlite"))
    assert [(turn.case, turn.before, turn.commit, turn.worse_by) for turn in found] == [
        ("b", "", "c0", ["failed"]),
        ("c", "c1", "c2", ["verdict passed -> failed"]),
    ]


def test_order_is_that_of_the_commits_dates(tmp_path):
    put(tmp_path, 1, case(error=FLOOR * 10))
    put(tmp_path, 0, case())
    assert [turn.commit for turn in history.bisect(history.read(tmp_path / "h.sqlite"))] == ["c1"]


def test_a_loosened_limit_is_shown_as_such(tmp_path, capsys):
    put(tmp_path, 0, case())
    put(tmp_path, 1, case(limit=1e-2))
    code, shown, _ = command(capsys, "show", "--db", tmp_path / "h.sqlite")
    assert code == 0 and shown.startswith("a (parity, cpu, seed 0)\n")
    assert re.search(r"c1 .* 0\.9999999999 +1 +limit of rel_rmse loosened 0\.001 -> 0\.01\n", shown)
    code, shown, _ = command(capsys, "show", "--db", tmp_path / "h.sqlite", "--json", "--metric", "rel_rmse")
    first, second = loads("history show", shown)["rows"]
    assert (first["limit"], first["worse_by"], second["limit"]) == (1e-3, "", 1e-2)


def test_every_kind_of_result_is_shown(tmp_path, capsys):
    folder = page_records.write(tmp_path / "results")
    db, table = tmp_path / "h.sqlite", tmp_path / "h.csv"
    assert command(capsys, "add", folder, "--db", db, "--commit", "v1", "--date", "2026-02-03")[0] == 0
    code, shown, _ = command(capsys, "show", "--db", db, "--json", "--csv", table)
    rows = {(row["kind"], row["case"]): row for row in loads("history show", shown)["rows"]}
    assert code == 0 and {row["date"] for row in rows.values()} == {"2026-02-03T00:00:00+00:00"}
    plan, memory = rows["predictions", "sd35-large 1024 n300 tp2@1"], rows["memory", "sd35-large 1024 t3k sp2"]
    assert (plan["predicted_s"], plan["memory_gb"], memory["memory_gb"]) == (10.0, 9.5, 2**30 / 1e9)
    assert rows["faults", "late"]["verdict"] == "survived"
    assert rows["speed", "ring 4 512 8 64 bf16"]["measured_s"] == 1.0
    assert len(table.read_text().splitlines()) == len(rows) + 1


def test_bisect_says_the_commit_and_its_exit_code(tmp_path, capsys):
    db = tmp_path / "h.sqlite"
    turns(tmp_path, FLOOR / 4, FLOOR * 10)
    code, shown, _ = command(capsys, "bisect", "-k", "a", "--db", db)
    assert code == 1
    assert shown.startswith("a (cpu, seed 0): c1 (2026-01-11T00:00:00+00:00), after c0, compared with c0: rel_rmse ")
    code, shown, _ = command(capsys, "bisect", "--db", db, "--json")
    (turn,) = loads("history bisect", shown)["turns"]
    assert (code, turn["case"], turn["commit"], turn["before"], turn["since"]) == (1, "a", "c1", "c0", "c0")
    put(tmp_path, 1, case())
    assert command(capsys, "bisect", "--db", db)[:2] == (0, "1 cases at 2 commits: none became worse beyond noise\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "--db", "none"], "make it by `refsim history add DIR --db none`"),
        (["show", "--db", "text"], "file is not a database"),
        (["add", "run0", "--db", "other"], "is a database of something else"),
        (["bisect", "--db", "h.sqlite", "-k", "attention-x"], "matches -k 'attention-x'; it has 1, such as a"),
        (["bisect", "--db", "h.sqlite"], "fewer than two commits"),
        (["show", "--db", "h.sqlite", "--metric", "pc"], "choose PCC or one of one_minus_pcc, rel_rmse"),
        (["add", "old", "--db", "h.sqlite"], "needs the name of one commit"),
        (["add", ".", "--db", "h.sqlite"], r"several commits \(none, c0\)"),
        (["add", "run0", "--db", "h.sqlite", "--date", "soon"], "'soon' is no date; say --date 2026-01-31"),
        (
            ["add", "foreign", "--db", "h.sqlite", "--commit", "x", "--date", "2026-01-31"],
            "record of another form than `refsim parity run",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, 0, case())
    (tmp_path / "text").write_text("no database at all" * 100)
    with sqlite3.connect("other") as other:
        other.execute("CREATE TABLE mine (x)")
    for name, value in (("old", as_json(run(record()))), ("foreign", {"records": [{"name": "x"}]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(value))
    code, _, said = command(capsys, *words)
    assert code == 2
    assert_one_sentence(said.removeprefix("refsim: ").strip())
    assert re.search(sentence, said)


def test_a_run_notes_its_commit(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.commit() == {"commit": "", "committed": ""}
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a")
    clean = machine.commit()
    assert re.fullmatch(r"[0-9a-f]{40}", clean["commit"]) and clean["committed"][:2] == "20"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text("a")
    assert machine.commit() == clean
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / "x.py").write_text("a")
    assert machine.commit()["commit"] == f"{clean['commit']}-dirty"
