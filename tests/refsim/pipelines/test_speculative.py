"""Speculative decoding: the tokens are the target's, whatever the drafter says."""

from __future__ import annotations

import functools
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from refsim.api.text import TextRequest, TextResult, accepts_what_it_may, generate_text
from refsim.base.errors import InvariantError, NotFiniteError, UserError
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.cli.app import app
from refsim.pipelines import speculative
from refsim.pipelines.speculative import (
    Decoded,
    DFlashDrafter,
    Step,
    greedy,
    load,
    matching_prefix,
    speculate,
)
from refsim.runtime import host_memory
from refsim.runtime.device import Device
from tests.json_output import loads
from tests.refsim.tiny.dflash import BLOCK, KEEP, greedy_tokens, make_drafter, make_target, save_drafter, train

VOCAB, MOST = 8, 4
MESHES = {"n150": "sp1", "n300": "tp2", "bh-qb-1x4": "tp4"}
PROMPTS = int(os.environ.get("REFSIM_EXAMPLES", "12"))


def make_prompts(count: int, vocab: int = VOCAB) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, vocab - 1, ((3, 5, 8, 13)[i % 4],), generator=generator) for i in range(count)]


class Pair:
    """A target and a drafter in folders, and as transformers has them."""

    def __init__(self, root, *, vocab: int = VOCAB, seed: int = 3) -> None:
        self.oracle = make_target(seed, vocab=vocab, layers=2)
        self.target, self.draft = root / "target", root / "draft"
        self.oracle.save_pretrained(self.target)
        save_drafter(make_drafter(seed + 1, vocab=vocab, layers=1), self.draft)
        self.answers = functools.cache(lambda count: greedy_tokens(self.oracle, make_prompts(count), MOST))
        self.decoded = functools.cache(self._decoded)

    def _decoded(self, count: int, mesh: str, cache: str = "context") -> TextResult:
        """Decode that many prompts; what there is to compare with are the target's own ``answers``."""
        prompts = [prompt.tolist() for prompt in make_prompts(count)]
        return generate_text(
            self.target, prompts, TextRequest(self.draft, cache, MOST), mesh=mesh, parallel=MESHES[mesh]
        )

    def load(self):
        spec = get_mesh("n150")
        return load(Device(RunOptions.of(mesh=spec)), str(self.target), str(self.draft), torch.float32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mesh", MESHES)
def test_tokens_are_the_targets_for_many_prompts(pair, mesh):
    """Of every length of prompt a few; ``nox -s fuzz`` asks for two hundred."""
    prompts = make_prompts(PROMPTS)
    found = pair.decoded(PROMPTS, mesh)
    assert [text.tokens for text in found.texts] == pair.answers(PROMPTS)
    assert found.replicas_equal and not found.hazards
    assert found.margin > 1e-5, "tokens decided by less than rounding prove nothing"
    assert any(step.accepted > 1 for text in found.texts for step in text.steps)
    for prompt, text in zip(prompts, found.texts, strict=True):
        start = len(prompt)
        for step in text.steps:
            assert step.draft_rows == start, "the drafter keeps context rows only"
            start += step.accepted
            assert step.target_rows == start, "rejected rows are gone"


@pytest.mark.parametrize("cache", ["noise", "none", "paged"])
def test_other_caches_give_the_same_tokens(pair, cache):
    found, kept = pair.decoded(12, "n300", cache), pair.decoded(12, "n300")
    assert [text.tokens for text in found.texts] == pair.answers(12)
    accepted, theirs = ([[s.accepted for s in t.steps] for t in r.texts] for r in (found, kept))
    if cache in ("none", "paged"):
        assert accepted == theirs, "computing everything again proposes what the cache proposes"
    else:
        assert accepted != theirs


class Rigged:
    """Proposes what the target will say, but for one place."""

    rows = 0

    def __init__(self, answer: list[int], prompt: int, wrong_at: int | None) -> None:
        self._answer, self._prompt, self._wrong_at = answer, prompt, wrong_at

    def propose(self, start: int, last: int, kept_1CF: torch.Tensor) -> torch.Tensor:
        after = start - self._prompt + 1
        assert last == self._answer[after - 1]
        said = torch.tensor(self._answer[after : after + BLOCK - 1])
        if self._wrong_at is not None:
            said[self._wrong_at] = (said[self._wrong_at] + 1) % VOCAB
        return said


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 7, BLOCK - 2])
def test_accepted_is_what_was_right(pair, wrong_at):
    model, _ = pair.load()
    prompt = make_prompts(2)[1][None]
    most = 50
    answer = greedy(model, prompt, max_new_tokens=most + BLOCK).tokens
    found = speculate(model, Rigged(answer, prompt.shape[1], wrong_at), prompt, keep=KEEP, max_new_tokens=most)
    assert found.tokens == answer[:most]
    assert {step.accepted for step in found.steps} == {BLOCK if wrong_at is None else wrong_at + 1}


def test_a_trained_drafter_is_worth_having(tmp_path):
    """Seconds of training on the target's own text: more than four tokens per pass of the target."""
    pair = Pair(tmp_path, vocab=6)
    save_drafter(train(make_drafter(4, vocab=6, layers=1), pair.oracle, steps=240), pair.draft)
    prompts = make_prompts(6, 6)
    request = TextRequest(pair.draft, max_new_tokens=32)
    found = generate_text(pair.target, [p.tolist() for p in prompts], request, mesh="bh-qb-1x4", parallel="tp4")
    assert [text.tokens for text in found.texts] == greedy_tokens(pair.oracle, prompts, 32)
    assert found.mean_accepted > 4


def test_text_ends_with_the_first_stop_token(pair):
    model, draft = pair.load()
    prompt = make_prompts(1)[0][None]
    whole = greedy(model, prompt, max_new_tokens=12).tokens
    stop = whole[5]
    expected = whole[: whole.index(stop) + 1]
    assert greedy(model, prompt, max_new_tokens=12, stop=[stop]).tokens == expected
    drafter = DFlashDrafter(draft, model)
    assert speculate(model, drafter, prompt, keep=KEEP, max_new_tokens=12, stop=[stop]).tokens == expected


def test_matching_prefix():
    words = torch.tensor([4, 5, 6, 7])
    assert [matching_prefix(torch.tensor(p), words) for p in ([4, 5, 6], [4, 0, 6], [0, 5, 6])] == [3, 1, 0]


def test_a_cache_out_of_step_is_an_error(pair, monkeypatch):
    model, draft = pair.load()
    monkeypatch.setattr(speculative, "crop", lambda cache, rows: None)
    with pytest.raises(InvariantError, match="cache has"):
        speculate(model, DFlashDrafter(draft, model), make_prompts(1)[0][None], keep=KEEP, max_new_tokens=4)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompts": [[3, VOCAB]]}, f"the id {VOCAB}"),
        ({"prompts": [[]]}, "at least one token"),
        ({"parallel": "sp2"}, "tp2 would work"),
        ({"cache": "all"}, "context, noise, none"),
        ({"max_new_tokens": 0}, "1 or more"),
        ({"check": True, "draft": None}, "draft="),
    ],
)
def test_requests_that_do_not_fit(pair, changed, said):
    asked = {"prompts": [[1, 2]], "draft": pair.draft, "mesh": "n300", "parallel": "tp2"} | changed
    request = TextRequest(**{name: asked.pop(name) for name in ("draft", "cache", "max_new_tokens") if name in asked})
    with pytest.raises(UserError, match=said):
        generate_text(pair.target, asked.pop("prompts"), request, **asked)


def test_weights_that_the_machine_cannot_hold_converted(pair, monkeypatch):
    """Refused with the figure before a rank is started; views of the file's pages take no memory of their own."""
    monkeypatch.setattr(host_memory, "total_bytes", lambda: 100_000)
    request = TextRequest(pair.draft, max_new_tokens=1)
    with pytest.raises(UserError, match=r"decoding on 2 rank\(s\) in bf16 .* weights [\d.]+ GB.*, or a mesh that cuts"):
        generate_text(pair.target, [[1]], request, mesh="n300", parallel="tp2", dtype="bf16")
    assert generate_text(pair.target, [[1]], request, mesh="n300", parallel="tp2") is not None


def test_drafter_as_a_target(pair):
    with pytest.raises(UserError, match="is a DFlashDraftModel; supported: "):
        generate_text(pair.draft, [[1]], TextRequest(), mesh="n150")


@pytest.mark.parametrize("drafted", [False, True], ids=["alone", "drafted"])
def test_tokens_picked_among_logits_that_are_not_finite_are_no_answer(pair, tmp_path, drafted):
    """The weights are finite, the logits are not, and an id does not show it."""
    shutil.copytree(pair.target, tmp_path / "target")
    weights = load_file(tmp_path / "target" / "model.safetensors")
    weights["model.norm.weight"].fill_(3e38)
    weights["lm_head.weight"].fill_(3e38)
    save_file(weights, tmp_path / "target" / "model.safetensors")
    request = TextRequest(pair.draft if drafted else None, max_new_tokens=2)
    with pytest.raises(
        NotFiniteError, match=r"pass 0 after prompt 0 .* not finite; the first op to read one was rank 0's"
    ):
        generate_text(tmp_path / "target", [[1, 2]], request, mesh="n150")


def test_command(tmp_path):
    pair = Pair(tmp_path, vocab=64)
    save_tokenizer(pair.target, 64)
    arguments = ["generate", str(pair.target), "--draft", str(pair.draft), "--prompt", "w1 w2 w3"]
    arguments += ["--mesh", "n300", "--parallel", "tp2", "--max-new-tokens", "6", "--check"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    summary = loads("generate", result.stdout)
    assert summary["tokens"] == greedy_tokens(pair.oracle, [torch.tensor([1, 2, 3])], 6)[0]
    assert summary["text"] == " ".join(f"w{token}" for token in summary["tokens"])
    assert summary["same_as_target"] is True
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "step 1: acc=1/16 avg=1.0" in result.stderr


def save_tokenizer(folder, words: int) -> None:
    """One word per id: w0 w1 w2 ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)


@pytest.mark.parametrize(
    ("accepted", "right"),
    [([3, 2], True), ([3, 1], False), ([2, 2], False), ([4, 2], False), ([3, 2, 7], True)],
)
def test_a_round_goes_on_by_the_longest_prefix_that_the_target_says(accepted, right):
    """Of [9, 3, 1, 4, 1, 5, 2] the first round proposes 3, 1 and a wrong token, the second 1 and a wrong one."""
    proposed = [[3, 1, 7], [1, 0, 0], [2, 2, 2]]
    steps = [Step(p, a, 1.0, 0, 0, 0.0) for p, a in zip(proposed, accepted, strict=False)]
    assert accepts_what_it_may(Decoded([], steps), [9, 3, 1, 4, 1, 5, 2]) == right
