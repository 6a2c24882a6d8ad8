"""``refsim bench scale``: each size beside whether its result is right; one that cannot run is named."""

from __future__ import annotations

import csv
from xml.etree import ElementTree

import pytest

from benchmarks import scale
from refsim.cli.process import run_command
from tests.benchmarks.test_sim import answer_too_large
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence

SMALL = ["--ranks", "1,2", "--rows", "256", "--mib", "0.0625", "--repetitions", "1"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(scale, "RANKS", 2)
    monkeypatch.setattr(scale, "ROWS", 256)


def test_all_sizes_are_written_and_one_that_cannot_run_is_named(capsys, tmp_path):
    words = [*SMALL[:3], "256,1000000000", *SMALL[4:]]
    out, table = tmp_path / "sim", tmp_path / "scale.csv"
    assert run_command(["bench", "scale", *words, "--out", str(out), "--csv", str(table), "--json"]) == 0
    found = loads("bench scale", capsys.readouterr().out)
    assert [(record["ranks"], record["rows"]) for record in found["ranks"]] == [(1, 256), (2, 256)]
    assert [(record["ranks"], record["rows"]) for record in found["rows"]] == [(2, 256)]
    assert [(record["mib"], record["right"]) for record in found["messages"]] == [(0.0625, True)]
    for record in found["ranks"] + found["rows"]:
        assert record["right"]
        assert 0 < record["rel_rmse"]["mesh"] < 0.1
        assert all(seconds > 0 for seconds in record["cpu_seconds"].values())
    (skipped,) = found["could_not_run"]
    assert (skipped["sweep"], skipped["size"], found["wrong"]) == ("rows", 1e9, 0)
    assert_one_sentence(skipped["sentence"])

    assert skipped["sentence"] in (document := (out / "scale.md").read_text())
    for plot in ("scale_ranks.svg", "scale_rows.svg", "scale_messages.svg"):
        assert f"]({plot})" in document
        assert ElementTree.parse(out / plot).getroot().tag.endswith("svg")
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["sweep"] for line in lines] == ["ranks", "ranks", "rows", "messages", "rows"]
    assert lines[-1]["sentence"] == skipped["sentence"]


def test_a_wrong_answer_fails_the_benchmark(capsys, monkeypatch):
    answer_too_large(monkeypatch)
    assert run_command(["bench", "scale", "--ranks", "2", "--rows", "", "--mib", "", "--repetitions", "1"]) == 1
    assert "| WRONG |" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--rows", "many"], ["--mib", "0"], ["--mib", "nan"]])
def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, words):
    assert run_command(["bench", "scale", *words]) == 2
    assert_one_sentence(capsys.readouterr().err.strip().removeprefix("refsim: "))


def test_only_many_tokens_are_measured_once():
    sizes = scale.Sizes.parse("1", "16384,16385", "1", 3)
    assert [point.repetitions for point in (*sizes.ranks, *sizes.rows)] == [3, 3, 1]
