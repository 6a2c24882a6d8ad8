"""Speculative decoding in TTNN against refsim: the same tokens, the same proposals, the same rows in the caches.

Both run in fp32, but TTNN's attention takes bf16 only, so the device backend's keys, values and queries are rounded to
8 bits and its logits differ in the third digit. A choice that the oracle makes by less than ``TOSS_UP`` may so turn out
otherwise, and so may the choice of an expert by less than ``ROUTER_TOSS_UP``. Of many prompts those are taken whose
tokens and steps hang on no such choice; of their proposals, those behind the end of a step are judged unless they are
one.

Layers, logits and the drafter's first answer are judged by transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.kinds.base import Metrics, TTNNKind
from parity.kinds.cpu.generation import (
    Expected,
    GenerationOracle,
    differences,
    draw_prompts,
    generate,
    one_thread,
    oracle_of,
    wrong_rows,
)
from parity.measure import metrics as m
from parity.measure.comm import decoding_differences, unexplained
from parity.measure.thresholds import Threshold
from refsim.api.text import TextResult
from refsim.base.errors import RefsimError
from refsim.parallel.padding import padded_features

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome

TOSS_UP = 0.015
"""Of the largest logit. Attention in bf16 moves a logit by up to 0.7 percent of that (``logits_max_error``), the
difference of two by up to twice as much."""

ROUTER_TOSS_UP = 0.02
"""Router logits have a spread of 1 and hidden states an error of half a percent; another expert is another answer."""

_FP32_BYTES = 4
CANDIDATES = 32
"""Prompts drawn per case; those with the most different lengths of accepted prefixes are taken."""

_BF16_ATTENTION = (
    "queries, keys and values are rounded to bf16 for TTNN's attention, by 2e-3 of their size, all the rest is fp32: "
    "1 - PCC of 1e-5 where attention is a part of the sum; PCC 0.9999 is asked for"
)


class TTNNGeneration(TTNNKind):
    """Speculative decoding of a few clear prompts; the model of a case is the drafter, which names its target."""

    program = "tt_impl.pipelines.speculative:program"
    thresholds: ClassVar = {
        "fp32": (
            Threshold("wrong_tokens", 0, "the tokens of the reference, which are those of the target alone"),
            Threshold("wrong_proposals", 0, "every proposal that is not a toss-up is the reference's"),
            Threshold("wrong_steps", 0, "the longest prefix that matches is accepted, and the target's own token"),
            Threshold("wrong_rows", 0, "both caches hold the rows of final tokens, no more and no fewer"),
            Threshold(
                "comm_unexplained", 0, "the same collectives in the same order, on the same axis, with the same bytes"
            ),
            *(Threshold(f"{n}_one_minus_pcc", 1e-4, _BF16_ATTENTION) for n in ("layers", "last", "logits", "draft")),
        )
    }

    def prompts(self, case: Case, seed: int) -> list[list[int]]:
        """Return as many prompts as the case has, on none of which the oracle's choices are close."""
        with one_thread():
            return self.once(case, seed, case.id, lambda: self._clear_prompts(case, seed))

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        """Return ``ids`` of all prompts one after the other and ``lengths``."""
        prompts = self.prompts(case, seed)
        ids = torch.tensor([token for prompt in prompts for token in prompt])
        return {"ids": ids, "lengths": torch.tensor([len(prompt) for prompt in prompts])}

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return {
            "target": str(self.store.folder(MODELS[case.model].target, seed)),
            "draft": str(self.store.folder(case.model, seed)),
            "max_new_tokens": case.shape.max_new_tokens,
            "cache": case.shape.cache,
        }

    def reference(self, case: Case, seed: int, inputs: Path) -> TextResult:
        return generate(case, seed, self.store, self.prompts(case, seed), case.layout.options(case.dtype))

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: TextResult) -> tuple[Metrics, dict[str, Any]]:
        texts = outcome.report["texts"]
        oracle = oracle_of(self, case, seed)
        with one_thread():
            metrics = self._compare_texts(case, seed, texts, reference)
            metrics |= compare_states(outcome.tensors, oracle.states(self.prompts(case, seed)[0]))
        metrics["mean_accepted"] = reference.mean_accepted
        communication = decoding_differences(
            reference.collectives, outcome.collectives, logits_bytes(outcome.tensors["logits"], case.layout.config().tp)
        )
        metrics["comm_unexplained"] = unexplained(communication)
        metrics["comm_calls"] = len(reference.collectives)
        return metrics, {"communication": communication, "collectives": outcome.collectives, "texts": texts}

    def _clear_prompts(self, case: Case, seed: int) -> list[list[int]]:
        oracle = oracle_of(self, case, seed)
        clear = []
        for prompt in draw_prompts(case, CANDIDATES, seed):
            expected = oracle.expect(prompt, case.shape.max_new_tokens)
            routed = oracle.router_gap(prompt + expected.tokens) >= ROUTER_TOSS_UP
            if routed and closest_choice(expected) >= TOSS_UP * largest_logit(oracle, prompt):
                clear.append((len(set(expected.accepted)), prompt))
        if len(clear) < case.shape.prompts:
            raise RefsimError(f"only {len(clear)} of {CANDIDATES} prompts are clear; another --seed would work.")
        clear.sort(key=lambda pair: -pair[0])
        return [prompt for _, prompt in clear[: case.shape.prompts]]

    def _compare_texts(self, case: Case, seed: int, texts: list[dict[str, Any]], reference: TextResult) -> Metrics:
        oracle = oracle_of(self, case, seed)
        prompts = self.prompts(case, seed)
        metrics: Metrics = {"wrong_tokens": 0, "wrong_proposals": 0, "wrong_steps": 0, "wrong_rows": 0}
        judged = 0
        for prompt, ours, theirs in zip(prompts, texts, reference.texts, strict=True):
            expected = oracle.expect(prompt, case.shape.max_new_tokens)
            toss_up = TOSS_UP * largest_logit(oracle, prompt)
            metrics["wrong_tokens"] += differences(ours["tokens"], theirs.tokens)
            accepted = [step["accepted"] for step in ours["steps"]]
            metrics["wrong_steps"] += differences(accepted, [step.accepted for step in theirs.steps])
            metrics["wrong_rows"] += wrong_rows(len(prompt), ours["steps"])
            for step, other, margins in zip(ours["steps"], theirs.steps, expected.proposal_margins, strict=False):
                pairs = zip(step["proposed"], other.proposed, margins, strict=True)
                clear = [a == b for a, b, by in pairs if by >= toss_up]
                metrics["wrong_proposals"] += clear.count(False)
                judged += len(clear)
        return metrics | {"judged_proposals": judged}


def compare_states(tensors: dict[str, Tensor], states: dict[str, Tensor]) -> Metrics:
    """Compare hidden states and logits of the first prompt with transformers'."""
    metrics: Metrics = {}
    for name, wanted in states.items():
        ours = tensors[name].float()
        ours, wanted = (ours[: len(wanted)], wanted) if name == "layers" else (ours[None], wanted[None])
        metrics[f"{name}_one_minus_pcc"] = m.worst([m.one_minus_pcc(a, b) for a, b in zip(ours, wanted, strict=True)])
    error = (tensors["logits"].float() - states["logits"]).abs().max() / states["logits"].abs().max()
    return metrics | {"logits_max_error": float(error)}


def logits_bytes(logits: Tensor, tp: int) -> int:
    """Return bytes that a device has of the logits (rows, vocabulary) before they are gathered."""
    rows, vocab_size = logits.shape
    return rows * padded_features(vocab_size, tp) // tp * _FP32_BYTES


def closest_choice(expected: Expected) -> float:
    """Return the least margin that tokens or steps hang on: the target's, and of proposals that end a step."""
    ends = [by[:accepted] for by, accepted in zip(expected.proposal_margins, expected.accepted, strict=True)]
    return min([expected.first_margin, *expected.margins, *(margin for end in ends for margin in end)])


def largest_logit(oracle: GenerationOracle, prompt: list[int]) -> float:
    """Return the largest absolute logit after any token of a prompt."""
    return float(oracle.states(prompt)["logits"].abs().max())
