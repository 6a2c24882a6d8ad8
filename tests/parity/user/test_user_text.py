"""``refsim generate --check-against transformers``: a text of one's own, judged by transformers' ``generate``."""

from __future__ import annotations

import math

import pytest
import torch

from parity.user import drafting, user_text
from refsim.base.options import RunOptions
from refsim.cli import process
from refsim.pipelines.speculative import Decoded, Step
from tests.json_output import loads
from tests.refsim.pipelines.test_speculative import Pair, save_tokenizer

SAYS = [3, 1, 4, 1, 5]


def follow(tokens, *, most=5, close=()):
    """A library that says ``SAYS`` whatever the text, each by 1 over the token below it, or by 1e-5 where ``close``."""

    def generate(ids, count):
        start = len(ids) - 2
        logits = torch.zeros(len(SAYS[start:][:count]), 8)
        for row, (place, token) in zip(logits, list(enumerate(SAYS))[start:], strict=False):
            row[token], row[token - 1] = 2.0, 2.0 - (1e-5 if place in close else 1.0)
        return SAYS[start:][:count], logits

    return user_text.follow(generate, [0, 0], tokens, most)


def test_the_same_text_has_its_margins():
    found = follow(SAYS)
    assert (found.wrong, found.ties, found.margins) == (None, [], [1.0] * 5)


def test_behind_a_tie_the_text_goes_on_and_elsewhere_it_is_wrong():
    found = follow([3, 0, 4, 1, 5], close=(1,))
    assert (found.wrong, found.ties) == (None, [1]) and math.isnan(found.margins[1]) and len(found.margins) == 5
    assert follow([3, 0, 4, 1, 5]).wrong == user_text.Wrong(1, 0, 1, 1.0)
    assert follow([3, 7, 4, 1, 5], close=(1,)).wrong == user_text.Wrong(1, 7, 1, 2.0)


def test_a_text_that_ends_too_early_or_too_late_is_wrong():
    assert follow([3, 1, 4]).wrong == user_text.Wrong(3, None, 1, None)
    assert follow([*SAYS, 2], most=6).wrong == user_text.Wrong(5, 2, None, None)


def test_margins_of_a_pass_are_the_least_of_its_tokens():
    text = Decoded([1] * 4, [Step([], 2, 0.5, 0, 0, 0.0), Step([], 2, 9.0, 0, 0, 0.0)], prefill_margin=1.0)
    assert user_text.margin_error(text, [1.0, 2.0, 0.5, 3.0], drafted=True) == 0  # the last pass gave a token too many
    assert user_text.margin_error(text, [1.25, 2.0, 0.5, 3.0], drafted=True) == 0.25
    assert user_text.margin_error(text, [1.0, math.nan, 0.0, 3.0], drafted=True) == 0


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    pair = Pair(tmp_path_factory.mktemp("user_text"), vocab=64)
    save_tokenizer(pair.target, 64)
    given = ["--mesh", "n300", "--parallel", "tp2", "--max-new-tokens", "6", "--check-against", "transformers"]
    return ["generate", str(pair.target), "--draft", str(pair.draft), "--prompt", "w1 w2 w3", *given]


def test_a_text_of_ones_own_passes(words, capsys):
    assert process.run_command([*words, "--json"]) == 0
    found = loads("generate", capsys.readouterr().out)["check_against"]
    assert found["passed"] and found["against"] == "Qwen3MoeForCausalLM.generate of transformers"
    margin = found["metrics"]["margin_max_abs"]
    assert 0 < margin["value"] <= margin["bound"] and (found["wrong"], found["tokens"]) == (None, 6)
    drafting = found["drafting"]
    assert drafting["passed"] and drafting["rounds"] >= 1
    assert 0 < drafting["context_rel_rmse"] <= drafting["context_bound"] / 10
    assert (drafting["wrong_proposals"], drafting["wrong_accepted"], drafting["first"]) == (0, 0, "")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ref_decoding:target_positions_from_zero", "forward over the same ids is right"),
        ("ref_decoding:one_expert_only", "is wrong, too:"),
        ("ref_decoding:hidden_states_a_layer_early", "the hidden states of the prompt are not those of the layers"),
        ("ref_decoding:block_of_masks_only", "round 0 proposes"),
    ],
)
def test_a_mistake_fails_and_is_placed(words, capsys, monkeypatch, fault, says):
    make = RunOptions.of
    monkeypatch.setattr(RunOptions, "of", lambda **given: make(**given).but(fault=f"parity.faults.{fault}"))
    assert process.run_command(words) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert "check against Qwen3MoeForCausalLM.generate of transformers, fp32: failed" in shown and says in shown


@pytest.mark.parametrize(
    ("accepted", "first"),
    [
        (3, ""),
        (1, "round 4 goes on by 1 tokens, where transformers' target allows 3"),
        (4, "round 4 goes on by 4 tokens, where transformers' target allows 3"),
    ],
)
def test_accepted_is_the_longest_prefix_that_the_target_says(accepted, first):
    logits = torch.eye(8)[[3, 1, 4, 1, 5]]
    wrong = drafting._Wrong()
    step = Step([3, 1, 7, 1], accepted, 1.0, 0, 0, 0.0)
    assert drafting._wrong_accepted(logits, step, 4, 1e-4, wrong) == bool(first)
    assert wrong.first == first


def test_a_tie_decides_nothing_about_what_is_accepted():
    logits = torch.eye(8)[[3, 1, 4, 1, 5]]
    logits[1, 2] = 1.0 - 1e-5
    assert not drafting._wrong_accepted(logits, Step([3, 1, 7, 1], 1, 1.0, 0, 0, 0.0), 0, 1e-4, drafting._Wrong())


@pytest.mark.parametrize(("more", "said"), [(["--dtype", "bf16"], "in fp32"), (["--check-against", "x"], "not 'x'")])
def test_what_cannot_be_judged_is_refused(words, capsys, more, said):
    assert process.run_command([*words, *more]) == 2 and said in capsys.readouterr().err
