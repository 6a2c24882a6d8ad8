"""Faults of decoding on the device backend: caches, positions, the cut vocabulary, the experts, the drafter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parity.cases import GenerationShape, Layout, make_case
from parity.faults.around import around, at, instead
from parity.faults.registry import fault
from parity.faults.ttnn.device import ttnn

TP4 = make_case(
    "ttnn_generation", "dflash_tiny32", Layout("bh-qb-1x4", "tp4"), GenerationShape(prompts=2, text=7, max_new_tokens=6)
)


decoding = partial(fault, "decoding", case=TP4)


@decoding(
    "The drafter's cache keeps the noise rows.",
    "one concat for context and noise, stored",
    says="the drafter's cache has .* rows before position",
)
@at("tt_impl.models.dflash.attention:DFlashAttention.__call__")
def cache_keeps_noise(original: Callable, self: Any, noise: Any, context: Any, rotary: Any, cache: Any) -> Any:
    out = original(self, noise, context, rotary, cache)
    _, k, v = self._qkv(noise)
    cache.append(self._k_norm(k), v)
    return out


@decoding("Rows behind the prompt stand one position late.", "cache length counted with the new row")
@at("tt_impl.models.qwen3_moe.decoder:text_rotary")
def target_position_off_by_one(original: Callable, ctx: Any, positions: torch.Tensor, *rest: Any) -> Any:
    return original(ctx, positions + 1 if positions[0] else positions, *rest)


@decoding("The block stands one position late.", "RoPE of the drafter's noise from start + 1")
@at("tt_impl.models.dflash.draft:text_rotary")
def draft_position_off_by_one(original: Callable, ctx: Any, positions: torch.Tensor, *rest: Any) -> Any:
    return original(ctx, positions + 1 if len(positions) == 16 else positions, *rest)


@decoding("The best token is counted from the shard's first.", "argmax without the shard's offset")
@at("tt_impl.parallel.vocab:VocabArgmax.first_tokens")
def argmax_without_offset(_: Callable, self: Any, local: Any) -> Any:
    return torch.zeros(self._ctx.tp)


@decoding("The experts' partial sums are not reduced.", "all-reduce forgotten behind the down projection")
@at("tt_impl.models.qwen3_moe.experts:reduce_scatter_features")
def experts_not_reduced(original: Callable, ctx: Any, x: Any) -> Any:
    return ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)


@decoding("The block is masks only.", "the last token not put in front of them")
@at("tt_impl.models.dflash.draft:DFlashDraftModel.__call__")
def block_of_masks_only(original: Callable, self: Any, noise: Any, states: Any, cache: Any, *, start: int) -> Any:
    masks = ttnn.repeat(noise[:, :, 1:2], (1, 1, noise.shape[2], 1))
    return original(self, masks, states, cache, start=start)


@decoding("Hidden states come from one layer too late.", "hidden_states[id + 2]")
@at("tt_impl.models.qwen3_moe.decoder:Qwen3MoeForCausalLM.hidden")
def hidden_states_a_layer_late(original: Callable, self: Any, ids: Any, cache: Any, keep: tuple[int, ...] = ()) -> Any:
    last = self.config.num_hidden_layers - 1
    return original(self, ids, cache, tuple(min(layer + 1, last) for layer in keep))


@decoding("The drafter has a head of its own.", "lm_head made anew instead of shared with the target")
@at("tt_impl.pipelines.speculative:DFlashDrafter.propose")
def drafter_with_its_own_head(original: Callable, self: Any, *args: Any) -> Any:
    with instead(self._target, "_head", lambda hidden, head=self._target._head: head(ttnn.neg(hidden))):
        return original(self, *args)


@decoding("The drafter's last norm is loaded and not applied.", "norm left out before the head")
@at("tt_impl.models.dflash.draft:DFlashDraftModel.__init__")
def last_norm_not_applied(original: Callable, self: Any, *args: Any) -> None:
    original(self, *args)
    self._norm = lambda x: x


@decoding(
    "Blocks after a shorter prompt stand where those after the longest did.", "positions of the first prompt kept"
)
@at("tt_impl.models.dflash.draft:DFlashDraftModel.__call__")
def positions_of_a_longer_prompt(
    original: Callable, self: Any, noise: Any, states: Any, cache: Any, *, start: int
) -> Any:
    from tt_impl.models.dflash import draft

    if not cache[0].length:
        self.longest = max(start, getattr(self, "longest", 0))
        self.late = self.longest - start
    rows = noise.shape[2]

    def turned(rotary: Any, ctx: Any, positions: torch.Tensor, *rest: Any) -> Any:
        return rotary(ctx, positions + self.late if len(positions) == rows else positions, *rest)

    with around(draft, "text_rotary", turned):
        return original(self, noise, states, cache, start=start)
