"""What is padded is noted where it happens, and told by run, plan and explain with what it adds."""

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from refsim.base.padded import Padded, noting
from refsim.cli.app import app
from refsim.parallel.padding import padded_features, padded_heads, padded_prompt, padded_tokens
from refsim.parallel.sequence import TokenShards
from tests.json_output import loads
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

HEADS = {"what": "heads", "size": 38, "padded": 40, "over": "tp4", "extra": pytest.approx(2 / 38)}


def command(*words):
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_each_padding_is_noted_once_and_what_fits_is_not():
    with noting() as found:
        assert padded_heads(38, 8) == padded_heads(38, 8) == 40
        assert padded_heads(38, 2) == 38
        assert padded_features(2432, 4) == 2432
        assert padded_tokens(40, 1) == 40
        assert TokenShards.of(240, 8).local_n == 32
        assert padded_prompt(333, 8) == 512
    padded_heads(6, 4)  # nobody listens
    assert list(found) == [
        Padded("heads", 38, 40, "tp8", 40 / 38 - 1),
        Padded("tokens", 240, 256, "sp8", 256 / 240 - 1),
        Padded("prompt tokens", 333, 512, "sp8", 512 / 333 - 1),
    ]


def test_the_sentence_says_what_becomes_larger_and_by_how_much():
    wanted = "prompt tokens 333 -> 512 over sp8 (+53.8% of compute and activations of the prompt's tokens)"
    with noting() as found:
        TokenShards.of_prompt(333, 8)
    assert [str(one) for one in found] == [wanted]


def test_one_who_notes_inside_another_keeps_it_to_himself():
    with noting() as outer:
        with noting() as inner:
            padded_heads(3, 2)
        padded_heads(5, 2)
    assert [one.size for one in inner] == [3]
    assert [one.size for one in outer] == [5]


def test_explain_says_what_a_configuration_pads():
    words = ("explain", "sd35-large", "--mesh", "t3k", "--parallel", "cfg2_tp4")
    assert HEADS in loads("explain", command(*words, "--json"))["padded"]
    assert "pads heads 38 -> 40 over tp4 (+5.3% of attention's compute, activations and weights)" in command(*words)


def test_plan_says_what_each_configuration_pads():
    words = ("plan", "sd35-large", "--mesh", "bh-qb-1x4", "--attention", "ring")
    plans = loads("plan", command(*words, "--json"))["plans"]
    padded = {row["parallel"]: row["padded"] for row in plans}
    assert HEADS in next(rows for parallel, rows in padded.items() if parallel.startswith("tp4"))
    assert [] in padded.values()
    assert "heads 38 -> 40 over tp4" in command(*words).partition("Padded")[2]


def test_a_run_says_what_it_pads(tmp_path):
    model, inputs = make_model(), make_inputs()
    save(model, tmp_path / "model")
    save_file(inputs, tmp_path / "in.safetensors")
    words = ("run", tmp_path / "model", "--inputs", tmp_path / "in.safetensors", "--out", tmp_path / "out.safetensors")
    words += ("--mesh", "n300", "--parallel", "sp2", "--prompt-layout", "split")
    prompt, sizes = inputs["encoder_hidden_states"].shape[1], ("what", "size", "padded", "over")
    found = [tuple(one[key] for key in sizes) for one in loads("run", command(*words, "--json"))["padded"]]
    assert ("prompt tokens", prompt, -(-prompt // 64) * 64, "sp2") in found
    assert f"pads prompt tokens {prompt} -> " in command(*words)
