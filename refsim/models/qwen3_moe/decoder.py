"""Qwen3 mixture-of-experts decoder: ids in, hidden states, logits or the best next tokens out.

    ids --> embeddings (rows read one by one) --> x, replicated
    layer:  x --rms norm--> attention over the cached and the new rows --reduce_scatter--all_gather--> + --> x
            x --rms norm--> router, experts                            --reduce_scatter--all_gather--> + --> x
    x --rms norm--> head, vocabulary cut over tp --> local logits --> argmax over all members

Bytes per layer: two reduce_scatter and two all_gather of (B, N, D).

Counterpart: transformers' ``Qwen3MoeForCausalLM``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TokenEmbedding
from refsim.layers.kv_cache import KVCache
from refsim.layers.linear import ColParallelLinear
from refsim.layers.norm import RMSNorm, over_real_features
from refsim.layers.paged_cache import PagePool
from refsim.layers.rope import text_rotary
from refsim.models.inputs import BATCH, Dims
from refsim.models.qwen3_moe.attention import Qwen3MoeAttention
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.models.qwen3_moe.experts import Qwen3MoeSparseMoeBlock
from refsim.models.qwen3_moe.spec import CLASS_NAME
from refsim.parallel.padding import padded_features
from refsim.parallel.tensor import gather_features
from refsim.parallel.vocab import MAX_VOCAB, vocab_argmax
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor
from refsim.runtime.watch.activity import Kind


@dataclass(frozen=True)
class Hidden:
    """What the layers gave.

    Attributes:
        last: (B, N, D) after the final norm.
        layers: (B, N, layers * D), the residual stream after each of the layers asked for, side by side.
    """

    last: Tensor
    layers: Tensor


class Qwen3MoeDecoderLayer:
    """``model.layers.{index}``; (B, N, D), tp=Replicate with padded features, in and out."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: Qwen3MoeConfig) -> None:
        self._device = device
        self._features = config.hidden_size
        norm = {"features": config.hidden_size, "eps": config.rms_norm_eps}
        self._norm1 = RMSNorm(weights, device, f"{prefix}.input_layernorm", **norm)
        self._norm2 = RMSNorm(weights, device, f"{prefix}.post_attention_layernorm", **norm)
        self._attention = Qwen3MoeAttention(weights, device, f"{prefix}.self_attn", config)
        self._experts = Qwen3MoeSparseMoeBlock(weights, device, f"{prefix}.mlp", config)

    def __call__(self, x: MeshTensor, rotary: tuple[Tensor, Tensor], cache: KVCache) -> MeshTensor:
        attended = self._attention(over_real_features(self._norm1, x, self._features), rotary, cache)
        x = x + gather_features(self._device, attended)
        return x + gather_features(self._device, self._experts(over_real_features(self._norm2, x, self._features)))


class Qwen3MoeForCausalLM:
    """Built from a transformers folder's weights; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: Qwen3MoeConfig) -> None:
        if config.vocab_size > MAX_VOCAB:
            raise UserError(f"config.json has vocab_size {config.vocab_size}; at most {MAX_VOCAB} are supported.")
        self.device = device
        self.config = config
        d = config.hidden_size
        table = "model.embed_tokens"
        self.embed = TokenEmbedding(weights, table, vocab_size=config.vocab_size, features=d)
        self._layers = [
            Qwen3MoeDecoderLayer(weights, device, f"model.layers.{i}", config) for i in range(config.num_hidden_layers)
        ]
        self._norm = RMSNorm(weights, device, "model.norm", features=d, eps=config.rms_norm_eps)
        self._head = ColParallelLinear(
            weights,
            device,
            table if config.tie_word_embeddings else "lm_head",
            in_features=d,
            out_features=config.vocab_size,
            gathered_input=True,
            bias=False,
        )
        self._pool: PagePool | None = None
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: Qwen3MoeConfig) -> dict[str, Dims]:
        """Return names and shapes of the transformers ``forward`` arguments; named dims may have any size."""
        return {"input_ids": (BATCH, "tokens")}

    def use_pages(self, pages: int) -> None:
        """Keep the rows of all users in a pool of so many pages per layer from now on."""
        self._pool = PagePool(len(self._layers), pages)

    @property
    def pages(self) -> int:
        """Count the pages per layer that users have taken; 0 without a pool."""
        return 0 if self._pool is None else self._pool.taken

    def new_cache(self) -> Sequence[KVCache]:
        """Return one empty cache per layer."""
        return [KVCache() for _ in self._layers] if self._pool is None else self._pool.new_cache()

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Map ids (B, N), all of them real to logits (B, N, vocabulary), whole on every device."""
        logits = gather_features(self.device, self.logits(self.hidden(input_ids).last))
        return logits.local[..., : self.config.vocab_size]

    def hidden(self, ids_BN: Tensor, cache: Sequence[KVCache] | None = None, keep: tuple[int, ...] = ()) -> Hidden:
        """Run the layers on new rows, which follow the rows of the cache and are added to it.

        Args:
            keep: numbers of the layers whose output is wanted; the last layer's is normed, as transformers'
                ``hidden_states``, by which z-lab numbers them, has it.

        Raises:
            UserError: an id that is not in the vocabulary.
        """
        cache = self.new_cache() if cache is None else cache
        first = cache[0].length
        x = self.embed(ids_BN)
        positions = torch.arange(first, first + ids_BN.shape[1])
        rotary = text_rotary(positions, self.config.head_dim, self.config.rope_theta)
        stream = MeshTensor(self._pad(x))
        outputs = {}
        for index, (layer, rows) in enumerate(zip(self._layers, cache, strict=True)):
            self.device.activity(Kind.DECODING, f"rows {first} to {first + ids_BN.shape[1] - 1}", block=index)
            stream = layer(stream, rotary, rows)
            if index in keep:
                outputs[index] = stream.local[..., : x.shape[-1]]
        last = self._norm(stream.local[..., : x.shape[-1]])
        outputs[len(self._layers) - 1] = last
        wanted = torch.cat([outputs[index] for index in keep], -1) if keep else x[..., :0]
        return Hidden(last, wanted)

    def logits(self, hidden_BND: Tensor) -> MeshTensor:
        """Return (B, N, vocabulary / tp), tp=Shard(-1), tokens beyond the vocabulary 0."""
        return self._head(MeshTensor(self._pad(hidden_BND)))

    def argmax(self, hidden_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best next token of every row (B, N) in int64, and its margin over the second best logit."""
        return vocab_argmax(self.device, self.logits(hidden_BND), self.config.vocab_size)

    def _pad(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, padded_features(x.shape[-1], self.device.groups["tp"].size) - x.shape[-1]))
