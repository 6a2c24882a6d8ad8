"""Joint attention of image and prompt, heads cut over tp, image tokens over sp (ring joint SDPA)."""

from __future__ import annotations

import ttnn

from refsim.checkpoint import Weights
from tt_impl.layers.linear import ColParallelQKV, RowParallelLinear
from tt_impl.layers.norm import RMSNorm
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_heads
from tt_impl.parallel.usp import joint_attention

_EPS = 1e-6


class _Projection:
    """q, k, v of one stream, (B, local heads, rows, E), queries and keys normalised per head."""

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        names: tuple[str, str, str],
        norms: tuple[str, str] | None,
        *,
        features: int,
        num_heads: int,
        head_dim: int,
    ) -> None:
        q, k, v = (f"{prefix}.{n}" for n in names)
        self._qkv = ColParallelQKV(
            weights,
            ctx,
            (q, k, v),
            in_features=features,
            num_heads=num_heads,
            head_dim=head_dim,
        )
        self._norms = [RMSNorm(weights, ctx, f"{prefix}.{n}", features=head_dim, eps=_EPS) for n in norms or ()]

    def __call__(self, x: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]:
        q, k, v = self._qkv(x)
        if self._norms:
            q, k = self._norms[0](q), self._norms[1](k)
        return q, k, v


class JointAttention:
    """Attention of the image tokens, and of the prompt with them where ``prompt`` is set."""

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        *,
        features: int,
        num_heads: int,
        head_dim: int,
        prompt: bool,
        prompt_out: bool,
        qk_norm: bool,
    ) -> None:
        self._ctx = ctx
        sizes = {"features": features, "num_heads": num_heads, "head_dim": head_dim}
        norms = ("norm_q", "norm_k") if qk_norm else None
        self._spatial = _Projection(weights, ctx, prefix, ("to_q", "to_k", "to_v"), norms, **sizes)
        self._prompt = self._prompt_out = None
        if prompt:
            names = ("add_q_proj", "add_k_proj", "add_v_proj")
            norms = ("norm_added_q", "norm_added_k") if qk_norm else None
            self._prompt = _Projection(weights, ctx, prefix, names, norms, **sizes)

        def out(name: str) -> RowParallelLinear:
            return RowParallelLinear(
                weights,
                ctx,
                f"{prefix}.{name}",
                in_features=num_heads * head_dim,
                out_features=features,
                in_padded=padded_heads(num_heads, ctx.tp * ctx.ulysses) * head_dim,
            )

        self._out = out("to_out.0")
        if prompt_out:
            self._prompt_out = out("to_add_out")

    def __call__(
        self, spatial: ttnn.Tensor, prompt: ttnn.Tensor | None, *, logical_n: int
    ) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        """Gathered inputs (B, 1, rows, D); results cut over tp."""
        qkv = self._spatial(spatial)
        prompt_qkv = self._prompt(prompt) if self._prompt is not None else None
        out, prompt_out = joint_attention(
            self._ctx, qkv, prompt_qkv, logical_n=logical_n, drop_prompt=self._prompt_out is None
        )
        spatial = self._out(ttnn.experimental.nlp_concat_heads(out))
        if self._prompt_out is None:
            return spatial, None
        return spatial, self._prompt_out(ttnn.experimental.nlp_concat_heads(prompt_out))
