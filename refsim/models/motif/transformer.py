"""Motif's transformer as predictions read it: the shared blocks in its sizes, between linears of its sizes.

    patches --linear--> tokens of this device --+--> double-stream blocks --> norm, proj --all_gather over sp-->
    prompt  --linear---> replicated or cut -----'

It cannot be run: its weights have other names, and what costs nothing or happens once a picture is left out (register
tokens are tokens like others, pooled text is a single row).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import timestep_embedding
from refsim.layers.linear import ColParallelLinear, Linear
from refsim.layers.norm import LayerNorm
from refsim.models.inputs import BATCH, Dims
from refsim.models.motif.config import MotifConfig
from refsim.models.motif.spec import CLASS_NAME
from refsim.models.spec import PROMPT
from refsim.parallel.sequence import cut_tokens, gather_tokens
from refsim.parallel.tensor import gather_features
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_EPS = 1e-6


class MotifTransformer:
    """For :mod:`refsim.timing.read.reading` alone."""

    def __init__(self, weights: Weights, device: Device, config: MotifConfig) -> None:
        self._device = device
        self._time_features = config.time_embed_dim
        d = config.features
        widths = (config.time_embed_dim, 4 * config.time_embed_dim, config.modulation_dim)
        self._time1, self._time2 = (
            Linear(weights, f"time_text_embed.timestep_embedder.linear_{i}", in_features=size, out_features=out)
            for i, size, out in ((1, *widths[:2]), (2, *widths[1:]))
        )
        self._embedder, self._context_embedder = (
            ColParallelLinear(weights, device, name, in_features=size, out_features=d)
            for name, size in (("pos_embed.proj", config.token_features), ("context_embedder", config.text_dim))
        )
        self._blocks = [
            DoubleStreamBlock(weights, device, config.block(i), f"transformer_blocks.{i}")
            for i in range(config.num_layers)
        ]
        self._norm_out = LayerNorm(device, features=d, eps=_EPS)
        self._mod_out = Linear(weights, "norm_out.linear", in_features=config.modulation_dim, out_features=2 * d)
        self._proj_out = Linear(weights, "proj_out", in_features=d, out_features=config.token_features)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: MotifConfig) -> dict[str, Dims]:
        """Return what goes in: image tokens as patches."""
        return {
            "hidden_states": (BATCH, "image tokens", config.token_features),
            "encoder_hidden_states": (BATCH, PROMPT, config.text_dim),
            "timestep": (BATCH,),
        }

    def __call__(self, *, hidden_states: Tensor, encoder_hidden_states: Tensor, timestep: Tensor) -> Tensor:
        """(B, N, C), (B, L, text), (B,) on every device -> (B, N, C), replicated over sp and tp."""
        sequences = Sequences.of(self._device, hidden_states.shape[1], encoder_hidden_states.shape[1])
        time = timestep_embedding(timestep, self._time_features).to(hidden_states.dtype)
        time = F.silu(self._time2(F.silu(self._time1(time))))
        spatial = self._embedder(cut_tokens(self._device, MeshTensor(hidden_states), sequences.tokens, dim=1))
        prompt = self._context_embedder(sequences.place_prompt(self._device, encoder_hidden_states))
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            spatial, prompt = block(spatial, prompt, time, sequences=sequences)
        self._device.stage()
        gathered = gather_features(self._device, spatial)
        scale, shift = self._mod_out(time).unsqueeze(1).chunk(2, -1)
        out_BNC = gathered.map("proj_out", lambda x: self._proj_out(self._norm_out(x) * (1 + scale) + shift))
        return gather_tokens(self._device, out_BNC, sequences.tokens, dim=1).local
