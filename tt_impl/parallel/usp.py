"""Which attention runs: Ulysses over its axis around ring joint SDPA over its axis; a factor of 1 drops out.

ulysses 1, ring 1   SDPA on the whole sequence
ring only           ring joint SDPA
ulysses only        all_to_all, SDPA on the real rows, all_to_all
both (USP)          all_to_all along one mesh axis, ring joint SDPA along the other, all_to_all

    ring 2 x ulysses 4, sequence shard r*4+u on device (r, u)

                 ulysses 0..3 ->
    ring 0   |   s0  s1  s2  s3     all_to_all along the row: (r, u) holds s[4r .. 4r+3], heads of u
    ring 1   |   s4  s5  s6  s7     ring along the column: K, V of the heads of u pass between r = 0 and 1
             v                      all_to_all along the row: back to s[4r+u], all heads

The prompt is whole on every device (its heads are cut by Ulysses, its keys come last in the ring), or cut over sp the
same way as the image: it is exchanged like the image, and its keys travel the ring beside the image's.
"""

from __future__ import annotations

import ttnn

from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV, ring_attention
from tt_impl.parallel.sdpa import program_config
from tt_impl.parallel.ulysses import ulysses_attention


def joint_attention(
    ctx: Context,
    spatial: QKV,
    prompt: QKV | None,
    *,
    logical_n: int,
    logical_l: int | None = None,
    drop_prompt: bool = False,
) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
    """(B, local heads, rows, E) -> (out, prompt out or None).

    Args:
        logical_n: image tokens of all devices, padding left out.
        logical_l: the same of the prompt where it is cut over sp; None where every device holds all of it.
        drop_prompt: the prompt is attended to, but nobody needs its own result.
    """

    def inner(qkv: QKV, prompt: QKV | None) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        attend = ring_attention if ctx.ring > 1 else _local
        return attend(ctx, qkv, prompt, logical_n=logical_n, logical_l=logical_l)

    split = logical_l is not None
    return ulysses_attention(ctx, spatial, prompt, inner, split_prompt=split, drop_prompt=drop_prompt)


def _local(
    ctx: Context, qkv: QKV, prompt: QKV | None, *, logical_n: int, logical_l: int | None = None
) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
    """Attention on whole sequences; explicit padding rows are cut away before and put back after."""
    rows = qkv[0].shape[2]
    qkv = _real_rows(qkv, logical_n)
    program = program_config(ctx, logical_n, reserve_row=False)
    if prompt is None:
        out = ttnn.transformer.scaled_dot_product_attention(
            *qkv, is_causal=False, program_config=program, compute_kernel_config=ctx.sdpa_config
        )
        return _with_padding(out, rows), None
    prompt_rows = prompt[0].shape[2]
    if logical_l is not None:
        prompt = _real_rows(prompt, logical_l)
    out, prompt_out = ttnn.transformer.joint_scaled_dot_product_attention(
        *qkv, *prompt, joint_strategy="rear", program_config=program, compute_kernel_config=ctx.sdpa_config
    )
    return _with_padding(out, rows), _with_padding(prompt_out, prompt_rows)


def _real_rows(qkv: QKV, rows: int) -> QKV:
    if qkv[0].shape[2] == rows:
        return qkv
    q, k, v = (x[:, :, :rows] for x in qkv)
    return q, k, v


def _with_padding(x: ttnn.Tensor, rows: int) -> ttnn.Tensor:
    missing = rows - x.shape[2]
    return ttnn.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)], 0.0) if missing else x
