"""``refsim bench peers``: times and errors of all in one record; who cannot run or is wrong is listed and counted."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from benchmarks import peers
from refsim.cli.process import run_command
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence

SMALL = ["--ranks", "2", "--rows", "64", "--heads", "2", "--repetitions", "1"]


def _refuses(*qkv):
    raise NotImplementedError("no kernel for CPUs\nand more")


PLAYED = {
    "no exchange": peers.Peer("played", "ring", lambda device: F.scaled_dot_product_attention),
    "raises": peers.Peer("played", "ulysses", lambda device: _refuses),
    "too long": peers.Peer("played", "ring", lambda device: lambda q, k, v: torch.cat([q, q], 2)),
}
"""Libraries that are none."""


def program(device, **arguments):
    """The benchmark's program on a rank that knows them."""
    with mock.patch.object(peers, "PEERS", peers.PEERS | PLAYED):
        return peers.program(device, **arguments)


@pytest.fixture
def played(monkeypatch):
    ours = {name: peer for name, peer in peers.PEERS.items() if peer.package == "refsim"}
    monkeypatch.setattr(peers, "PEERS", ours | PLAYED)
    execute = peers.launch.execute
    monkeypatch.setattr(
        peers.launch, "execute", lambda _, *given: execute("tests.benchmarks.test_peers:program", *given)
    )


def test_wrong_answers_and_errors_are_listed_and_counted_beside_times(capsys, played):
    assert run_command(["bench", "peers", *SMALL, "--json"]) == 0
    found = loads("bench peers", capsys.readouterr().out)
    assert (found["ranks"], found["wrong"], found["could_not_run"]) == (2, 1, 2)
    of = {record["name"]: record for record in found["records"]}
    assert {name for name, record in of.items() if record.get("right")} == {"refsim ring", "refsim ulysses"}
    assert of["raises"]["error"] == "NotImplementedError: no kernel for CPUs"
    assert of["too long"]["error"] == "the answer has shape [1, 2, 64, 64], the queries [1, 2, 32, 64]"
    low, high = of["no exchange"]["ratio_range"]
    assert 0 < low <= of["no exchange"]["ratio"] <= high and not of["no exchange"]["right"]
    assert of["refsim ring"]["ratio"] == 1.0
    assert run_command(["bench", "peers", *SMALL]) == 0
    table = capsys.readouterr().out
    assert "WRONG" in table and "2 could not run, 1 answered wrongly" in table


def test_a_wrong_answer_of_refsim_fails_the_benchmark(capsys, monkeypatch):
    monkeypatch.setattr(peers, "WORST", 0.0)
    assert run_command(["bench", "peers", *SMALL, "--peer", "refsim ring"]) == 1
    assert "2 answered wrongly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"), [(["--peer", "nobody"], "choose one of refsim ring"), (["--rows", "63"], "multiples of the 2")]
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, words, said):
    assert run_command(["bench", "peers", *SMALL, *words]) == 2
    sentence = capsys.readouterr().err.strip().removeprefix("refsim: ")
    assert said in sentence
    assert_one_sentence(sentence)
