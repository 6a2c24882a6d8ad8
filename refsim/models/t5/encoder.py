"""T5 and UMT5 encoders, heads and feed-forward cut over tp, the prompt whole on every member of sp.

    ids --> embeddings (rows read one by one) --> x, replicated
    block:  x --rms norm--> QKV of the local heads --> softmax(q k + relative bias + mask) v --row-parallel--.
            x <--all_gather-- + <--reduce_scatter-----------------------------------------------------------'
            x --rms norm--> gelu(wi_0 x) * (wi_1 x) --wo row-parallel--reduce_scatter--all_gather--> + --> x

There is no scale 1 / sqrt(E), no bias of linears and no position but the relative bias: one number per head and bucket
of distances, computed once for a length. T5 has one table, in its first layer; UMT5 one in every layer.

Bytes per block: two reduce_scatter and two all_gather of (B, L, D).

Counterparts: transformers' ``T5EncoderModel`` and ``UMT5EncoderModel``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.attention import local_attention
from refsim.layers.embeddings import TokenEmbedding
from refsim.layers.linear import AttentionSizes, ColParallelLinear, ColParallelQKV, RowParallelHeads, RowParallelLinear
from refsim.layers.norm import RMSNorm, over_real_features
from refsim.models.inputs import BATCH, Dims
from refsim.models.t5.config import T5Config
from refsim.parallel.padding import padded_features, padded_heads
from refsim.parallel.tensor import gather_features, shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor
from refsim.runtime.watch.activity import Kind

_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
"""Two names of one tensor; a folder holds either or both."""


class RelativeBias:
    """The local heads' (1, H, L, L) addition to the scores."""

    def __init__(self, weights: Weights, device: Device, name: str, config: T5Config) -> None:
        tp = device.groups["tp"]
        heads = shard_range(padded_heads(config.num_heads, tp.size), tp)
        self._buckets = config.relative_attention_num_buckets
        self._max_distance = config.relative_attention_max_distance
        self._table = weights.take(f"{name}.weight", (self._buckets, config.num_heads), None, heads)

    def __call__(self, length: int) -> Tensor:
        position = torch.arange(length)
        distance = position[None, :] - position[:, None]
        return self._table[self._bucket(distance)].movedim(-1, 0).unsqueeze(0)

    def _bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of a distance: half per direction, exact distances first, then wider ranges."""
        half = self._buckets // 2
        exact = half // 2
        size = distance.abs()
        wide = torch.log(size.float() / exact) / math.log(self._max_distance / exact) * (half - exact)
        bucket = torch.where(size < exact, size, (exact + wide.clamp(min=0).long()).clamp(max=half - 1))
        return bucket + (distance > 0) * half


class T5Block:
    """``encoder.block.{index}``."""

    def __init__(self, weights: Weights, device: Device, config: T5Config, index: int) -> None:
        self._device = device
        d = config.d_model
        prefix = f"encoder.block.{index}.layer"
        sizes = AttentionSizes(d, config.num_heads, config.d_kv)
        attention = f"{prefix}.0.SelfAttention"
        ff = f"{prefix}.1.DenseReluDense"
        norm = {"features": d, "eps": config.layer_norm_epsilon}
        self._norm1 = RMSNorm(weights, device, f"{prefix}.0.layer_norm", **norm)
        self._norm2 = RMSNorm(weights, device, f"{prefix}.1.layer_norm", **norm)
        self._features = d
        names = tuple(f"{attention}.{n}" for n in "qkv")
        self._qkv = ColParallelQKV(weights, device, names, sizes, bias=False)
        self._out = RowParallelHeads(weights, device, f"{attention}.o", sizes, bias=False)
        self.bias = None
        if index == 0 or config.model_type == "umt5":
            self.bias = RelativeBias(weights, device, f"{attention}.relative_attention_bias", config)
        wide = {"in_features": d, "out_features": config.d_ff, "gathered_input": True, "bias": False}
        self._gate = ColParallelLinear(weights, device, f"{ff}.wi_0", **wide)
        self._up = ColParallelLinear(weights, device, f"{ff}.wi_1", **wide)
        self._down = RowParallelLinear(weights, device, f"{ff}.wo", in_features=config.d_ff, out_features=d, bias=False)

    def __call__(self, x: MeshTensor, bias_1HLL: Tensor) -> MeshTensor:
        """Run the block on (B, L, D), tp=Replicate with padded features; the mask is part of the bias."""
        qkv = self._qkv(over_real_features(self._norm1, x, self._features))
        out = local_attention(self._device, qkv, attn_mask=bias_1HLL.to(x.local.dtype), scale=1.0)
        x = x + gather_features(self._device, self._out(out))
        normed = over_real_features(self._norm2, x, self._features)
        gate = self._gate(normed).map("gelu", lambda y: F.gelu(y, approximate="tanh"))
        return x + gather_features(self._device, self._down(gate * self._up(normed)))


class T5Encoder:
    """Built from a transformers folder's weights; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: T5Config) -> None:
        self._device = device
        self._config = config
        table = next((n for n in _TABLES if n in weights.names), _TABLES[0]).removesuffix(".weight")
        self._embed = TokenEmbedding(weights, table, vocab_size=config.vocab_size, features=config.d_model)
        weights.leave(*_TABLES)
        self._blocks = [T5Block(weights, device, config, i) for i in range(config.num_layers)]
        name = "encoder.final_layer_norm"
        eps = config.layer_norm_epsilon
        self._norm = RMSNorm(weights, device, name, features=config.d_model, eps=eps)
        weights.finish(f"the {config.model_type} encoder")

    @staticmethod
    def input_shapes(config: T5Config) -> dict[str, Dims]:
        """Return names and shapes of the transformers ``forward`` arguments; named dims may have any size."""
        return dict.fromkeys(("input_ids", "attention_mask"), (BATCH, "tokens"))

    def __call__(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the ids (B, L) and mask (1 real, 0 padding; None for all real) -> (B, L, D), replicated.

        Raises:
            UserError: an id that is not in the vocabulary.
        """
        x = self._embed(input_ids)
        padding = torch.zeros(1, 1, dtype=torch.bool) if attention_mask is None else attention_mask == 0
        least = torch.finfo(x.dtype).min
        padded = padded_features(x.shape[-1], self._device.groups["tp"].size)
        stream = MeshTensor(F.pad(x, (0, padded - x.shape[-1])))
        bias = None
        for index, block in enumerate(self._blocks):
            self._device.activity(Kind.ENCODING, "the prompt", block=index)
            if block.bias is not None:
                bias = block.bias(x.shape[1]).masked_fill(padding[:, None, None, :], least)
            stream = block(stream, bias)
        return self._norm(stream.local[..., : self._config.d_model])
