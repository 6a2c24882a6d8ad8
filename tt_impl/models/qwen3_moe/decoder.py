"""Qwen3 mixture-of-experts decoder: ids in, hidden states or the best next tokens out.

    ids --> embeddings --> x, whole on every device
    layer:  x --rms norm--> attention over the cached and the new rows --reduce_scatter--all_gather--> + --> x
            x --rms norm--> router, experts                            --reduce_scatter--all_gather--> + --> x
    x --rms norm--> head, vocabulary cut over tp --> local logits --> argmax over all devices

Counterpart of ``refsim.models.qwen3_moe.decoder``.

Legend: B batch, 1; N rows; D features. A (B, N, D) is (1, 1, N, D) on the devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.models.qwen3_moe.spec import CLASS_NAME
from tt_impl.layers.embeddings import TokenEmbedding
from tt_impl.layers.grouped_attention import causal_mask
from tt_impl.layers.kv_cache import KVCache
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.paged_cache import PagedKVCache, PagePool
from tt_impl.layers.rope import Tables, text_rotary
from tt_impl.models.qwen3_moe.attention import Qwen3MoeAttention
from tt_impl.models.qwen3_moe.experts import Qwen3MoeSparseMoeBlock
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE
from tt_impl.parallel.tensor import gather_features
from tt_impl.parallel.vocab import VocabArgmax


@dataclass(frozen=True)
class Hidden:
    """``last`` (1, 1, N, D) after the final norm, ``before`` it; ``layers``, the same after each layer asked for."""

    last: ttnn.Tensor
    before: ttnn.Tensor
    layers: list[ttnn.Tensor]


class Qwen3MoeDecoderLayer:
    """``model.layers.{index}``; (1, 1, N, D), whole in and out."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: Qwen3MoeConfig) -> None:
        self._ctx = ctx
        norm = {"features": config.hidden_size, "eps": config.rms_norm_eps}
        self._norm1 = RMSNorm(weights, ctx, f"{prefix}.input_layernorm", **norm)
        self._norm2 = RMSNorm(weights, ctx, f"{prefix}.post_attention_layernorm", **norm)
        self._attention = Qwen3MoeAttention(weights, ctx, f"{prefix}.self_attn", config)
        self._experts = Qwen3MoeSparseMoeBlock(weights, ctx, f"{prefix}.mlp", config)

    def __call__(
        self, x: ttnn.Tensor, rotary: Tables, cache: KVCache | PagedKVCache, *, mask: ttnn.Tensor | None
    ) -> ttnn.Tensor:
        x = ttnn.add(x, gather_features(self._ctx, self._attention(self._norm1(x), rotary, cache, mask=mask)))
        return ttnn.add(x, gather_features(self._ctx, self._experts(self._norm2(x))))


class Qwen3MoeForCausalLM:
    """Built from a transformers folder's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: Qwen3MoeConfig) -> None:
        d = config.hidden_size
        vocab_size = config.vocab_size
        table = "model.embed_tokens"
        if d % (TILE * ctx.tp):
            raise UserError(f"tp{ctx.tp} needs a hidden size that is a multiple of {TILE * ctx.tp}, not {d}.")
        self.ctx = ctx
        self.config = config
        self.embed = TokenEmbedding(weights, ctx, table, vocab_size=vocab_size, features=d)
        self._layers = [
            Qwen3MoeDecoderLayer(weights, ctx, f"model.layers.{i}", config) for i in range(config.num_hidden_layers)
        ]
        self._norm = RMSNorm(weights, ctx, "model.norm", features=d, eps=config.rms_norm_eps)
        head = table if config.tie_word_embeddings else "lm_head"
        self._head = ColParallelLinear(
            weights, ctx, head, in_features=d, out_features=vocab_size, gathered_input=True, bias=False
        )
        self._best = VocabArgmax(ctx, vocab_size)
        self._pool: PagePool | None = None
        weights.finish(CLASS_NAME)

    def use_pages(self, pages: int) -> None:
        """Keep the rows of all users in a pool of so many pages per layer from now on."""
        self._pool = PagePool(self.ctx, len(self._layers), pages)

    def new_cache(self) -> list[KVCache] | list[PagedKVCache]:
        """One empty cache per layer."""
        return [KVCache() for _ in self._layers] if self._pool is None else self._pool.new_cache()

    def hidden(
        self, ids_BN: torch.Tensor, cache: list[KVCache] | list[PagedKVCache], keep: tuple[int, ...] = ()
    ) -> Hidden:
        """Run the layers on new rows, which follow the rows of the cache and are added to it.

        Args:
            keep: numbers of the layers whose output is wanted; the last layer's is normed, as transformers'
                ``hidden_states``, by which z-lab numbers them, has it.
        """
        first = cache[0].length
        rows = ids_BN.shape[1]
        rotary = text_rotary(self.ctx, torch.arange(first, first + rows), self.config.head_dim, self.config.rope_theta)
        mask = causal_mask(self.ctx, rows, first + rows)
        x = self.embed(ids_BN)
        after = {}
        for index, (layer, layer_cache) in enumerate(zip(self._layers, cache, strict=True)):
            x = layer(x, rotary, layer_cache, mask=mask)
            after[index] = x
        last = self._norm(x)
        after[len(self._layers) - 1] = last
        return Hidden(last, x, [after[index] for index in keep])

    def logits(self, hidden_BND: ttnn.Tensor) -> ttnn.Tensor:
        """(1, 1, N, D) -> (1, 1, N, vocabulary / tp), padding at the end of the last device."""
        return self._head(hidden_BND)

    def argmax(self, hidden_BND: ttnn.Tensor) -> torch.Tensor:
        """Best next token of every row (N,) in int64, decided on the devices and read from them."""
        return self.ctx.get_equal(self._best(self.logits(hidden_BND)))[0, 0, :, 0].long()
