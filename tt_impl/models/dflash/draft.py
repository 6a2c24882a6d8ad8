"""DFlash drafter, whole on every device of the target's mesh; counterpart of ``refsim.models.dflash.draft``.

    hidden states of the target's layers, one by one --their part of fc--> + --> rms norm --> context
    [last token, MASK x 15] --target's embedding--> x
    layer:  x --rms norm--> attention to [cached context; new context; noise] --> + --> x
            x --rms norm--> down(silu(gate x) * (up x)) ----------------------> + --> x
    x --rms norm--> rows for the target's head

The context projection adds one matmul per layer instead of one over all of them side by side: bf16 sums over fewer
products each. No communication.

Legend: B batch, 1; N rows of noise, C new rows of context; D features. A (B, N, D) is (1, 1, N, D) on the devices.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.dflash.config import DFlashConfig
from refsim.models.dflash.spec import CLASS_NAME
from tt_impl.layers.kv_cache import KVCache
from tt_impl.layers.linear import Linear
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.rope import Tables, text_rotary
from tt_impl.models.dflash.attention import DFlashAttention
from tt_impl.parallel.context import Context


class DFlashDecoderLayer:
    """``layers.{index}``; (1, 1, N, D) in and out."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: DFlashConfig) -> None:
        d = config.hidden_size
        wide = config.intermediate_size
        norm = {"features": d, "eps": config.rms_norm_eps}
        self._norm1 = RMSNorm(weights, ctx, f"{prefix}.input_layernorm", **norm)
        self._norm2 = RMSNorm(weights, ctx, f"{prefix}.post_attention_layernorm", **norm)
        self._attention = DFlashAttention(weights, ctx, f"{prefix}.self_attn", config)
        sizes = {"in_features": d, "out_features": wide, "bias": False}
        self._gate, self._up = (Linear(weights, ctx, f"{prefix}.mlp.{n}_proj", **sizes) for n in ("gate", "up"))
        self._down = Linear(weights, ctx, f"{prefix}.mlp.down_proj", in_features=wide, out_features=d, bias=False)

    def __call__(
        self, x_BND: ttnn.Tensor, context_BCD: ttnn.Tensor, rotary: tuple[Tables, Tables], cache: KVCache
    ) -> ttnn.Tensor:
        x = ttnn.add(x_BND, self._attention(self._norm1(x_BND), context_BCD, rotary, cache))
        normed = self._norm2(x)
        hidden = ttnn.multiply(self._gate(normed), self._up(normed), input_tensor_a_activations=[ttnn.UnaryOpType.SILU])
        return ttnn.add(x, self._down(hidden))


class DFlashDraftModel:
    """Built from the drafter's folder; every key must be consumed. Embedding and head are the target's."""

    def __init__(self, weights: Weights, ctx: Context, config: DFlashConfig) -> None:
        self._ctx = ctx
        self.config = config
        d = config.hidden_size
        parts = len(config.target_layer_ids)
        fc = weights.take("fc.weight", (d, parts * d))
        self._fc = [ctx.put(part.t()[None, None]) for part in fc.split(d, 1)]
        norm = {"features": d, "eps": config.rms_norm_eps}
        self._context_norm, self._norm = (RMSNorm(weights, ctx, n, **norm) for n in ("hidden_norm", "norm"))
        self._layers = [
            DFlashDecoderLayer(weights, ctx, f"layers.{i}", config) for i in range(config.num_hidden_layers)
        ]
        weights.finish(CLASS_NAME)

    def new_cache(self) -> list[KVCache]:
        """One empty cache per layer."""
        return [KVCache() for _ in self._layers]

    def context(self, states: list[ttnn.Tensor]) -> ttnn.Tensor:
        """Project the target's hidden states of C rows, layer by layer, to (1, 1, C, D), the same for all layers."""
        total = None
        for x, weight in zip(states, self._fc, strict=True):
            part = ttnn.linear(x, weight, compute_kernel_config=self._ctx.linear_config)
            total = part if total is None else ttnn.add(total, part)
        return self._context_norm(total)

    def __call__(
        self, noise_BND: ttnn.Tensor, states: list[ttnn.Tensor], cache: list[KVCache], *, start: int
    ) -> ttnn.Tensor:
        """Embedded block, whose first row is at ``start``, and hidden states of the C rows before it that are new."""
        rows = states[0].shape[2]
        if cache[0].length + rows != start:
            raise ValueError(f"{cache[0].length} cached and {rows} new rows do not end at {start}")
        spans = torch.arange(start, start + noise_BND.shape[2]), torch.arange(start - rows, start)
        of_noise, of_context = (
            text_rotary(self._ctx, span, self.config.head_dim, self.config.rope_theta) for span in spans
        )
        context = self.context(states)
        x = noise_BND
        for layer, layer_cache in zip(self._layers, cache, strict=True):
            x = layer(x, context, (of_noise, of_context), layer_cache)
        return self._norm(x)
