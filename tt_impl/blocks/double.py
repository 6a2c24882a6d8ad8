"""The double-stream block; counterpart of ``refsim.blocks.double``.

    spatial --norm--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--norm--mod--all_gather--FF--gate-->
    prompt  --norm--mod--all_gather--'            (same, its own weights)         '

A norm and its modulation are one pair of ops, the gather is part of the linear that follows, a gate and the sum with
the stream are one op after the reduce_scatter.
"""

from __future__ import annotations

import ttnn

from refsim.blocks.shape import DoubleStreamShape, StreamShape
from refsim.files.checkpoint import Weights
from tt_impl.blocks.parts import Modulations, Time, head_norm, stream_norm
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.attention import StreamQKV
from tt_impl.layers.feedforward import ParallelFeedForward
from tt_impl.layers.linear import AttentionSizes, RowParallelHeads
from tt_impl.layers.matmul import Residual, add_gated
from tt_impl.layers.rope import PairTables
from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV
from tt_impl.parallel.usp import joint_attention


class DoubleStreamBlock:
    """A block such as ``transformer_blocks.{index}`` of diffusers' transformers with two streams.

    Args:
        prefix: what the names of its weights begin with.
    """

    def __init__(self, weights: Weights, ctx: Context, shape: DoubleStreamShape, prefix: str) -> None:
        self._modulations = Modulations(weights, ctx, prefix, shape)
        self._spatial = _Stream(weights, ctx, prefix, shape, shape.spatial)
        self._prompt = self._spatial
        if shape.prompt is not None:
            self._prompt = _Stream(weights, ctx, prefix, shape, shape.prompt)
        self._attn = JointAttention(weights, ctx, f"{prefix}.{shape.attention}", shape, prompt=True)
        self._drops = shape.context_pre_only
        self._second = None
        if shape.second is not None:
            self._second = JointAttention(weights, ctx, f"{prefix}.{shape.second}", shape, prompt=False)

    def __call__(
        self, spatial: ttnn.Tensor, prompt: ttnn.Tensor | None, time: Time, *, sequences: Sequences
    ) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        """Map (B, 1, local N, local D) and (B, 1, local L, local D) to the same, or to None of a prompt dropped; a
        prompt of None has no token.
        """
        chunks = self._modulations(time, sequences)
        shift, scale, gate = chunks.of("attn")
        shift2, scale2, gate2 = chunks.of("attn2")
        further = [(shift2, scale2)] if self._second is not None else []
        normed, *normed2 = self._spatial.norm1.modulated(spatial, (shift, scale), *further)
        qkv = self._attn.project(normed, rotary=sequences.rotary)
        prompt_qkv = None
        onto_prompt = None
        onto = self._spatial.residual(spatial, gate, 0)
        if prompt is not None:
            shift, scale, gate = chunks.of("prompt.attn")
            (normed,) = self._prompt.norm1.modulated(prompt, (shift, scale))
            prompt_qkv = self._attn.project(normed, prompt=True, rotary=sequences.prompt_rotary)
            onto_prompt = None if self._drops else self._prompt.residual(prompt, gate, 0)
        spatial, prompt_out = self._attn.attend(qkv, prompt_qkv, sequences, onto=onto, onto_prompt=onto_prompt)
        if self._second is not None:
            qkv = self._second.project(normed2[0], rotary=sequences.rotary)
            onto = self._spatial.residual(spatial, gate2, 0)
            spatial, _ = self._second.attend(qkv, None, sequences, onto=onto)
        spatial = self._spatial.with_feed_forward(spatial, *chunks.of("ff"))
        if prompt_out is None:
            return spatial, None
        return spatial, self._prompt.with_feed_forward(prompt_out, *chunks.of("prompt.ff"))


class _Stream:
    """What a stream goes through by itself."""

    def __init__(
        self, weights: Weights, ctx: Context, prefix: str, shape: DoubleStreamShape, stream: StreamShape
    ) -> None:
        self._tanh = shape.gate == "tanh"
        norms = (*stream.norms, *(stream.norms_out or ()))
        made = [stream_norm(weights, ctx, f"{prefix}.{name}", shape, stream.features) for name in norms]
        self.norm1, self._norm2, *self._norms_out = made
        self._ff = None
        if stream is not shape.prompt or not shape.context_pre_only:
            self._ff = ParallelFeedForward(
                weights,
                ctx,
                f"{prefix}.{stream.ff}",
                features=stream.features,
                hidden=stream.hidden,
                activation_fn=shape.activation,
                linears=shape.ff_linears,
                bias=shape.ff_bias,
            )

    def residual(self, x: ttnn.Tensor, gate: ttnn.Tensor, stage: int) -> Residual:
        """Return where the result of attention (0) or of the feed-forward (1) goes."""
        norm = self._norms_out[stage] if self._norms_out else None
        return Residual(x, ttnn.tanh(gate) if self._tanh else gate, norm)

    def with_feed_forward(
        self, x: ttnn.Tensor, shift: ttnn.Tensor | None, scale: ttnn.Tensor, gate: ttnn.Tensor
    ) -> ttnn.Tensor:
        """Add what the feed-forward makes of the stream, normed and modulated."""
        assert self._ff is not None
        (normed,) = self._norm2.modulated(x, (shift, scale))
        return self._ff.of_shards(normed, self.residual(x, gate, 1))


class _Projections:
    """A stream's linears into attention and out of it."""

    def __init__(
        self, weights: Weights, ctx: Context, name: str, shape: DoubleStreamShape, stream: StreamShape
    ) -> None:
        names = stream.attention
        sizes = AttentionSizes(stream.features, shape.num_heads, shape.head_dim)
        self.qkv = StreamQKV(
            weights,
            ctx,
            name,
            sizes,
            names=names.qkv,
            norms=None if shape.qk_norm == "none" else names.norms,
            norm=head_norm(shape),
            bias=shape.qkv_bias,
        )
        self.out = None
        if stream is not shape.prompt or not shape.context_pre_only:
            self.out = RowParallelHeads(weights, ctx, f"{name}.{names.out}", sizes, bias=shape.out_bias)


class JointAttention:
    """Attention of both streams over each other's tokens and their own, heads cut over tp, tokens over sp.

    Args:
        prompt: the prompt takes part; else image tokens attend to themselves alone.
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, shape: DoubleStreamShape, *, prompt: bool) -> None:
        self._ctx = ctx
        self._spatial = _Projections(weights, ctx, name, shape, shape.spatial)
        self._prompt = self._spatial
        if prompt and shape.prompt is not None:
            self._prompt = _Projections(weights, ctx, name, shape, shape.prompt)

    def project(self, x: ttnn.Tensor, *, prompt: bool = False, rotary: PairTables | None = None) -> QKV:
        """q, k, v of the image's (or the prompt's) tokens (B, 1, rows, local D), gathered on the way."""
        return (self._prompt if prompt else self._spatial).qkv.of_shards(x, rotary)

    def attend(
        self,
        qkv: QKV,
        prompt_qkv: QKV | None,
        sequences: Sequences,
        *,
        onto: Residual,
        onto_prompt: Residual | None = None,
    ) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        """Results (B, 1, rows, local D), gated and added to their streams; no prompt without ``onto_prompt``."""
        assert self._spatial.out is not None
        cut = {"logical_n": sequences.logical_n} if prompt_qkv is None else sequences.cut
        out, prompt_out = joint_attention(self._ctx, qkv, prompt_qkv, **cut, drop_prompt=onto_prompt is None)
        if onto_prompt is None:
            return self._spatial.out(out, onto), None
        assert self._prompt.out is not None
        if sequences.prompt_answers is not None:
            config = self._ctx.norm_config
            prompt_out = ttnn.matmul(sequences.prompt_answers, prompt_out, compute_kernel_config=config)
        # both are reduced before either is normed, as in refsim
        spatial = self._spatial.out(out)
        prompt = self._prompt.out(prompt_out)
        return add_gated(onto, spatial), add_gated(onto_prompt, prompt)
