"""Ulysses on the device: all-to-all turns a sequence shard of all heads into all rows of a head shard, and back.

    q, k, v   (B, h, n, E)   --all_to_all, rows gathered, heads cut-->   (B, h/U, U*n, E)     attention (``inner``)
    out       (B, h/U, U*n, E)   --all_to_all, heads gathered, rows cut-->   (B, h, n, E)

The replicated prompt is not exchanged: every device keeps its share of the heads (``mesh_partition``), and the
prompt's output is gathered over heads. A prompt that is split over sp is exchanged like the image, tensor by tensor
after it: the shards of both lie in the order of the devices, each stream by itself.

Heads that do not divide by tp * ulysses were padded behind the last real one when the weights were cut
(``AttentionSizes.padded``): device u of tp member t holds heads (t * U + u) * h/U and on, some devices only padding.
Their weights are zero, so is what they add.

In ttnn 0.81.1 ``all_to_all_async_generic`` gathers ``in_dim`` and cuts ``out_dim`` (its docstring says the opposite).
"""

from __future__ import annotations

from collections.abc import Callable

import ttnn

from tt_impl.parallel.context import Context

QKV = tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]
Inner = Callable[[QKV, "QKV | None"], "tuple[ttnn.Tensor, ttnn.Tensor | None]"]
_HEADS = 1
_ROWS = 2


def ulysses_attention(
    ctx: Context, qkv: QKV, prompt: QKV | None, inner: Inner, *, split_prompt: bool, drop_prompt: bool
) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
    """(B, heads, rows, E) -> (out, prompt out or None) with the heads spread over the ulysses axis in between."""
    if ctx.ulysses == 1:
        return inner(qkv, prompt)
    qkv, prompt = _to_heads(ctx, qkv, prompt, split_prompt=split_prompt)
    out, prompt_out = inner(qkv, prompt)
    out = _all_to_all(ctx, out, gather=_HEADS, cut=_ROWS)
    if prompt_out is None or drop_prompt:
        return out, prompt_out
    if split_prompt:
        return out, _all_to_all(ctx, prompt_out, gather=_HEADS, cut=_ROWS)
    return out, ctx.ccl.all_gather(prompt_out, dim=_HEADS, axis=ctx.ulysses_axis)


def _to_heads(ctx: Context, qkv: QKV, prompt: QKV | None, *, split_prompt: bool) -> tuple[QKV, QKV | None]:
    """All rows of a share of the heads, of both streams."""
    if prompt is None or not split_prompt:
        mine = [_all_to_all(ctx, x, gather=_ROWS, cut=_HEADS) for x in qkv]
        shares = prompt and [ttnn.mesh_partition(x, dim=_HEADS, cluster_axis=ctx.ulysses_axis) for x in prompt]
        return tuple(mine), shares and tuple(shares)
    both = [
        [_all_to_all(ctx, x, gather=_ROWS, cut=_HEADS) for x in pair]  # q and the prompt's q, then k, then v
        for pair in zip(qkv, prompt, strict=True)
    ]
    return tuple(x for x, _ in both), tuple(x for _, x in both)


def _all_to_all(ctx: Context, x: ttnn.Tensor, *, gather: int, cut: int) -> ttnn.Tensor:
    axis = ctx.ulysses_axis
    with ctx.ccl.collective(axis):
        return ttnn.experimental.all_to_all_async_generic(x, in_dim=gather, out_dim=cut, **ctx.ccl.wires(axis))
