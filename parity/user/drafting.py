"""A user's own drafter in a run of ``refsim generate``, judged round by round by transformers' target and drafter.

    context    hidden states of the prompt that the drafter read      transformers' target, the layers of the folder
    proposed   tokens of a block                                      transformers' drafter, for the same text so far
    accepted   how many of them                                       the longest prefix that transformers' target says

All is computed again every round, so that no cache and no position of refsim's is taken over. What two logits within
rounding decide counts for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from parity.cases.model_folders import load_drafter, load_oracle
from parity.kinds.cpu.generation import GenerationOracle
from parity.measure import metrics as m
from refsim.api.text import TextRequest
from refsim.files.checkpoint import Checkpoint
from refsim.files.keys import Measured
from refsim.models.registry import find_model, look_at
from refsim.pipelines.speculative import Decoded, Step

CONTEXT_REL_RMSE = 1e-4
"""fp32 leaves 1e-6 to 1e-5 of hidden states after fifty layers; those of a layer too early are off by a tenth."""


@dataclass(frozen=True)
class DraftCheck:
    """What a drafter read and proposed, and what was accepted of it.

    Attributes:
        rounds: how many were judged.
        context_rel_rmse: of the hidden states that the drafter read of the prompt.
        wrong_proposals: of all rounds; None for a drafter that caches its noise, which is another model.
        wrong_accepted: rounds in which more or fewer proposals were accepted than the target says itself.
        first: the first thing that is wrong, in words; empty if nothing is.
    """

    KEYS = ("passed", "rounds", "context_rel_rmse", "context_bound", "wrong_proposals", "wrong_accepted", "first")

    rounds: int
    context_rel_rmse: Measured
    wrong_proposals: int | None
    wrong_accepted: int
    first: str

    @property
    def passed(self) -> bool:
        return not self.first

    @property
    def context_bound(self) -> float:
        return CONTEXT_REL_RMSE

    def lines(self) -> list[str]:
        """Write the same in lines."""
        proposals = "not judged" if self.wrong_proposals is None else str(self.wrong_proposals)
        verdict = "passed" if self.passed else f"failed: {self.first}"
        return [
            f"  {'context_rel_rmse':26} {self.context_rel_rmse:9.2e}  at most {CONTEXT_REL_RMSE:.2e}",
            f"drafter, {self.rounds} rounds, wrong proposals: {proposals}, rounds with another count of accepted "
            f"tokens: {self.wrong_accepted}: {verdict}",
        ]


def judge_drafting(
    folder: Path,
    ids: Sequence[int],
    text: Decoded,
    request: TextRequest,
    context: Tensor | None,
    limit: float,
    variant: str | None = None,
) -> DraftCheck:
    """Judge every round of a text.

    Args:
        folder: the target's.
        ids: the prompt.
        context: hidden states (tokens of the prompt, layers x D) that refsim's drafter read.
        limit: logits that are closer are a tie.
    """
    assert request.draft is not None
    draft = look_at(request.draft, variant, "drafter", part=True)
    _, config = find_model(Checkpoint(draft), "drafter")
    drafter = load_drafter(draft.path, config.target_layer_ids, config.mask_token_id, variant)
    oracle = GenerationOracle(load_oracle(folder, torch.float32, variant=variant), drafter)
    wrong = _Wrong()
    expected = oracle.context([*ids])
    error = m.rel_rmse(context, expected) if context is not None and context.shape == expected.shape else float("nan")
    if not error <= CONTEXT_REL_RMSE:
        wrong.note("the hidden states of the prompt are not those of the layers that the drafter's folder names")
    count = 1
    for number, step in enumerate(text.steps):
        if count > len(text.tokens):
            break
        final = [*ids, *text.tokens[: count - 1]]
        last = text.tokens[count - 1]
        if request.cache != "noise":
            wrong.proposals += _wrong_proposals(oracle.propose(final, last), step, number, limit, wrong)
        wrong.accepted += _wrong_accepted(oracle.verify(final, [last, *step.proposed]), step, number, limit, wrong)
        count += step.accepted
    proposals = None if request.cache == "noise" else wrong.proposals
    return DraftCheck(len(text.steps), error, proposals, wrong.accepted, wrong.first)


@dataclass
class _Wrong:
    """What was counted so far, and the first of it in words."""

    proposals: int = 0
    accepted: int = 0
    first: str = ""

    def note(self, words: str) -> None:
        self.first = self.first or words


def _wrong_proposals(logits_NV: Tensor, step: Step, number: int, limit: float, wrong: _Wrong) -> int:
    """Count proposals of a round that are not the best of the drafter's logits."""
    best = logits_NV.max(-1)
    lacks = best.values - logits_NV[torch.arange(len(step.proposed)), torch.tensor(step.proposed)]
    places = (lacks > limit).nonzero().flatten().tolist()
    for place in places[:1]:
        theirs = int(best.indices[place])
        by = f"by {float(lacks[place]):.2g} of a logit"
        ours = step.proposed[place]
        wrong.note(f"round {number} proposes {ours} in place {place}, where transformers' drafter says {theirs}, {by}")
    return len(places)


def _wrong_accepted(logits_NV: Tensor, step: Step, number: int, limit: float, wrong: _Wrong) -> bool:
    """Return whether a round accepted another count than the longest prefix that the target says, ties apart."""
    two = logits_NV.topk(2).values
    matched = 0
    for proposed, best, values in zip(step.proposed, logits_NV.argmax(-1).tolist(), two, strict=False):
        if float(values[0] - values[1]) <= limit:
            return False
        if proposed != best:
            break
        matched += 1
    if step.accepted == matched + 1:
        return False
    wrong.note(f"round {number} goes on by {step.accepted} tokens, where transformers' target allows {matched + 1}")
    return True
