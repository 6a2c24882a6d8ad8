"""T5 and UMT5 encoders, heads and feed-forward cut over tp, the prompt whole on every member of sp.

    ids --ttnn.embedding--> x, replicated
    block:  x --rms norm--> QKV of the local heads --> softmax(q k + relative bias + mask) v --row-parallel--.
            x <--all_gather-- + <--reduce_scatter-----------------------------------------------------------'
            x --rms norm--> gelu(wi_0 x) * (wi_1 x) --wo row-parallel--reduce_scatter--all_gather--> + --> x

    relative bias, once per length, on the device:
    ids of buckets (L, L) --ttnn.embedding from (buckets, local heads)--> (L, L, H) --permute--> (1, H, L, L), kept

The bucket of every pair of positions is uploaded once, a table of numbers that all layers pick from; a bias of 64 heads
and 512 tokens would be 32 times its size. T5 has one table, in its first layer, UMT5 one in every layer: a folder of
its own for UMT5 would be this file again, but for that one line.

Counterpart of ``refsim.models.t5.encoder``.

Legend: B batch, L tokens, D features of the stream, H local heads, E features of a head.
"""

from __future__ import annotations

import math

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.t5.config import T5Config
from tt_impl.layers.attention import local_attention
from tt_impl.layers.embeddings import TokenEmbedding
from tt_impl.layers.linear import AttentionSizes, ColParallelQKV, RowParallelLinear, pad_to
from tt_impl.layers.matmul import split_matmul
from tt_impl.layers.norm import RMSNorm, over_real_features, pad_features
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE, padded_features, padded_heads, round_up
from tt_impl.parallel.tensor import gather_features

_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
"""Two names of one tensor; a folder holds either or both."""
_HIDDEN = -1e9
"""Added to the scores of tokens that must not be seen; finite, so that a row of nothing else is no NaN."""


def bucket_ids(config: T5Config, length: int) -> torch.Tensor:
    """(L, L) in int64: the bucket of key minus query; half per direction, exact distances first, then wider ranges."""
    position = torch.arange(length)
    distance = position[None, :] - position[:, None]
    half = config.relative_attention_num_buckets // 2
    exact = half // 2
    size = distance.abs()
    wide = torch.log(size.float() / exact) / math.log(config.relative_attention_max_distance / exact) * (half - exact)
    bucket = torch.where(size < exact, size, (exact + wide.clamp(min=0).long()).clamp(max=half - 1))
    return bucket + (distance > 0) * half


class RelativeBias:
    """The local heads' (1, H, L, L) addition to the scores, kept for the last length asked for."""

    def __init__(self, weights: Weights, ctx: Context, name: str, config: T5Config) -> None:
        buckets = config.relative_attention_num_buckets
        heads = config.num_heads
        table = weights.take(f"{name}.weight", (buckets, heads))
        self._table = ctx.put_rows(pad_to(table, padded_heads(heads, ctx.tp)), ttnn.bfloat16, tp_dim=1)
        self._known: tuple[int, ttnn.Tensor] | None = None

    def __call__(self, length: int, buckets: ttnn.Tensor) -> ttnn.Tensor:
        """``buckets`` (L, L), the ids of :func:`bucket_ids`, whole on every device."""
        if self._known is None or self._known[0] != length:
            rows = ttnn.embedding(buckets, self._table, layout=ttnn.ROW_MAJOR_LAYOUT)
            bias = ttnn.permute(ttnn.unsqueeze(rows, 0), (0, 3, 1, 2))
            self._known = (length, ttnn.to_layout(bias, ttnn.TILE_LAYOUT))
        return self._known[1]


class GateAndUp:
    """``wi_0`` and ``wi_1`` as one product that comes out in two parts; a device has ``[its wi_0 | its wi_1]``.

    Attributes:
        padded: hidden features, whole tiles on every device.
    """

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: T5Config) -> None:
        self._ctx = ctx
        d = config.d_model
        self.padded = round_up(config.d_ff, TILE * ctx.tp)
        both = [weights.take(f"{prefix}.{n}.weight", (config.d_ff, d)) for n in ("wi_0", "wi_1")]
        parts = [pad_to(w, self.padded, padded_features(d, ctx.tp)).unflatten(0, (ctx.tp, -1)) for w in both]
        self._weight = ctx.put(torch.cat(parts, 1).flatten(0, 1).t()[None, None], tp_dim=3)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """(B, 1, L, D), whole -> gelu(wi_0 x) * (wi_1 x), (B, 1, L, local hidden)."""
        gate, up = split_matmul(self._ctx, x, self._weight, None, chunks=2)
        return ttnn.multiply(gate, up, input_tensor_a_activations=[ttnn.UnaryOpType.GELU_TANH])


class T5Block:
    """``encoder.block.{index}``."""

    def __init__(self, weights: Weights, ctx: Context, config: T5Config, index: int) -> None:
        self._ctx = ctx
        self._features = config.d_model
        d = config.d_model
        prefix = f"encoder.block.{index}.layer"
        sizes = AttentionSizes(d, config.num_heads, config.d_kv)
        attention = f"{prefix}.0.SelfAttention"
        ff = f"{prefix}.1.DenseReluDense"
        norm = {"features": d, "eps": config.layer_norm_epsilon}
        self._norm1, self._norm2 = (RMSNorm(weights, ctx, f"{prefix}.{i}.layer_norm", **norm) for i in (0, 1))
        names = tuple(f"{attention}.{n}" for n in "qkv")
        self._qkv = ColParallelQKV(weights, ctx, names, sizes, bias=False)
        out = {"out_features": d, "bias": False}
        heads = {"in_features": sizes.inner, "in_padded": sizes.padded(ctx)}
        self._out = RowParallelLinear(weights, ctx, f"{attention}.o", **heads, **out)
        self.bias = None
        if index == 0 or config.model_type == "umt5":
            self.bias = RelativeBias(weights, ctx, f"{attention}.relative_attention_bias", config)
        self._gated = GateAndUp(weights, ctx, ff, config)
        inner = {"in_features": config.d_ff, "in_padded": self._gated.padded}
        self._down = RowParallelLinear(weights, ctx, f"{ff}.wo", **inner, **out)

    def __call__(self, x: ttnn.Tensor, bias_1HLL: ttnn.Tensor) -> ttnn.Tensor:
        """Run the block on (B, 1, L, D), whole with padding; the mask is part of the bias, (1 or B, H, L, L)."""
        ctx = self._ctx
        qkv = self._qkv(over_real_features(self._norm1, x, self._features))
        heads = local_attention(ctx, qkv, attn_mask=bias_1HLL, is_causal=False, scale=1.0)  # no 1 / sqrt(E)
        x = ttnn.add(x, gather_features(ctx, self._out(heads)))
        gated = self._gated(over_real_features(self._norm2, x, self._features))
        return ttnn.add(x, gather_features(ctx, self._down(gated)))


class T5Encoder:
    """Built on one submesh from a transformers folder's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: T5Config) -> None:
        self._ctx = ctx
        self._config = config
        table = next((n for n in _TABLES if n in weights.names), _TABLES[0]).removesuffix(".weight")
        self._embed = TokenEmbedding(weights, ctx, table, vocab_size=config.vocab_size, features=config.d_model)
        weights.leave(*_TABLES)
        self._blocks = [T5Block(weights, ctx, config, i) for i in range(config.num_layers)]
        name = "encoder.final_layer_norm"
        eps = config.layer_norm_epsilon
        self._norm = RMSNorm(weights, ctx, name, features=config.d_model, eps=eps)
        self._known: tuple[int, ttnn.Tensor] | None = None
        weights.finish(f"the {config.model_type} encoder")

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> ttnn.Tensor:
        """Ids (B, L) and mask (1 real, 0 padding; None for all real) on the host -> (B, 1, L, D), whole on the devices.

        Raises:
            UserError: an id that is not in the vocabulary.
        """
        d = self._config.d_model
        length = input_ids.shape[1]
        mask = None
        if attention_mask is not None:
            mask = self._ctx.put((attention_mask == 0)[:, None, None].float() * _HIDDEN)
        x = pad_features(self._embed(input_ids), padded_features(d, self._ctx.tp))
        bias = None
        for block in self._blocks:
            if block.bias is not None:
                bias = self._masked(block.bias(length, self._buckets(length)), mask)
            x = block(x, bias)
        return self._norm(x if x.shape[-1] == d else x[:, :, :, :d])

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, L, D), of which every device must hold the same."""
        return self._ctx.get_equal(out)[:, 0]

    def _buckets(self, length: int) -> ttnn.Tensor:
        """Return the bucket of every pair of ``length`` positions, (L, L) on the devices, kept for the last length."""
        if self._known is None or self._known[0] != length:
            ids = bucket_ids(self._config, length).to(torch.int32)
            self._known = (length, self._ctx.put_rows(ids, ttnn.uint32))
        return self._known[1]

    @staticmethod
    def _masked(bias_1HLL: ttnn.Tensor, mask_B11L: ttnn.Tensor | None) -> ttnn.Tensor:
        """Bias and mask as one addition to the scores; keys that only fill the last tile are hidden as well."""
        added = bias_1HLL if mask_B11L is None else ttnn.add(bias_1HLL, mask_B11L)
        return added if added.shape[-1] % TILE == 0 else ttnn.fill_implicit_tile_padding(added, _HIDDEN)
