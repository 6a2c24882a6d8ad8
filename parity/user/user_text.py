"""A text of a user's own decoder, judged by transformers' ``generate`` on the same folder and the same ids, in fp32.

    generate goes on from the prompt    its tokens are refsim's, up to the first that differs
    two logits tie there                refsim's token stands, and generate goes on behind it
    they do not                         failed; the target's forward over these ids is judged by itself, which tells
                                        the model's mistakes (explained as any case is) from those of decoding

A drafter can change the speed only: the text is the target's alone with one, too. What it reads and proposes and how
much of that is accepted is judged apart, see :mod:`parity.user.drafting`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from parity.cases import Layout
from parity.cases.model_folders import load_oracle
from parity.measure import metrics as m
from parity.user.drafting import DraftCheck, judge_drafting
from parity.user.user_checkpoint import Bounded, CheckAgainst, judge_model
from refsim.api.text import TextRequest, TextResult
from refsim.base import scratch
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint
from refsim.pipelines.speculative import Decoded

LEAST = 1e-4
OF_LARGEST = 1e-5
"""Two logits tie, and a margin is right, within ``OF_LARGEST`` of the largest logit and ``LEAST`` at least: fp32 rounds
each of some thirty sums behind a logit by 6e-8 of its size, which leaves about 1e-6 of it."""

Generate = Callable[[Sequence[int], int], tuple[list[int], torch.Tensor]]
"""What follows after ids, so many tokens at most, and the logits (tokens, vocabulary) that decided each."""


@dataclass(frozen=True)
class Wrong:
    """The first token that is wrong.

    Attributes:
        position: in the text; its length where refsim ended too early.
        refsim, transformers: ids; None where the text ended.
        by: what refsim's token lacks of the best logit; None where the text ended.
    """

    position: int
    refsim: int | None
    transformers: int | None
    by: float | None


@dataclass(frozen=True)
class Followed:
    """What :func:`follow` found.

    Attributes:
        margins: of the best logit over the second, for every token that both gave; NaN at a tie.
        ties: positions at which two logits are within rounding and refsim took the other.
        limit: what counts as rounding.
    """

    margins: list[float]
    ties: list[int]
    wrong: Wrong | None
    limit: float


@dataclass(frozen=True)
class TextCheck(Followed):
    """The text, judged by a library's own generation.

    Attributes:
        forward: The target's forward over its ids, judged where the text is wrong.
        drafting: What the drafter read and proposed, where there is one and the text is right.
    """

    KEYS = ("against", "passed", "tokens", "ties", "wrong", "metrics", "forward", "drafting")

    against: str
    tokens: int
    margin_error: float
    forward: CheckAgainst | None = None
    drafting: DraftCheck | None = None

    @property
    def is_right(self) -> bool:
        """Whether the text is."""
        return self.wrong is None and self.margin_error <= self.limit

    @property
    def passed(self) -> bool:
        return self.is_right and (self.drafting is None or self.drafting.passed)

    @property
    def metrics(self) -> dict[str, Bounded]:
        return {"margin_max_abs": Bounded(self.margin_error, self.limit)}

    def text(self, word: Callable[[Sequence[int]], str] = str) -> str:
        """Write the same in lines; ``word`` makes text of ids."""
        wrong = self.wrong
        lines = [f"check against {self.against}, fp32: {'passed' if self.passed else 'failed'}"]
        if wrong is None:
            ties = f", {len(self.ties)} of them ties of two logits" if self.ties else ""
            lines.append(f"  all {self.tokens} tokens are its own{ties}")
        else:
            ours, theirs = (
                "the end" if x is None else f"{x} {word([x])!r}" for x in (wrong.refsim, wrong.transformers)
            )
            by = "" if wrong.by is None else f", by {wrong.by:.2g} of a logit"
            lines.append(f"first wrong token: position {wrong.position}, {ours} where it says {theirs}{by}")
        lines.append(f"  {'margin_max_abs':26} {self.margin_error:9.2e}  at most {self.limit:.2e}")
        lines += self.drafting.lines() if self.drafting is not None else []
        if self.forward is not None and self.forward.passed:
            lines.append(
                "the target's forward over the same ids is right: what is wrong is cache, positions or drafter"
            )
        elif self.forward is not None:
            lines += ["the target's forward over the same ids is wrong, too:", self.forward.text()]
        return "\n".join(lines)


def judge_text(
    folder: Path, ids: Sequence[int], result: TextResult, request: TextRequest, layout: Layout, options: RunOptions
) -> TextCheck:
    """Judge what refsim's ranks gave after the one prompt ``ids``."""
    (text,) = result.texts
    checkpoint = Checkpoint(folder, options.variant)
    followed = follow(_generate(folder, request, options.variant), ids, text.tokens, request.max_new_tokens)
    judged = TextCheck(
        **vars(followed),
        against=f"{checkpoint.class_name}.generate of transformers",
        tokens=len(text.tokens),
        margin_error=margin_error(text, followed.margins, drafted=request.draft is not None),
    )
    if judged.is_right:
        if request.draft is None:
            return judged
        drafting = judge_drafting(folder, ids, text, request, result.contexts, judged.limit, options.variant)
        return replace(judged, drafting=drafting)
    with scratch.Folder("text") as around:
        inputs = Path(around, "ids.safetensors")
        end = len(text.tokens) if followed.wrong is None else followed.wrong.position
        save_file({"input_ids": torch.tensor([[*ids, *text.tokens[:end]]])}, inputs)
        out = Path(around, "logits.safetensors")
        _, forward = judge_model(folder, layout, inputs=inputs, options=options, guidance=None, out=out)
    return replace(judged, forward=forward)


def follow(generate: Generate, ids: Sequence[int], tokens: Sequence[int], most: int) -> Followed:
    """Compare a text with what ``generate`` gives, from behind a tie once more; ``most`` tokens are asked for."""
    margins: list[float] = []
    ties: list[int] = []
    limit = LEAST
    while len(margins) < len(tokens):
        start = len(margins)
        theirs, logits = generate([*ids, *tokens[:start]], most - start)
        limit = max(limit, OF_LARGEST * float(logits.abs().max()))
        for position, (token, row) in enumerate(zip(theirs, logits, strict=True), start):
            if position == len(tokens):
                return Followed(margins, ties, Wrong(position, None, token, None), limit)
            best = row.topk(2).values
            if tokens[position] == token:
                margins.append(float(best[0] - best[1]))
                continue
            by = float(best[0] - row[tokens[position]])
            if not by <= limit:
                return Followed(margins, ties, Wrong(position, tokens[position], token, by), limit)
            margins.append(math.nan)
            ties.append(position)
            break
        else:
            if len(margins) < len(tokens):
                return Followed(margins, ties, Wrong(len(margins), tokens[len(margins)], None, None), limit)
    return Followed(margins, ties, None, limit)


def margin_error(text: Decoded, margins: Sequence[float], *, drafted: bool) -> float:
    """Return the largest error of refsim's margins; of a pass that gave several tokens it is the least of theirs.

    A pass with a tie or with tokens beyond ``margins`` says nothing.
    """
    groups = [(text.prefill_margin, 1)] if drafted else []
    groups += [(step.margin, step.accepted) for step in text.steps]
    errors = [0.0]
    start = 0
    for margin, count in groups:
        theirs = margins[start : start + count]
        if len(theirs) == count and not any(map(math.isnan, theirs)):
            errors.append(abs(margin - min(theirs)))
        start += count
    return m.worst(errors)


def _generate(folder: Path, request: TextRequest, variant: str | None) -> Generate:
    """Generate with transformers, greedily, with its defaults and not those of a folder that draws at random."""
    from transformers import GenerationConfig

    model = load_oracle(folder, torch.float32, variant=variant)
    model.generation_config = GenerationConfig()

    def generate(ids: Sequence[int], most: int) -> tuple[list[int], torch.Tensor]:
        how = {"eos_token_id": list(request.stop) or None, "pad_token_id": 0, "do_sample": False}
        prompt = torch.tensor([list(ids)])
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=most,
            return_dict_in_generate=True,
            output_logits=True,
            **how,
        )
        return output.sequences[0, len(ids) :].tolist(), torch.cat(output.logits)

    return generate
