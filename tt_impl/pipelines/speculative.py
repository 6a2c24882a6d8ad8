"""Speculative decoding on a mesh: target tensor-parallel, drafter whole on every device.

    prompt --target--> first token, hidden states of the prompt's rows
    repeat, the last token being at position start, not yet in any cache:
        drafter   [last, MASK x 15] + hidden states of the rows since the last call --> 15 proposals
        target    [last, 15 proposals], 16 rows in one pass --> the best token after each of them
        accept    the longest prefix of proposals that are these tokens, then the target's own token
        crop      the target's cache to the accepted rows, whose hidden states go to the drafter

Only ids cross between host and devices: the best tokens are chosen on the devices, the loop runs on the host.
Counterpart of ``refsim.pipelines.speculative``.
"""

from __future__ import annotations

from typing import Any

import torch
import ttnn

from refsim.base.errors import InvariantError, UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.dflash.config import DFlashConfig
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from tt_impl.layers.paged_cache import pages_for
from tt_impl.models.dflash.draft import DFlashDraftModel
from tt_impl.models.qwen3_moe.decoder import Qwen3MoeForCausalLM
from tt_impl.parallel.context import Context
from tt_impl.parallel.tensor import gather_features

CACHES = ("context", "none", "paged")
"""What the drafter's cache keeps: the context, or nothing, so that the whole context is handed in at every call;
``paged``: the context, and the target's rows lie in pages."""


class DFlashDrafter:
    """DFlash with the target's embedding and head."""

    def __init__(self, model: DFlashDraftModel, target: Qwen3MoeForCausalLM, cache: str = "context") -> None:
        self._model = model
        self._target = target
        self._keeps = cache
        self._cache = model.new_cache()
        self._whole: list[ttnn.Tensor] = []

    @property
    def rows(self) -> int:
        return self._cache[0].length

    def propose(self, start: int, last: int, states: list[ttnn.Tensor]) -> torch.Tensor:
        """(block - 1,) ids after ``last``, at ``start``; ``states``: hidden states of the rows since the last call."""
        config = self._model.config
        if self._keeps == "none":
            if self._whole:
                states = [ttnn.concat(list(pair), dim=2) for pair in zip(self._whole, states, strict=True)]
            self._whole = states
            self._cache = self._model.new_cache()
        block = torch.full((1, config.block_size), config.mask_token_id)
        block[0, 0] = last
        hidden = self._model(self._target.embed(block), states, self._cache, start=start)
        if self.rows != start:
            raise InvariantError(f"the drafter's cache has {self.rows} rows before position {start}")
        return self._target.argmax(hidden[:, :, 1:])


def speculate(
    target: Qwen3MoeForCausalLM,
    drafter: DFlashDrafter,
    prompt_1P: torch.Tensor,
    *,
    keep: tuple[int, ...],
    max_new_tokens: int,
) -> dict[str, Any]:
    """Greedy tokens of the target with a drafter's help: ``tokens`` and, per step, ``steps``."""
    cache = target.new_cache()
    hidden = target.hidden(prompt_1P, cache, keep)
    tokens = [int(target.argmax(last_row(hidden.last)))]
    steps = []
    start = prompt_1P.shape[1]
    states = hidden.layers
    while len(tokens) < max_new_tokens:
        proposed = drafter.propose(start, tokens[-1], states)
        hidden = target.hidden(torch.cat([torch.tensor(tokens[-1:]), proposed])[None], cache, keep)
        best = target.argmax(hidden.last)
        matched = matching_prefix(proposed, best)
        tokens += [*proposed[:matched].tolist(), int(best[matched])]
        start += matched + 1
        crop(cache, start)
        if cache[0].length != start:
            raise InvariantError(f"the target's cache has {cache[0].length} rows before position {start}")
        states = [x[:, :, : matched + 1] for x in hidden.layers]
        steps.append(
            {
                "proposed": proposed.tolist(),
                "accepted": matched + 1,
                "target_rows": cache[0].length,
                "draft_rows": drafter.rows,
            }
        )
    return {"tokens": tokens[:max_new_tokens], "steps": steps}


def greedy(target: Qwen3MoeForCausalLM, prompt_1P: torch.Tensor, *, max_new_tokens: int) -> dict[str, Any]:
    """Tokens of the target alone, one row per pass."""
    cache = target.new_cache()
    rows = prompt_1P
    tokens = []
    while len(tokens) < max_new_tokens:
        tokens.append(int(target.argmax(last_row(target.hidden(rows, cache).last))))
        rows = torch.tensor([tokens[-1:]])
    return {"tokens": tokens, "steps": []}


def last_row(x: ttnn.Tensor) -> ttnn.Tensor:
    """Return the last row alone: of a prompt's tokens no other one's successor is asked for."""
    return x[:, :, x.shape[2] - 1 :]


def matching_prefix(proposed: torch.Tensor, best: torch.Tensor) -> int:
    """How many leading proposals are what the target says in their place."""
    return int((proposed == best[: len(proposed)]).long().cumprod(0).sum())


def crop(cache: list, rows: int) -> None:
    """Every layer keeps its first ``rows`` rows."""
    for layer in cache:
        layer.crop(rows)


def load(
    ctx: Context, target: str, draft: str | None, dtype: torch.dtype
) -> tuple[Qwen3MoeForCausalLM, DFlashDraftModel | None]:
    """(target, drafter or None) of two checkpoint folders, their weights read in ``dtype``."""
    folder = Checkpoint(target, ctx.options.variant)
    model = Qwen3MoeForCausalLM(Weights(folder, dtype), ctx, folder.as_config(Qwen3MoeConfig))
    if draft is None:
        return model, None
    other = Checkpoint(draft, ctx.options.variant, part=True)
    return model, DFlashDraftModel(Weights(other, dtype), ctx, other.as_config(DFlashConfig))


def program(
    device: ttnn.MeshDevice,
    options: RunOptions,
    *,
    target: str,
    draft: str | None = None,
    inputs: dict[str, torch.Tensor],
    cache: str = "context",
    max_new_tokens: int,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Tokens after every prompt, and what the layers gave for the first prompt.

    Args:
        target: the target's folder.
        draft: its drafter's folder; None decodes with the target alone.
        inputs: ``ids``, all prompts one after the other, and ``lengths``, tokens of each.

    Returns:
        ``texts``, one per prompt, see :func:`speculate`; ``last`` (rows, D), ``layers`` (layers, rows, D), ``logits``
        (rows, vocabulary) of the first prompt and, with a drafter, ``draft`` (block, D), its first answer.
    """
    if cache not in CACHES:
        raise UserError(f"cache '{cache}' does not exist on the device; choose one of {', '.join(CACHES)}.")
    model, draft_model = load(Context(device, options), target, draft, options.storage)
    lengths = inputs["lengths"].tolist()
    prompts = inputs["ids"].split(lengths)
    if cache == "paged":
        block = 1 if draft_model is None else draft_model.config.block_size
        model.use_pages(pages_for([*lengths, lengths[0]], max_new_tokens + block))  # the first one is looked into again
        cache = "context"
    texts = []
    for prompt in prompts:
        if draft_model is None:
            texts.append(greedy(model, prompt[None], max_new_tokens=max_new_tokens))
            continue
        drafter = DFlashDrafter(draft_model, model, cache)
        texts.append(
            speculate(
                model, drafter, prompt[None], keep=draft_model.config.target_layer_ids, max_new_tokens=max_new_tokens
            )
        )
    first = texts[0]["tokens"][0]
    return {"texts": texts}, _looked_into(model, draft_model, prompts[0], first)


def _looked_into(
    target: Qwen3MoeForCausalLM, model: DFlashDraftModel | None, prompt: torch.Tensor, first: int
) -> dict[str, torch.Tensor]:
    """Run the first prompt once more, and read its states and the drafter's first answer to it from the devices."""
    layers = tuple(range(target.config.num_hidden_layers))
    hidden = target.hidden(prompt[None], target.new_cache(), layers)
    get = target.ctx.get_equal
    logits = get(gather_features(target.ctx, target.logits(hidden.last)))
    tensors = {
        "last": get(hidden.last)[0, 0],
        "layers": torch.cat([get(x)[0] for x in (*hidden.layers[:-1], hidden.before)]),
        "logits": logits[0, 0, :, : target.config.vocab_size],
    }
    if model is not None:
        block = torch.full((1, model.config.block_size), model.config.mask_token_id)
        block[0, 0] = first
        states = [hidden.layers[layer] for layer in model.config.target_layer_ids]
        tensors["draft"] = get(model(target.embed(block), states, model.new_cache(), start=len(prompt)))[0, 0]
    return tensors
