"""``refsim bench sim``: each time stands beside the error of its answer, and a wrong answer fails the benchmark."""

from __future__ import annotations

import pytest

from benchmarks import sim
from refsim.cli.process import run_command
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence

SMALL = ["--ranks", "2", "--rows", "96", "--heads", "4", "--repetitions", "2"]


def test_a_record_holds_what_its_ratio_is_made_of(capsys):
    assert run_command(["bench", "sim", *SMALL, "--json"]) == 0
    found = loads("bench sim", capsys.readouterr().out)
    assert found["machine"]["cores"] >= 1
    assert [record["scheme"] for record in found["records"]] == ["ring", "ulysses"]
    for record in found["records"]:
        assert (record["ranks"], record["dtype"], record["math"], record["hazards"]) == (2, "bf16", "storage", 0)
        low, high = record["ratio_range"]
        assert 0 < low <= record["ratio"] <= high
        assert record["right"]
        assert 0 < record["rel_rmse"]["mesh"] <= sim.WORST * record["rel_rmse"]["one_process"] < 0.1
        assert record["sent_bytes"] > 0


def answer_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the mesh of ``refsim bench sim`` answer 5 % too much."""
    right = sim.attention_result

    def wrong(tensors, **options):
        result = right(tensors, **options)
        result.tensors["out"] *= 1.05
        return result

    monkeypatch.setattr(sim, "attention_result", wrong)


def test_a_wrong_answer_fails_the_benchmark(capsys, monkeypatch):
    answer_too_large(monkeypatch)
    assert run_command(["bench", "sim", *SMALL, "--scheme", "ring"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "1"], "from 2 to 1024"),
        (["--rows", "0"], "rows is 1 or more"),
        (["--dtype", "fp8"], "fp32 or bf16"),
        (["--math", "fast"], "reference, storage"),
        (["--scheme", "usp"], "choose one of ring, ulysses"),
        (["--rows", "1000000000"], "GB"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, words, said):
    assert run_command(["bench", "sim", *words]) == 2
    sentence = capsys.readouterr().err.strip().removeprefix("refsim: ")
    assert said in sentence
    assert_one_sentence(sentence)
