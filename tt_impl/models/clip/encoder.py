"""A CLIP text encoder, projected or not, heads and features cut over tp, the prompt whole on every member of sp.

    ids --ttnn.embedding--> + position table --> x, replicated
    block:  x --norm--> QKV of the local heads --> causal attention --row-parallel--reduce_scatter--all_gather--> + x
            x --norm--> fc1 (column) --> gelu --> fc2 (row) --reduce_scatter--all_gather--> + x
    sequence: what goes into the last block (the penultimate hidden state, not normalised)
    pooled:   last block --> row of the end token --> final norm --> text_projection, if there is one

The end token's row is picked before the final norm, which is row by row: 1 of 77 rows is normalised. Attention is
causal, so no row sees the rows that only fill its last tile, and no mask is stored.

Counterpart of ``refsim.models.clip.encoder``.

Legend: B batch, L tokens, D features of the stream, P features of the pooled row.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.clip.config import CLIPTextConfig
from refsim.models.clip.spec import PLAIN, PROJECTED
from refsim.models.inputs import SAMPLE
from tt_impl.layers.attention import local_attention
from tt_impl.layers.embeddings import TokenEmbedding
from tt_impl.layers.linear import AttentionSizes, ColParallelLinear, ColParallelQKV, Linear, RowParallelLinear
from tt_impl.layers.norm import LayerNorm, over_real_features, pad_features
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import gather_features

_FINAL_NORM = "final_layer_norm"
_LEGACY_EOS = 2
"""Configurations before transformers' PR 24773 hold this id; the end token is then the largest id of a row."""
_QUICK = 1.702
"""quick_gelu(x) = x * sigmoid(1.702 x)."""


class CLIPBlock:
    """``encoder.layers.{index}``, called ``name``; (B, 1, L, D), whole with padded features, in and out."""

    def __init__(self, weights: Weights, ctx: Context, config: CLIPTextConfig, name: str) -> None:
        self._ctx = ctx
        self._act = config.hidden_act
        self._features = config.hidden_size
        d = config.hidden_size
        wide = config.intermediate_size
        norm = {"features": d, "eps": config.layer_norm_eps}
        self._norm1, self._norm2 = (LayerNorm(ctx, **norm, affine=(weights, f"{name}.layer_norm{i}")) for i in (1, 2))
        sizes = AttentionSizes(d, config.num_attention_heads, d // config.num_attention_heads)
        names = tuple(f"{name}.self_attn.{n}_proj" for n in "qkv")
        self._qkv = ColParallelQKV(weights, ctx, names, sizes)
        heads = {"in_features": d, "in_padded": sizes.padded(ctx), "out_features": d}
        self._out = RowParallelLinear(weights, ctx, f"{name}.self_attn.out_proj", **heads)
        self._fc1 = ColParallelLinear(
            weights, ctx, f"{name}.mlp.fc1", in_features=d, out_features=wide, gathered_input=True
        )
        self._fc2 = RowParallelLinear(weights, ctx, f"{name}.mlp.fc2", in_features=wide, out_features=d)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        ctx = self._ctx
        qkv = self._qkv(over_real_features(self._norm1, x, self._features))
        x = ttnn.add(x, gather_features(ctx, self._out(local_attention(ctx, qkv, is_causal=True))))
        hidden = self._activate(self._fc1(over_real_features(self._norm2, x, self._features)))
        return ttnn.add(x, gather_features(ctx, self._fc2(hidden)))

    def _activate(self, x: ttnn.Tensor) -> ttnn.Tensor:
        if self._act == "gelu":
            return ttnn.gelu(x)
        return ttnn.multiply(x, ttnn.multiply(x, _QUICK), input_tensor_b_activations=[ttnn.UnaryOpType.SIGMOID])


class CLIPTextEncoder:
    """Built on one submesh from a transformers folder's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: CLIPTextConfig) -> None:
        self._ctx = ctx
        self._config = config
        # an encoder alone is saved with this prefix by transformers 4 and without it by 5
        prefix = "text_model." if config.projected or f"text_model.{_FINAL_NORM}.weight" in weights.names else ""
        d = config.hidden_size
        embeddings = f"{prefix}embeddings"
        tokens = f"{embeddings}.token_embedding"
        self._embed = TokenEmbedding(weights, ctx, tokens, vocab_size=config.vocab_size, features=d)
        self._table = weights.take(f"{embeddings}.position_embedding.weight", (config.max_position_embeddings, d))
        self._known: tuple[int, ttnn.Tensor] | None = None
        layers = (f"{prefix}encoder.layers.{i}" for i in range(config.num_hidden_layers))
        self._blocks = [CLIPBlock(weights, ctx, config, name) for name in layers]
        final = (weights, f"{prefix}{_FINAL_NORM}")
        self._norm = LayerNorm(ctx, features=d, eps=config.layer_norm_eps, affine=final)
        self._projection = None
        if config.projected:
            sizes = {"in_features": d, "out_features": config.projection_dim}
            self._projection = Linear(weights, ctx, "text_projection", **sizes, bias=False)
        weights.leave(f"{embeddings}.position_ids")  # 0, 1, 2 ..., which old folders hold
        weights.finish(PROJECTED if config.projected else PLAIN)

    def __call__(self, input_ids: torch.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Ids (B, L) on the host -> penultimate hidden state (B, 1, L, D) and the end token's row (B, 1, 1, P), both
        whole on the devices.

        Raises:
            UserError: an id that is not in the vocabulary.
        """
        d = self._config.hidden_size
        embedded = ttnn.add(self._embed(input_ids), self._positions(input_ids.shape[1]))
        sequence = pad_features(embedded, padded_features(d, self._ctx.tp))
        x = sequence
        for block in self._blocks:
            sequence = x
            x = block(x)
        rows = self._norm(self._end_rows(x, input_ids))
        return _real(sequence, d), rows if self._projection is None else self._projection(rows)

    def read(self, out: tuple[ttnn.Tensor, ttnn.Tensor], sizes: dict[str, int]) -> dict[str, torch.Tensor]:
        """``sample`` (B, P), the pooled row, and ``sequence`` (B, L, D), of which every device must hold the same."""
        sequence, pooled = (self._ctx.get_equal(x)[:, 0] for x in out)
        return {SAMPLE: pooled[:, 0], "sequence": sequence}

    def _positions(self, length: int) -> ttnn.Tensor:
        """Return the first rows of the table of positions, (1, 1, L, D), kept for the last length asked for."""
        if self._known is None or self._known[0] != length:
            self._known = (length, self._ctx.put(self._table[None, None, :length]))
        return self._known[1]

    def _end_rows(self, x: ttnn.Tensor, input_ids: torch.Tensor) -> ttnn.Tensor:
        """Pick the row of each prompt's first end token, (B, 1, 1, D): looked up in all rows as in a table."""
        batch, length = input_ids.shape
        end = self._config.eos_token_id
        ends = input_ids if end == _LEGACY_EOS else input_ids == end
        index = torch.arange(batch) * length + ends.int().argmax(-1)
        table = ttnn.reshape(ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), (batch * length, x.shape[-1]))
        where = self._ctx.put_rows(index[:, None].to(torch.int32), ttnn.uint32)
        return ttnn.unsqueeze(ttnn.embedding(where, table, layout=ttnn.TILE_LAYOUT), 1)


def _real(x: ttnn.Tensor, features: int) -> ttnn.Tensor:
    """Drop the features that are padding."""
    return x if x.shape[-1] == features else x[:, :, :, :features]
