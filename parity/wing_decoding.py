"""Speculative decoding on both wings: the same tokens, the same proposals, the same rows in the caches.

Both run in fp32, but TTNN's attention takes bf16 only, so the device wing's keys, values and queries are rounded to 8
bits and its logits differ in the third digit. A choice that the oracle makes by less than ``UNDECIDED`` may so turn out
otherwise. A text is judged up to the first such choice among its tokens and the proposals that end a step, any other
proposal if it is none itself; the share of tokens that are not judged is counted.

Layers, logits and the drafter's first answer are judged by transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from parity import metrics as m
from parity.cases import Case
from parity.checkpoints import MODELS, CheckpointStore
from parity.decoding import DecodeOracle, Said, decode_prompts, run
from refsim.decode import DecodeResult

UNDECIDED = 0.015
"""Of the largest logit. Attention in bf16 moves a logit by up to half a percent of that (``logits_max_error``), the
difference of two by up to twice as much."""

PROGRAM = "tt_impl.pipelines.speculative:program"


class WingDecoding:
    """Inputs, reference and judgement of ``wing_decode`` cases; answers are kept until :meth:`drop`."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._oracles: dict[tuple[str, int], DecodeOracle] = {}
        self._answers: dict[tuple[str, int], DecodeResult] = {}

    def write_inputs(self, case: Case, seed: int, path: Path) -> None:
        """``ids`` of all prompts one after the other and ``lengths``, into a safetensors file."""
        prompts = decode_prompts(case, seed)
        ids = torch.tensor([token for prompt in prompts for token in prompt])
        save_file({"ids": ids, "lengths": torch.tensor([len(prompt) for prompt in prompts])}, path)

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        """What ``PROGRAM`` takes besides inputs."""
        return {
            "checkpoint": str(self._store.folder(MODELS[case.model].target, seed)),
            "draft": str(self._store.folder(case.model, seed)),
            "most": case.shape.most,
            "mode": case.shape.cache,
            "dtype": case.dtype,
        }

    def reference(self, case: Case, seed: int) -> DecodeResult:
        """refsim's tokens, computed once; its ranks are forked, so call it from one thread only."""
        if (case.id, seed) not in self._answers:
            self._answers[case.id, seed] = run(case, seed, self._store)
        return self._answers[case.id, seed]

    def drop(self, case: Case, seed: int) -> None:
        """Forget what only this case's checkpoint needs."""
        self._oracles.pop((case.model, seed), None)
        self._store.drop(MODELS[case.model].target, seed)

    def compare(self, case: Case, seed: int, texts: list[dict], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """All metrics of the device wing's answer."""
        if (case.model, seed) not in self._oracles:
            self._oracles[case.model, seed] = DecodeOracle(self._store, case.model, seed)
        oracle, prompts = self._oracles[case.model, seed], decode_prompts(case, seed)
        reference = self.reference(case, seed)
        found: dict[str, Any] = {"wrong_tokens": 0, "wrong_proposals": 0, "wrong_steps": 0, "wrong_rows": 0}
        decided = total = proposals = 0
        states = oracle.states(prompts[0])
        toss_up = UNDECIDED * float(states["logits"].abs().max())
        for prompt, ours, theirs in zip(prompts, texts, reference.texts, strict=True):
            said = oracle.say(prompt, case.shape.most)
            tokens, steps = decided_part(said, toss_up)
            decided, total = decided + tokens, total + len(said.tokens)
            found["wrong_tokens"] += differences(ours["tokens"][:tokens], theirs.tokens[:tokens])
            accepted = [step["accepted"] for step in ours["steps"][:steps]]
            found["wrong_steps"] += differences(accepted, [step.accepted for step in theirs.steps[:steps]])
            found["wrong_rows"] += wrong_rows(len(prompt), ours["steps"])
            for step, other, margins in zip(ours["steps"], theirs.steps, said.proposal_margins[:steps], strict=False):
                pairs = zip(step["proposed"], other.proposed, margins, strict=True)
                clear = [a == b for a, b, by in pairs if by >= toss_up]
                found["wrong_proposals"] += clear.count(False)
                proposals += len(clear)
        for name, wanted in states.items():
            ours = tensors[name].float()
            ours, wanted = (ours[: len(wanted)], wanted) if name == "layers" else (ours[None], wanted[None])
            found[f"{name}_one_minus_pcc"] = m.worst([m.one_minus_pcc(a, b) for a, b in zip(ours, wanted, strict=True)])
        error = (tensors["logits"].float() - states["logits"]).abs().max() / states["logits"].abs().max()
        found["logits_max_error"] = float(error)
        found["undecided_share"] = 1 - decided / total
        found["decided_proposals"] = proposals
        return found


def decided_part(said: Said, toss_up: float) -> tuple[int, int]:
    """How many leading tokens and steps hang on no toss-up, be it of the target or of a proposal that ends a step."""
    if said.first_margin < toss_up:
        return 0, 0
    tokens = 1
    for step, (accepted, margin) in enumerate(zip(said.accepted, said.margins, strict=True)):
        if min([margin, *said.proposal_margins[step][:accepted]]) < toss_up:
            return min(tokens, len(said.tokens)), step
        tokens += accepted
    return len(said.tokens), len(said.accepted)


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
