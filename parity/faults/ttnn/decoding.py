"""Faults of decoding on the device backend: caches, positions, the cut vocabulary, the experts, the drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from parity.cases import GenerationShape, Layout, make_case
from parity.faults.ttnn.tools import around, fault

DECODING = "decoding"
TP4 = make_case(
    "ttnn_generation", "dflash_tiny32", Layout("bh-qb-1x4", "tp4"), GenerationShape(prompts=2, text=7, max_new_tokens=6)
)


@fault(
    DECODING,
    TP4,
    "The drafter's cache keeps the noise rows.",
    "one concat for context and noise, stored",
    says="the drafter's cache has .* rows before position",
)
def cache_keeps_noise() -> None:
    from tt_impl.layers.kv_cache import KVCache
    from tt_impl.models.dflash.attention import DFlashAttention

    def call(original: Callable, self: Any, noise: Any, context: Any, rotary: Any, cache: KVCache) -> Any:
        out = original(self, noise, context, rotary, cache)
        _, k, v = self._qkv(noise)
        cache.append(self._k_norm(k), v)
        return out

    around(DFlashAttention, "__call__", call)


@fault(DECODING, TP4, "Rows behind the prompt stand one position late.", "cache length counted with the new row")
def target_position_off_by_one() -> None:
    from tt_impl.models.qwen3_moe import decoder

    def late(original: Callable, ctx: Any, positions: torch.Tensor, *rest: Any) -> Any:
        return original(ctx, positions + 1 if positions[0] else positions, *rest)

    around(decoder, "text_rotary", late)


@fault(DECODING, TP4, "The block stands one position late.", "RoPE of the drafter's noise from start + 1")
def draft_position_off_by_one() -> None:
    from tt_impl.models.dflash import draft

    def late(original: Callable, ctx: Any, positions: torch.Tensor, *rest: Any) -> Any:
        return original(ctx, positions + 1 if len(positions) == 16 else positions, *rest)

    around(draft, "text_rotary", late)


@fault(DECODING, TP4, "The best token is counted from the shard's first.", "argmax without the shard's offset")
def argmax_without_offset() -> None:
    from tt_impl.parallel.vocab import VocabArgmax

    VocabArgmax.first_tokens = lambda self, local: torch.zeros(self._ctx.tp)


@fault(DECODING, TP4, "The experts' partial sums are not reduced.", "all-reduce forgotten behind the down projection")
def experts_not_reduced() -> None:
    from tt_impl.models.qwen3_moe import experts

    def cut(original: Callable, ctx: Any, x: Any) -> Any:
        import ttnn

        return ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)

    around(experts, "reduce_scatter_features", cut)
