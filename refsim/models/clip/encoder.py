"""A CLIP text encoder, projected or not, heads and features cut over tp, the prompt whole on every member of sp.

    ids --> token + position embeddings --> x, replicated
    block:  x --norm--> QKV of the local heads --> causal attention --row-parallel--reduce_scatter--all_gather--> + x
            x --norm--> fc1 (column) --> gelu --> fc2 (row) --reduce_scatter--all_gather--> + x
    sequence: what goes into the last block (the penultimate hidden state, not normalised)
    pooled:   last block --> final norm --> row of the end token --> text_projection, if there is one

Bytes per block: two reduce_scatter and two all_gather of (B, L, D).

Counterpart: transformers' ``CLIPTextModelWithProjection``, as diffusers' Stable Diffusion 3 pipeline uses it, and
``CLIPTextModel``, as its Flux pipeline does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.layers.attention import local_attention
from refsim.layers.linear import AttentionSizes, ColParallelLinear, ColParallelQKV, RowParallelHeads, RowParallelLinear
from refsim.layers.norm import LayerNorm, over_real_features
from refsim.models.clip.config import CLIPTextConfig
from refsim.models.clip.spec import PLAIN, PROJECTED
from refsim.models.inputs import BATCH, SAMPLE, Dims
from refsim.parallel.padding import padded_features
from refsim.parallel.tensor import gather_features
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor
from refsim.runtime.watch.activity import Kind

_FINAL_NORM = "final_layer_norm"
_LEGACY_EOS = 2
"""Configurations before transformers' PR 24773 hold this id; the end token is then the largest id of a row."""


class CLIPBlock:
    """``encoder.layers.{index}``, called ``name``; (B, L, D), tp=Replicate with padded features, in and out."""

    def __init__(self, weights: Weights, device: Device, config: CLIPTextConfig, name: str) -> None:
        self._device = device
        self._act = config.hidden_act
        self._features = config.hidden_size
        d = config.hidden_size
        norm = {"features": d, "eps": config.layer_norm_eps}
        self._norm1, self._norm2 = (
            LayerNorm(device, **norm, affine=(weights, f"{name}.layer_norm{i}")) for i in (1, 2)
        )
        sizes = AttentionSizes(d, config.num_attention_heads, d // config.num_attention_heads)
        names = tuple(f"{name}.self_attn.{n}_proj" for n in "qkv")
        self._qkv = ColParallelQKV(weights, device, names, sizes)
        self._out = RowParallelHeads(weights, device, f"{name}.self_attn.out_proj", sizes)
        wide = config.intermediate_size
        self._fc1 = ColParallelLinear(
            weights, device, f"{name}.mlp.fc1", in_features=d, out_features=wide, gathered_input=True
        )
        self._fc2 = RowParallelLinear(weights, device, f"{name}.mlp.fc2", in_features=wide, out_features=d)

    def __call__(self, x: MeshTensor) -> MeshTensor:
        qkv = self._qkv(over_real_features(self._norm1, x, self._features))
        x = x + gather_features(self._device, self._out(local_attention(self._device, qkv, is_causal=True)))
        hidden = self._fc1(over_real_features(self._norm2, x, self._features)).map(self._act, self._activate)
        return x + gather_features(self._device, self._fc2(hidden))

    def _activate(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x) if self._act == "quick_gelu" else F.gelu(x)


class CLIPTextEncoder:
    """Built from a transformers folder's weights; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: CLIPTextConfig) -> None:
        self._device = device
        self._config = config
        # an encoder alone is saved with this prefix by transformers 4 and without it by 5
        prefix = "text_model." if config.projected or f"text_model.{_FINAL_NORM}.weight" in weights.names else ""
        d = config.hidden_size
        embeddings = f"{prefix}embeddings"
        self._tokens = weights.take(f"{embeddings}.token_embedding.weight", (config.vocab_size, d))
        self._positions = weights.take(f"{embeddings}.position_embedding.weight", (config.max_position_embeddings, d))
        layers = (f"{prefix}encoder.layers.{i}" for i in range(config.num_hidden_layers))
        self._blocks = [CLIPBlock(weights, device, config, name) for name in layers]
        final = (weights, f"{prefix}{_FINAL_NORM}")
        self._norm = LayerNorm(device, features=d, eps=config.layer_norm_eps, affine=final)
        self._projection = None
        if config.projected:
            self._projection = weights.take("text_projection.weight", (config.projection_dim, d))
        weights.leave(f"{embeddings}.position_ids")  # 0, 1, 2 ..., which old folders hold
        weights.finish(PROJECTED if config.projected else PLAIN)

    @staticmethod
    def input_shapes(config: CLIPTextConfig) -> dict[str, Dims]:
        """Return names and shapes of the transformers ``forward`` arguments; named dims may have any size."""
        return {"input_ids": (BATCH, "tokens")}

    def check_inputs(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise ``UserError`` if there are more ids than positions."""
        length = shapes["input_ids"][1]
        most = self._config.max_position_embeddings
        if length > most:
            raise UserError(f"input_ids has {length} tokens but the text encoder has {most} positions.")

    def __call__(self, input_ids: Tensor) -> dict[str, Tensor]:
        """Map ids (B, L) to the penultimate hidden state and the end token's row, replicated.

        ``sample`` is transformers' ``text_embeds`` (B, projection), or ``pooler_output`` (B, D) without a projection;
        ``sequence`` is its ``hidden_states[-2]`` (B, L, D).

        Raises:
            UserError: an id that is not in the vocabulary.
        """
        d = self._config.hidden_size
        worst = self._config.vocab_size - 1
        if int(input_ids.min()) < 0 or int(input_ids.max()) > worst:
            raise UserError(
                f"the tokenizer gave an id outside 0 to {worst}, which the text encoder knows; use the tokenizer that "
                "belongs to it."
            )
        x = self._tokens[input_ids] + self._positions[: input_ids.shape[1]]
        stream = MeshTensor(F.pad(x, (0, padded_features(d, self._device.groups["tp"].size) - d)))
        sequence = stream
        for index, block in enumerate(self._blocks):
            self._device.activity(Kind.ENCODING, "the prompt", block=index)
            sequence = stream
            stream = block(stream)
        last = self._norm(stream.local)
        ends = input_ids if self._config.eos_token_id == _LEGACY_EOS else input_ids == self._config.eos_token_id
        rows = last[torch.arange(len(last)), ends.int().argmax(-1)]
        pooled = rows if self._projection is None else F.linear(rows, self._projection)
        return {SAMPLE: pooled, "sequence": sequence.local[..., :d]}
