"""Ulysses on the device: all-to-all turns a sequence shard of all heads into all rows of a head shard, and back.

    q, k, v   (B, h, n, E)   --all_to_all, rows gathered, heads cut-->   (B, h/U, U*n, E)     attention (``inner``)
    out       (B, h/U, U*n, E)   --all_to_all, heads gathered, rows cut-->   (B, h, n, E)

The replicated prompt is not exchanged: every device keeps its share of the heads (``mesh_partition``), and the
prompt's output is gathered over heads.

In ttnn 0.81.1 ``all_to_all_async_generic`` gathers ``in_dim`` and cuts ``out_dim`` (its docstring says the opposite).
"""

from __future__ import annotations

from collections.abc import Callable

import ttnn

from tt_impl.parallel.context import Context

QKV = tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]
Inner = Callable[[QKV, "QKV | None"], "tuple[ttnn.Tensor, ttnn.Tensor | None]"]
_HEADS, _ROWS = 1, 2


def ulysses_attention(
    ctx: Context, qkv: QKV, prompt: QKV | None, inner: Inner, *, drop_prompt: bool
) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
    """(B, heads, rows, E) -> (out, prompt out or None) with the heads spread over the ulysses axis in between."""
    if ctx.ulysses == 1:
        return inner(qkv, prompt)
    axis = ctx.ulysses_axis
    qkv = tuple(_all_to_all(ctx, x, gather=_ROWS, cut=_HEADS) for x in qkv)
    if prompt is not None:
        prompt = tuple(ttnn.mesh_partition(x, dim=_HEADS, cluster_axis=axis) for x in prompt)
    out, prompt_out = inner(qkv, prompt)
    out = _all_to_all(ctx, out, gather=_HEADS, cut=_ROWS)
    if prompt_out is not None and not drop_prompt:
        prompt_out = ctx.ccl.all_gather(prompt_out, dim=_HEADS, axis=axis)
    return out, prompt_out


def _all_to_all(ctx: Context, x: ttnn.Tensor, *, gather: int, cut: int) -> ttnn.Tensor:
    axis = ctx.ulysses_axis
    with ctx.ccl.collective(axis):
        return ttnn.experimental.all_to_all_async_generic(
            x,
            in_dim=gather,
            out_dim=cut,
            num_links=ctx.ccl.num_links[axis],
            topology=ctx.ccl.topology[axis],
            cluster_axis=axis,
        )
