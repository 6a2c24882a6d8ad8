"""``refsim bench shift``: both transports and a plain copy in one record; what did not arrive fails it."""

from __future__ import annotations

import pytest

from benchmarks import shift
from refsim.cli.process import run_command
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence

SMALL = ["--ranks", "2", "--mib", "1", "--rounds", "1"]


def test_a_record_holds_what_its_ratios_are_made_of(capsys):
    assert run_command(["bench", "shift", *SMALL, "--json"]) == 0
    record = loads("bench shift", capsys.readouterr().out)
    assert (record["ranks"], record["mib"], record["rounds"], record["right"]) == (2, 1, 1, True)
    taken = record["seconds"]
    assert record["times_gloo"]["ratio"] == pytest.approx(taken["gloo"] / taken["shared"])
    assert record["of_copy"]["ratio"] == pytest.approx(taken["copy"] / taken["shared"])
    assert record["gb_per_s"]["copy"] == pytest.approx(2 * 2**20 / taken["copy"] / 1e9)


def test_what_did_not_arrive_fails_the_benchmark(capsys, monkeypatch):
    monkeypatch.setattr(shift.launch, "execute", lambda *given, run=shift.launch.execute: spoilt(run(*given)))
    assert run_command(["bench", "shift", *SMALL]) == 1
    assert "WRONG" in capsys.readouterr().out


def spoilt(result):
    result.values[1]["right"] = False
    return result


@pytest.mark.parametrize("words", [["--ranks", "1"], ["--mib", "0"], ["--mib", "9999999"]])
def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, words):
    assert run_command(["bench", "shift", *words]) == 2
    assert_one_sentence(capsys.readouterr().err.strip().removeprefix("refsim: "))
