"""Speculative decoding on both wings: the same tokens, the same proposals, the same rows in the caches.

Both run in fp32, but TTNN's attention takes bf16 only, so the device wing's keys, values and queries are rounded to 8
bits and its logits differ in the third digit. A choice that the oracle makes by less than ``TOSS_UP`` may so turn out
otherwise, and so may the choice of an expert by less than ``ROUTER_TOSS_UP``. Of many prompts those are taken whose
tokens and steps hang on no such choice; of their proposals, those behind the end of a step are judged unless they are
one.

Layers, logits and the drafter's first answer are judged by transformers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from parity import metrics as m
from parity.cases import Case
from parity.checkpoints import MODELS, CheckpointStore
from parity.decoding import DecodeOracle, Said, decode_prompts, run
from refsim.api.text import TextResult
from refsim.errors import RefsimError

TOSS_UP = 0.015
"""Of the largest logit. Attention in bf16 moves a logit by up to 0.7 percent of that (``logits_max_error``), the
difference of two by up to twice as much."""

ROUTER_TOSS_UP = 0.02
"""Router logits have a spread of 1 and hidden states an error of half a percent; another expert is another answer."""

CANDIDATES = 32
"""Prompts drawn per case; those with the most different lengths of accepted prefixes are taken."""

PROGRAM = "tt_impl.pipelines.speculative:program"


class WingDecoding:
    """Inputs, reference and judgement of ``wing_decode`` cases; answers are kept until :meth:`drop`."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._oracles: dict[tuple[str, int], DecodeOracle] = {}
        self._answers: dict[tuple[str, int], TextResult] = {}
        self._prompts: dict[tuple[str, int], list[list[int]]] = {}

    def prompts(self, case: Case, seed: int) -> list[list[int]]:
        """As many as the case has, on none of which the oracle's choices are close."""
        if (case.id, seed) not in self._prompts:
            oracle, clear = self._oracle(case, seed), []
            drawn = decode_prompts(replace(case, shape=replace(case.shape, prompts=CANDIDATES)), seed)
            for prompt in drawn:
                said = oracle.say(prompt, case.shape.max_new_tokens)
                routed = oracle.router_gap(prompt + said.tokens) >= ROUTER_TOSS_UP
                if routed and closest_choice(said) >= TOSS_UP * largest_logit(oracle, prompt):
                    clear.append((len(set(said.accepted)), prompt))
            if len(clear) < case.shape.prompts:
                raise RefsimError(f"only {len(clear)} of {CANDIDATES} prompts are clear; another --seed would work.")
            clear.sort(key=lambda found: -found[0])
            self._prompts[case.id, seed] = [prompt for _, prompt in clear[: case.shape.prompts]]
        return self._prompts[case.id, seed]

    def write_inputs(self, case: Case, seed: int, path: Path) -> None:
        """``ids`` of all prompts one after the other and ``lengths``, into a safetensors file."""
        prompts = self.prompts(case, seed)
        ids = torch.tensor([token for prompt in prompts for token in prompt])
        save_file({"ids": ids, "lengths": torch.tensor([len(prompt) for prompt in prompts])}, path)

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        """What ``PROGRAM`` takes besides inputs."""
        return {
            "checkpoint": str(self._store.folder(MODELS[case.model].target, seed)),
            "draft": str(self._store.folder(case.model, seed)),
            "max_new_tokens": case.shape.max_new_tokens,
            "cache": case.shape.cache,
        }

    def reference(self, case: Case, seed: int) -> TextResult:
        """refsim's tokens, computed once; its ranks are forked, so call it from one thread only."""
        if (case.id, seed) not in self._answers:
            self._answers[case.id, seed] = run(case, seed, self._store, prompts=self.prompts(case, seed))
        return self._answers[case.id, seed]

    def drop(self, case: Case, seed: int) -> None:
        """Forget what only this case's checkpoint needs."""
        self._oracles.pop((case.model, seed), None)
        self._prompts.pop((case.id, seed), None)
        self._store.drop(MODELS[case.model].target, seed)

    def compare(self, case: Case, seed: int, texts: list[dict], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """All metrics of the device wing's answer."""
        oracle, prompts = self._oracle(case, seed), self.prompts(case, seed)
        reference = self.reference(case, seed)
        found: dict[str, Any] = {"wrong_tokens": 0, "wrong_proposals": 0, "wrong_steps": 0, "wrong_rows": 0}
        judged = 0
        for prompt, ours, theirs in zip(prompts, texts, reference.texts, strict=True):
            said, toss_up = oracle.say(prompt, case.shape.max_new_tokens), TOSS_UP * largest_logit(oracle, prompt)
            found["wrong_tokens"] += differences(ours["tokens"], theirs.tokens)
            accepted = [step["accepted"] for step in ours["steps"]]
            found["wrong_steps"] += differences(accepted, [step.accepted for step in theirs.steps])
            found["wrong_rows"] += wrong_rows(len(prompt), ours["steps"])
            for step, other, margins in zip(ours["steps"], theirs.steps, said.proposal_margins, strict=False):
                pairs = zip(step["proposed"], other.proposed, margins, strict=True)
                clear = [a == b for a, b, by in pairs if by >= toss_up]
                found["wrong_proposals"] += clear.count(False)
                judged += len(clear)
        states = oracle.states(prompts[0])
        for name, wanted in states.items():
            ours = tensors[name].float()
            ours, wanted = (ours[: len(wanted)], wanted) if name == "layers" else (ours[None], wanted[None])
            found[f"{name}_one_minus_pcc"] = m.worst([m.one_minus_pcc(a, b) for a, b in zip(ours, wanted, strict=True)])
        error = (tensors["logits"].float() - states["logits"]).abs().max() / states["logits"].abs().max()
        found["logits_max_error"] = float(error)
        found["judged_proposals"] = judged
        found["mean_accepted"] = reference.mean_accepted
        return found

    def _oracle(self, case: Case, seed: int) -> DecodeOracle:
        if (case.model, seed) not in self._oracles:
            self._oracles[case.model, seed] = DecodeOracle(self._store, case.model, seed)
        return self._oracles[case.model, seed]


def closest_choice(said: Said) -> float:
    """Least margin of a choice that the tokens or the steps hang on: the target's, and of proposals that end a step."""
    ends = [by[:accepted] for by, accepted in zip(said.proposal_margins, said.accepted, strict=True)]
    return min([said.first_margin, *said.margins, *(margin for end in ends for margin in end)])


def largest_logit(oracle: DecodeOracle, prompt: list[int]) -> float:
    return float(oracle.states(prompt)["logits"].abs().max())


def wrong_rows(start: int, steps: list[dict]) -> int:
    """How often a cache did not hold exactly the rows of final tokens."""
    wrong = 0
    for step in steps:
        wrong += step["draft_rows"] != start
        start += step["accepted"]
        wrong += step["target_rows"] != start
    return wrong


def differences(a: list[int], b: list[int]) -> int:
    return abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))
