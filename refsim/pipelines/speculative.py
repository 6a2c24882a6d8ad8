"""The program behind ``refsim generate``: a drafter proposes a block, the target verifies it in one pass.

    prompt --target--> first token, hidden states of the prompt's rows
    repeat, the last token being at position start, not yet in any cache:
        drafter   [last, MASK x 15] + hidden states of the rows since the last call --> 15 proposals
        target    [last, 15 proposals], 16 rows in one pass --> what it would say after each of them, t0 .. t15
        accept    the longest prefix with proposal i == t(i); a of them, then t(a), which is the target's own
        crop      the target's cache to start + a + 1; start += a + 1; hidden states of rows 0 .. a go to the drafter

Whatever the drafter says, the tokens are those of the target alone: it can change the speed only. With equal numbers of
rows per pass that holds to the bit; a pass of 16 rows rounds otherwise than a pass of one: two tokens within rounding
of each other may be swapped. The smallest margin that decided a token is reported for that.

Counterparts: z-lab's ``spec_generate``, transformers' assisted generation. "accepted" counts the target's own token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from refsim.base.errors import InvariantError
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.tensor_file import TensorFile
from refsim.layers.kv_cache import KVCache
from refsim.layers.paged_cache import pages_for
from refsim.models.dflash.draft import DFlashDraftModel, check_pair
from refsim.models.qwen3_moe.decoder import Qwen3MoeForCausalLM
from refsim.models.registry import find_model
from refsim.pipelines.transformer import digest
from refsim.runtime.device import Device

CACHES = ("context", "noise", "none", "paged")
"""What the drafter's cache keeps, see ``refsim.models.dflash.draft``; ``paged``: as context, with pages."""


@dataclass(frozen=True)
class Step:
    """One round of drafting and verifying.

    Attributes:
        proposed: what the drafter said; empty without one.
        accepted: tokens it gave, 1 to block size: proposals that matched, and the target's own.
        margin: least difference between best and second best logit that decided one of them.
        target_rows, draft_rows: rows in the caches after it.
    """

    proposed: list[int]
    accepted: int
    margin: float
    target_rows: int
    draft_rows: int
    seconds: float


@dataclass
class Decoded:
    """Tokens after the prompt, up to and with the first stop token, and how they came about."""

    tokens: list[int]
    steps: list[Step] = field(default_factory=list)
    prefill_margin: float = float("inf")

    def has(self, stop: Sequence[int]) -> bool:
        """Whether one of its tokens ends the text."""
        return not set(stop).isdisjoint(self.tokens)


class Drafter(Protocol):
    """Anything that proposes the tokens after ``last``, which stands at position ``start``."""

    rows: int
    """Rows in its cache."""

    def propose(self, start: int, last: int, states_1CF: Tensor) -> Tensor:
        """Return (block - 1,) ids; ``states_1CF``: the target's hidden states of the rows since the last call."""
        ...


class DFlashDrafter:
    """DFlash with the target's embedding and head, and a cache that keeps one of ``CACHES``."""

    def __init__(self, model: DFlashDraftModel, target: Qwen3MoeForCausalLM, cache: str = "context") -> None:
        self._model = model
        self._target = target
        self._keeps = cache
        self._cache = model.new_cache()
        self._whole: list[Tensor] = []

    @property
    def rows(self) -> int:
        return self._cache[0].length

    def propose(self, start: int, last: int, states_1CF: Tensor) -> Tensor:
        config = self._model.config
        if self._keeps == "none":
            self._whole.append(states_1CF)
            states_1CF = torch.cat(self._whole, 1)
            self._cache = self._model.new_cache()
        elif self._keeps == "noise" and self.rows:
            crop(self._cache, start)  # the rejected proposals go, the accepted stay
            states_1CF = states_1CF[:, :0]
        block = torch.full((1, config.block_size), config.mask_token_id)
        block[0, 0] = last
        hidden = self._model(self._target.embed(block), states_1CF, self._cache, start=start)
        if self._keeps == "context":
            crop(self._cache, start)
            expect(self.rows == start, f"the drafter's cache has {self.rows} rows before position {start}")
        return self._target.argmax(hidden[:, 1:])[0][0]


def speculate(
    target: Qwen3MoeForCausalLM,
    drafter: Drafter,
    prompt_1P: Tensor,
    *,
    keep: tuple[int, ...],
    max_new_tokens: int,
    stop: Sequence[int] = (),
    contexts: list[Tensor] | None = None,
) -> Decoded:
    """Decode greedily with a drafter's help; the tokens are the target's own.

    Args:
        keep: the target's layers whose output the drafter reads.
        max_new_tokens: number of tokens to give.
        stop: tokens that end the text.
        contexts: gets what the drafter is given of the prompt, (P, layers x D).
    """
    cache = target.new_cache()
    hidden = target.hidden(prompt_1P, cache, keep)
    if contexts is not None:
        contexts.append(hidden.layers[0])
    token, margin = target.argmax(hidden.last[:, -1:])
    decoded = Decoded([int(token)], prefill_margin=float(margin))
    start = prompt_1P.shape[1]
    states = hidden.layers
    while len(decoded.tokens) < max_new_tokens and not decoded.has(stop):
        target.device.progress(len(decoded.tokens), max_new_tokens)
        begun = time.monotonic()
        proposed = drafter.propose(start, decoded.tokens[-1], states)
        block = torch.cat([torch.tensor(decoded.tokens[-1:]), proposed])
        hidden = target.hidden(block[None], cache, keep)
        best, margins = target.argmax(hidden.last)
        matched = matching_prefix(proposed, best[0])
        accepted = [*proposed[:matched].tolist(), int(best[0, matched])]
        decoded.tokens += accepted
        start += len(accepted)
        crop(cache, start)
        expect(cache[0].length == start, f"the target's cache has {cache[0].length} rows before position {start}")
        states = hidden.layers[:, : len(accepted)]
        margin = float(margins[0, : len(accepted)].min())
        seconds = time.monotonic() - begun
        decoded.steps.append(Step(proposed.tolist(), len(accepted), margin, cache[0].length, drafter.rows, seconds))
    decoded.tokens = _cut(decoded.tokens, max_new_tokens, stop)
    return decoded


def greedy(target: Qwen3MoeForCausalLM, prompt_1P: Tensor, *, max_new_tokens: int, stop: Sequence[int] = ()) -> Decoded:
    """Decode with the target alone, one row per pass."""
    cache = target.new_cache()
    rows = prompt_1P
    decoded = Decoded([])
    while len(decoded.tokens) < max_new_tokens and not decoded.has(stop):
        target.device.progress(len(decoded.tokens), max_new_tokens)
        begun = time.monotonic()
        token, margin = target.argmax(target.hidden(rows, cache).last[:, -1:])
        decoded.tokens.append(int(token))
        rows = token
        decoded.steps.append(Step([], 1, float(margin), cache[0].length, 0, time.monotonic() - begun))
    return decoded


def matching_prefix(proposed: Tensor, best: Tensor) -> int:
    """Return how many leading proposals are what the target says in their place."""
    return int((proposed == best[: len(proposed)]).long().cumprod(0).sum())


def crop(cache: list[KVCache], rows: int) -> None:
    """Keep the first ``rows`` rows of every layer."""
    for layer in cache:
        layer.crop(rows)


def expect(true: bool, broken: str) -> None:
    """Raise ``InvariantError`` if an invariant of the loop does not hold."""
    if not true:
        raise InvariantError(f"speculative decoding is out of step: {broken}")


def load(device: Device, target: str, draft: str | None, dtype: torch.dtype):
    """Load (target, drafter model or None) from two folders; ``UserError`` if they do not belong together."""
    variant = device.options.variant
    drafter = None if draft is None else Weights(Checkpoint(draft, variant, part=True), dtype)
    return build(device, Weights(Checkpoint(target, variant), dtype), drafter)


def build(device: Device, target: Weights, draft: Weights | None):
    """Return (target, drafter model or None) with these weights; ``UserError`` if they do not belong together."""
    model_class, config = find_model(target.checkpoint, "causal_lm")
    model = model_class(target, device, config)
    if draft is None:
        return model, None
    draft_class, draft_config = find_model(draft.checkpoint, "drafter")
    check_pair(config, draft_config)
    return model, draft_class(draft, device, draft_config)


def program(
    device: Device,
    *,
    target: str,
    draft: str | None,
    inputs: str,
    cache: str,
    max_new_tokens: int,
    stop: list[int],
    contexts: bool = False,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run this device's part; rank 0 returns the tokens of every prompt.

    Args:
        draft: the drafter's folder; None decodes with the target alone.
        inputs: safetensors with ``ids``, all prompts one after the other, and ``lengths``, tokens of each.
        contexts: return ``contexts`` as well, what the drafter reads of every prompt: (tokens of all, layers x D).

    Returns:
        ``tokens``, all texts one after the other; the steps of every prompt, the block size, the pages taken, seconds
        per stage and the tokens' digest.
    """
    device.loading("its weights")
    begun = time.monotonic()
    model, draft_model = load(device, target, draft, device.options.storage)
    loaded = time.monotonic()
    tensors = TensorFile(inputs).all()
    texts = []
    read: list[Tensor] = []
    lengths = tensors["lengths"].tolist()
    block = 1 if draft_model is None else draft_model.config.block_size
    if cache == "paged":
        model.use_pages(pages_for(lengths, max_new_tokens + block))
        cache = "context"
    for prompt in tensors["ids"].split(lengths):
        if draft_model is None:
            texts.append(greedy(model, prompt[None], max_new_tokens=max_new_tokens, stop=stop))
            continue
        drafter = DFlashDrafter(draft_model, model, cache)
        keep = draft_model.config.target_layer_ids
        how = {"max_new_tokens": max_new_tokens, "stop": stop, "contexts": read if contexts else None}
        texts.append(speculate(model, drafter, prompt[None], keep=keep, **how))
    tokens = torch.tensor([token for text in texts for token in text.tokens])
    value = {
        "digest": digest(tokens),
        "texts": [asdict(text) for text in texts],
        "block": block,
        "pages": model.pages,
        "seconds": {"load": loaded - begun, "decode": time.monotonic() - loaded},
    }
    return value, {"tokens": tokens} | ({"contexts": torch.cat(read)} if read else {})


def _cut(tokens: list[int], max_new_tokens: int, stop: Sequence[int]) -> list[int]:
    """Return at most ``max_new_tokens``, up to and with the first stop token."""
    ends = [index + 1 for index, token in enumerate(tokens) if token in stop]
    return tokens[: min([max_new_tokens, *ends])]
