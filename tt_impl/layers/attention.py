"""Joint attention of image and prompt, heads cut over tp, image tokens over sp (ring joint SDPA)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from tt_impl.layers.matmul import Residual
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.rope import PairTables, rotate_pairs
from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV
from tt_impl.parallel.sdpa import local_program_config
from tt_impl.parallel.usp import joint_attention

HeadNorm = Callable[[ttnn.Tensor], ttnn.Tensor]
"""A norm of every head of (B, local heads, rows, E)."""
RMS_NORM: Callable[..., HeadNorm] = partial(RMSNorm, eps=1e-6)


def turned(qkv: QKV, norms: Sequence[HeadNorm], rotary: PairTables | None) -> QKV:
    """Norm queries and keys, where there are norms, and turn them by their positions, where there are tables."""
    q, k, v = qkv
    if norms:
        q = norms[0](q)
        k = norms[1](k)
    if rotary is not None:
        q = rotate_pairs(q, rotary)
        k = rotate_pairs(k, rotary)
    return q, k, v


class StreamQKV:
    """q, k, v of one stream, (B, local heads, rows, E); q and k normalised per head, then turned by their positions.

    Args:
        names: of the linears of q, k and v.
        norms: names of the norms of q and k; None for none.
        norm: makes such a norm, called with weights, ctx, name and ``features``.
        bias: the linears have one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        sizes: AttentionSizes,
        *,
        names: tuple[str, str, str] = ("to_q", "to_k", "to_v"),
        norms: tuple[str, str] | None = ("norm_q", "norm_k"),
        norm: Callable[..., HeadNorm] = RMS_NORM,
        bias: bool = True,
    ) -> None:
        self._qkv = ColParallelQKV(weights, ctx, tuple(f"{prefix}.{n}" for n in names), sizes, bias=bias)
        self._norms = [norm(weights, ctx, f"{prefix}.{n}", features=sizes.head_dim) for n in norms or ()]

    def __call__(self, x: ttnn.Tensor, rotary: PairTables | None = None) -> QKV:
        """Of ``x`` (B, 1, rows, D), gathered."""
        return turned(self._qkv(x), self._norms, rotary)

    def of_shards(self, x: ttnn.Tensor, rotary: PairTables | None = None) -> QKV:
        """Of ``x`` (B, 1, rows, local D), gathered on the way."""
        return turned(self._qkv.of_shards(x), self._norms, rotary)


class JointAttention:
    """Attention of the image tokens, and of the prompt with them where ``prompt`` is set.

    Args:
        prompt: the prompt takes part (``add_q_proj`` and so on); else image tokens attend to themselves only.
        prompt_out: the prompt's result is projected (``to_add_out``); off in a last block, which drops it.
        qk_norm: queries and keys are normalised per head.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        sizes: AttentionSizes,
        *,
        prompt: bool,
        prompt_out: bool,
        qk_norm: bool,
    ) -> None:
        self._ctx = ctx
        at = (weights, ctx, prefix, sizes)
        self._spatial = StreamQKV(*at, norms=("norm_q", "norm_k") if qk_norm else None)
        self._prompt = None
        self._prompt_out = None
        if prompt:
            norms = ("norm_added_q", "norm_added_k") if qk_norm else None
            self._prompt = StreamQKV(*at, names=("add_q_proj", "add_k_proj", "add_v_proj"), norms=norms)
        self._out = RowParallelHeads(weights, ctx, f"{prefix}.to_out.0", sizes)
        if prompt_out:
            self._prompt_out = RowParallelHeads(weights, ctx, f"{prefix}.to_add_out", sizes)

    def project(self, x: ttnn.Tensor, *, prompt: bool = False, rotary: PairTables | None = None) -> QKV:
        """q, k, v of the image's (or the prompt's) tokens (B, 1, rows, local D), gathered on the way."""
        return (self._prompt if prompt else self._spatial).of_shards(x, rotary)

    def attend(
        self,
        qkv: QKV,
        prompt_qkv: QKV | None,
        *,
        logical_n: int,
        logical_l: int | None = None,
        onto: Residual | None = None,
        onto_prompt: Residual | None = None,
    ) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        """Results (B, 1, rows, local D), gated and added to their streams where ``onto`` says so."""
        out, prompt_out = joint_attention(
            self._ctx, qkv, prompt_qkv, logical_n=logical_n, logical_l=logical_l, drop_prompt=self._prompt_out is None
        )
        spatial = self._out(out, onto)
        if self._prompt_out is None:
            return spatial, None
        return spatial, self._prompt_out(prompt_out, onto_prompt)


def local_attention(ctx: Context, qkv: tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor], **options: Any) -> ttnn.Tensor:
    """Attention in one piece of the local heads to rows that every device has, for short prompts.

    Args:
        qkv: each (B, H, L, E), heads cut over tp.
        options: of ``ttnn.transformer.scaled_dot_product_attention``.

    Returns:
        (B, 1, L, H * E), the heads side by side, as a row-parallel linear wants them.
    """
    return ttnn.transformer.scaled_dot_product_attention(
        *qkv,
        output_concat_heads=True,
        program_config=local_program_config(ctx, qkv[0].shape[2]),
        compute_kernel_config=ctx.sdpa_config,
        **options,
    )
