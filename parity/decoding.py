"""Decoding judged by what transformers' target and drafter do, everything computed again at every step.

    tokens      the target's greedy ones, whatever the drafter says
    proposals   what transformers' drafter says to the hidden states of transformers' target
    steps       how many of them were accepted
    rows        in both caches after every step: those of tokens that are final
    margins     by how much the best logit won, which sees what the tokens do not

A prompt at which two logits are within rounding of each other decides nothing and is left out, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parity.cases import Case
from parity.checkpoints import MODELS, CheckpointStore, load_oracle, transformers_model
from parity.inputs import generator
from refsim.api.text import TextRequest, TextResult, generate_text
from refsim.pipelines.speculative import Decoded

UNDECIDED = 1e-4
"""Logits are of order 1 and fp32 rounds them by 1e-6; what is closer than a hundred times that is a toss-up."""


@dataclass
class Said:
    """What the oracle says after one prompt; ``closest`` is the least of all margins, proposals' included."""

    tokens: list[int]
    proposed: list[list[int]]
    accepted: list[int]
    margins: list[float]
    closest: float
    first_margin: float = 0.0
    proposal_margins: list[list[float]] = field(default_factory=list)


def decode_prompts(case: Case, seed: int) -> list[list[int]]:
    """Ids of the prompts, of many lengths; never the drafter's mask."""
    g, words = generator(seed, "prompts"), MODELS[case.model].config["mask_token_id"]
    lengths = [2 + (7 * i) % (case.shape.text - 1) for i in range(case.shape.prompts)]
    return [torch.randint(words, (length,), generator=g).tolist() for length in lengths]


def run(
    case: Case, seed: int, store: CheckpointStore, *, prompts: list[list[int]] | None = None, **more: Any
) -> TextResult:
    """The simulator's part; without ``prompts`` on those of :func:`decode_prompts`."""
    request = TextRequest(store.folder(case.model, seed), case.shape.cache, case.shape.max_new_tokens)
    prompts = decode_prompts(case, seed) if prompts is None else prompts
    options = case.layout.options(case.dtype, **more)
    return generate_text(store.folder(MODELS[case.model].target, seed), prompts, request, options=options)


class DecodeOracle:
    """transformers' target and drafter of one seed."""

    def __init__(self, store: CheckpointStore, drafter: str, seed: int) -> None:
        self._said: dict[tuple, Said] = {}
        spec = MODELS[drafter]
        self._target = load_oracle(store.folder(spec.target, seed), torch.float32)
        self._drafter = transformers_model(spec, generator(seed, "weights"))

    def say(self, prompt: list[int], most: int) -> Said:
        """The loop of speculative decoding without any cache; computed once per prompt."""
        if (tuple(prompt), most) not in self._said:
            self._said[tuple(prompt), most] = self._loop(prompt, most)
        return self._said[tuple(prompt), most]

    @torch.inference_mode()
    def _loop(self, prompt: list[int], most: int) -> Said:
        final, said = list(prompt), Said([], [], [], [], float("inf"))
        word, margin = _best(self._logits(final)[-1])
        said.tokens.append(int(word))
        said.closest = said.first_margin = float(margin)
        while len(said.tokens) < most:
            states = self._target(torch.tensor([final]), output_hidden_states=True).hidden_states
            hidden = self._draft(states, said.tokens[-1])
            proposed, by = _best(self._target.lm_head(hidden[0, 1:]))
            words, margins = _best(self._logits([*final, said.tokens[-1], *proposed.tolist()])[len(final) :])
            matched = 0
            while matched < len(proposed) and proposed[matched] == words[matched]:
                matched += 1
            final += [said.tokens[-1], *proposed[:matched].tolist()]
            said.tokens += [*proposed[:matched].tolist(), int(words[matched])]
            said.proposed.append(proposed.tolist())
            said.proposal_margins.append(by.tolist())
            said.accepted.append(matched + 1)
            said.margins.append(float(margins[: matched + 1].min()))
            said.closest = min(said.closest, said.margins[-1], float(by.min()))
        said.tokens = said.tokens[:most]
        return said

    @torch.inference_mode()
    def states(self, prompt: list[int]) -> dict[str, Tensor]:
        """Of a prompt: ``layers`` (layers - 1, rows, D) before the final norm, ``last`` (rows, D) after it, ``logits``
        (rows, words), and ``draft`` (block, D), the drafter's first answer after its final norm."""
        found = self._target(torch.tensor([prompt]), output_hidden_states=True)
        draft = self._draft(found.hidden_states, int(found.logits[0, -1].argmax()))[0]
        layers = torch.cat(found.hidden_states[1:-1])
        return {"layers": layers, "last": found.hidden_states[-1][0], "logits": found.logits[0], "draft": draft}

    @torch.inference_mode()
    def router_gap(self, ids: list[int]) -> float:
        """By how much the last expert chosen for a row of a text beats the first one left out; the least of all."""
        chosen = self._target.config.num_experts_per_tok
        routers = self._target(torch.tensor([ids]), output_router_logits=True).router_logits
        best = torch.cat(routers).topk(chosen + 1, -1).values
        return float((best[:, -2] - best[:, -1]).min())

    def _draft(self, states: tuple[Tensor, ...], last: int) -> Tensor:
        config = self._drafter.config
        mask = [config.mask_token_id] * (config.block_size - 1)
        noise = self._target.model.embed_tokens(torch.tensor([[last, *mask]]))
        kept = torch.cat([states[layer + 1] for layer in config.target_layer_ids], -1)
        return self._drafter(noise_embeds=noise, context_hidden_states=kept).last_hidden_state

    def _logits(self, ids: list[int]) -> Tensor:
        return self._target(torch.tensor([ids])).logits[0]


def compare(case: Case, prompts: list[list[int]], texts: list[Decoded], oracle: DecodeOracle) -> dict[str, Any]:
    """Metrics of a run: counts of what is wrong over all prompts, and the largest error of a margin."""
    found = {"wrong_tokens": 0, "wrong_proposals": 0, "wrong_steps": 0, "wrong_rows": 0, "margin_max_abs": 0.0}
    undecided = 0
    for prompt, text in zip(prompts, texts, strict=True):
        said = oracle.say(prompt, case.shape.max_new_tokens)
        if said.closest < UNDECIDED:
            undecided += 1
            continue
        found["wrong_tokens"] += _differences(text.tokens, said.tokens)
        found["wrong_proposals"] += sum(
            _differences(a.proposed, b) for a, b in zip(text.steps, said.proposed, strict=False)
        )
        found["wrong_steps"] += _differences([step.accepted for step in text.steps], said.accepted)
        errors = [abs(a.margin - b) for a, b in zip(text.steps, said.margins, strict=False)]
        found["margin_max_abs"] = max([found["margin_max_abs"], *errors])
        start = len(prompt)
        for step in text.steps:
            found["wrong_rows"] += case.shape.cache == "context" and step.draft_rows != start
            start += step.accepted
            found["wrong_rows"] += step.target_rows != start
    found["undecided_share"] = undecided / len(prompts)
    return found


def _best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Best word and margin over the second best of every row."""
    two = logits.topk(2, -1)
    return two.indices[..., 0], two.values[..., 0] - two.values[..., 1]


def _differences(a: list[int], b: list[int]) -> int:
    return abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))
