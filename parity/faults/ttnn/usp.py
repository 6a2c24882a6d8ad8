"""Faults of the device backend in USP: both exchanges, the ring beside them, and a prompt that is split over sp.

They run on a block of CogVideoX, which has both on every mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.cases import Layout
from parity.faults.around import at
from parity.faults.registry import fault
from parity.faults.ttnn.cogvideox import USP22, USP24, video_block
from parity.faults.ttnn.device import ttnn

RING_SPLIT = video_block(Layout("n300", "sp2", prompt_layout="split"), 33)  # 32 + 1 of 32
ULYSSES_SPLIT = video_block(Layout("n300", "sp2", "ulysses", prompt_layout="split"), 33)


def _swapped(x: Any, dim: int) -> Any:
    """Exchange the halves of a tensor on the device."""
    return ttnn.concat(list(reversed(ttnn.chunk(x, 2, dim))), dim)


exchange = partial(fault, "exchange", case=USP24)
prompt = partial(fault, "split prompt", case=RING_SPLIT)


@exchange(
    "Heads come back from Ulysses in another order of devices.",
    "an exchange that starts with the neighbour instead of with oneself",
)
@at("tt_impl.parallel.ulysses:_all_to_all")
def usp_heads_in_another_order(original: Callable, ctx: Any, x: Any, *, gather: int, cut: int) -> Any:
    out = original(ctx, x, gather=gather, cut=cut)
    return _swapped(out, 1) if gather == 1 else out


@exchange(
    "The second all_to_all runs along the ring's axis.",
    "one cluster_axis for both exchanges, taken from the wrong factor",
    case=USP22,
)
@at("tt_impl.parallel.ulysses:_all_to_all")
def usp_back_on_the_ring_axis(original: Callable, ctx: Any, x: Any, *, gather: int, cut: int) -> Any:
    right = ctx.ulysses_axis
    if gather == 1:
        ctx.ulysses_axis = ctx.ring_axis
    try:
        return original(ctx, x, gather=gather, cut=cut)
    finally:
        ctx.ulysses_axis = right


@exchange(
    "Ring and Ulysses change axes, the tokens stay where they were dealt.",
    "the two factors of sp read in the other order by attention",
    case=USP22,
)
@at("tt_impl.parallel.usp:ulysses_attention")
def usp_axes_swapped_in_attention(original: Callable, ctx: Any, *args: Any, **kwargs: Any) -> Any:
    right = ctx.ring_axis, ctx.ulysses_axis
    ctx.ring_axis, ctx.ulysses_axis = reversed(right)
    try:
        return original(ctx, *args, **kwargs)
    finally:
        ctx.ring_axis, ctx.ulysses_axis = right


@exchange(
    "The ring's device r holds the shards of device r + 1.",
    "the ring's members counted from the first receiver instead of from the sender",
)
@at("tt_impl.parallel.usp:ring_attention")
def usp_ring_one_off(original: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
    axis = ctx.ring_axis
    keys = (_swapped(ctx.ccl.all_gather(x, dim=2, axis=axis), 2) for x in qkv[1:])
    moved = (ttnn.mesh_partition(x, dim=2, cluster_axis=axis) for x in keys)
    return original(ctx, (qkv[0], *moved), prompt, **more)


@prompt("Padding of a split prompt counts as keys.", "logical_l read from the tensors' shape")
@at("tt_impl.parallel.usp:ring_attention")
def split_prompt_not_masked(original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_l: int, **more: Any) -> Any:
    return original(ctx, qkv, prompt, logical_l=prompt[1].shape[2] * ctx.ring, **more)


@prompt(
    "The ring is not told that the prompt is split: every device attends to its own shard of it.",
    "logical_l left at its default",
)
@at("tt_impl.parallel.usp:ring_attention")
def split_prompt_taken_for_replicated(
    original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_l: int, **more: Any
) -> Any:
    return original(ctx, qkv, prompt, **more)


@prompt(
    "The shards of a split prompt's keys are joined in another order, so padding is attended to and tokens are not.",
    "rows of both streams exchanged together and taken apart at the wrong place",
    case=ULYSSES_SPLIT,
)
@at("tt_impl.parallel.usp:_local")
def split_prompt_shards_in_another_order(original: Callable, ctx: Any, qkv: Any, prompt: Any, **tokens: Any) -> Any:
    q, k, v = prompt
    return original(ctx, qkv, (q, _swapped(k, 2), _swapped(v, 2)), **tokens)
