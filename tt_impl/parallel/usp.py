"""Which attention runs: Ulysses over its axis around ring joint SDPA over its axis; a factor of 1 drops out.

ulysses 1, ring 1   SDPA on the whole sequence
ring only           ring joint SDPA
ulysses only        all_to_all, SDPA on the real rows, all_to_all
both (USP)          all_to_all along one mesh axis, ring joint SDPA along the other, all_to_all
"""

from __future__ import annotations

import ttnn

from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV, ring_attention
from tt_impl.parallel.sdpa import program_config
from tt_impl.parallel.ulysses import ulysses_attention


def joint_attention(
    ctx: Context, spatial: QKV, prompt: QKV | None, *, logical_n: int, drop_prompt: bool = False
) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
    """(B, local heads, rows, E) -> (out, prompt out or None).

    ``drop_prompt``: the prompt is attended to, but nobody needs its own result.
    """

    def inner(qkv: QKV, prompt: QKV | None) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        if ctx.ring > 1:
            return ring_attention(ctx, qkv, prompt, logical_n=logical_n)
        return _local(ctx, qkv, prompt, logical_n=logical_n)

    return ulysses_attention(ctx, spatial, prompt, inner, drop_prompt=drop_prompt)


def _local(ctx: Context, qkv: QKV, prompt: QKV | None, *, logical_n: int) -> tuple:
    """Attention on whole sequences; explicit padding rows are cut away before and put back after."""
    padding = qkv[0].shape[2] - logical_n
    if padding:
        qkv = tuple(x[:, :, :logical_n] for x in qkv)
    program = program_config(ctx, logical_n, reserve_row=False)
    if prompt is None:
        out = ttnn.transformer.scaled_dot_product_attention(
            *qkv, is_causal=False, program_config=program, compute_kernel_config=ctx.sdpa_config
        )
        prompt_out = None
    else:
        out, prompt_out = ttnn.transformer.joint_scaled_dot_product_attention(
            *qkv, *prompt, joint_strategy="rear", program_config=program, compute_kernel_config=ctx.sdpa_config
        )
    if padding:
        out = ttnn.pad(out, [(0, 0), (0, 0), (0, padding), (0, 0)], 0.0)
    return out, prompt_out
