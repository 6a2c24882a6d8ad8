"""The SD3.5 transformer: latent, prompt and time step in, velocity out.

    latent --patches--> tokens of this device --+--> blocks --> norm, proj --all_gather over sp--> unpatchify
    prompt --linear---> replicated or cut ------'

Counterpart: diffusers' ``SD3Transformer2DModel``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.blocks.stack import BlockStack, BoundBlock, bind
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import PatchEmbed, TimeTextEmbedding
from refsim.layers.linear import ColParallelLinear
from refsim.models.inputs import BATCH, Dims
from refsim.models.sd35.config import SD35Config
from refsim.models.sd35.spec import CLASS_NAME
from refsim.runtime.device import Device


class SD35Transformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: SD35Config) -> None:
        self._device = device
        self._config = config
        d = config.features
        p = config.patch_size
        self._patch_embed = PatchEmbed(
            weights,
            device,
            "pos_embed",
            patch=p,
            in_channels=config.in_channels,
            features=d,
            table_size=config.pos_embed_max_size,
        )
        self._time_text = TimeTextEmbedding(
            weights, "time_text_embed", features=d, pooled_features=config.pooled_projection_dim
        )
        self._context_embedder = ColParallelLinear(
            weights, device, "context_embedder", in_features=config.joint_attention_dim, out_features=d
        )
        self._blocks = BlockStack(weights, device, config)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: SD35Config) -> dict[str, Dims]:
        """Return the names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        return {
            "hidden_states": (BATCH, config.in_channels, "height", "width"),
            "encoder_hidden_states": (BATCH, "prompt tokens", config.joint_attention_dim),
            "pooled_projections": (BATCH, config.pooled_projection_dim),
            "timestep": (BATCH,),
        }

    def check_inputs(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise ``UserError`` if the latent does not fit the patches or the positional table."""
        self._patch_embed.grid(*shapes["hidden_states"][2:])

    def __call__(
        self, *, hidden_states: Tensor, encoder_hidden_states: Tensor, pooled_projections: Tensor, timestep: Tensor
    ) -> Tensor:
        """Map (B, C, H, W), (B, L, joint), (B, pooled), (B,) on all devices to velocity, replicated over sp and tp."""
        sp = self._device.groups["sp"]
        rows, columns = self._patch_embed.grid(*hidden_states.shape[2:])
        sequences = Sequences.of(self._device, rows * columns, encoder_hidden_states.shape[1])
        with self._device.module("time_text_embed"):
            silu_time = F.silu(self._time_text(timestep, pooled_projections))
        spatial = self._patch_embed(hidden_states, sequences.tokens, sp.index)
        prompt = self._context_embedder(sequences.place_prompt(self._device, encoder_hidden_states))
        return self.unpatchify(self._blocks(spatial, prompt, silu_time, sequences), rows, columns)

    def unpatchify(self, out_BNP: Tensor, rows: int, columns: int) -> Tensor:
        """Map (B, N, p * p * C) with the channel innermost to (B, C, H, W)."""
        p = self._config.patch_size
        c = self._config.out_channels
        x = out_BNP.unflatten(1, (rows, columns)).unflatten(3, (p, p, c))
        return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3).contiguous()


def bind_block(
    weights: Weights, device: Device, config: SD35Config, index: int, inputs: dict[str, Tensor]
) -> BoundBlock:
    """Return block ``index`` for streams of as many tokens as ``inputs`` have."""
    sequences = Sequences.of(device, inputs["spatial"].shape[1], inputs["prompt"].shape[1])
    return bind(weights, device, config, index, sequences)
