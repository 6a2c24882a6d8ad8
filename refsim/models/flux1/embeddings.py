"""What goes into Flux's blocks besides the two streams: how their tokens are cut, their rotary tables, and the time
step, guidance and pooled text as one vector.

    position ids   image (N, 3): [0, row, column] as a rule      text (L, 3): zeros as a rule
    a head         [ axis 0: 16 | axis 1: 56 | axis 2: 56 ]      features turned by each axis (``axes_dims_rope``)

The ids are inputs of the model, so any numbers will do. A member of sp makes the tables of its own tokens only.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TimeTextEmbedding, TwoLinears, timestep_embedding
from refsim.layers.rope import Rotary, rotary_angles
from refsim.models.flux1.config import FluxBlocks, FluxConfig
from refsim.parallel.sequence import TokenShards
from refsim.runtime.device import Device

_TRAIN_TIMESTEPS = 1000


def sequences_of(device: Device, config: FluxBlocks, img_ids_N3: Tensor, txt_ids_L3: Tensor) -> Sequences:
    """Cut as many tokens as there are ids; the tables are those of this device's part, padding at position 0."""
    sequences = Sequences.of(device, img_ids_N3.shape[0], txt_ids_L3.shape[0])
    index = device.groups["sp"].index
    return replace(
        sequences,
        rotary=_tables(config, img_ids_N3, sequences.tokens, index),
        prompt_rotary=_tables(config, txt_ids_L3, sequences.prompt_tokens, index),
    )


def _tables(config: FluxBlocks, ids_N3: Tensor, shards: TokenShards | None, index: int) -> Rotary:
    mine = ids_N3 if shards is None else shards.cut(ids_N3, index, dim=0)
    angles = rotary_angles(mine.unbind(-1), config.axes_dims_rope, config.rope_theta)
    return angles.cos().float(), angles.sin().float()


class Conditioning:
    """``time_text_embed``: time step, pooled text and, where the model has it, guidance, summed; on every device."""

    def __init__(self, weights: Weights, config: FluxConfig) -> None:
        name = "time_text_embed"
        d = config.features
        self._time_text = TimeTextEmbedding(weights, name, features=d, pooled_features=config.pooled_projection_dim)
        self._guidance = None
        if config.guidance_embeds:
            width = TimeTextEmbedding.TIME_FEATURES
            self._guidance = TwoLinears(weights, f"{name}.guidance_embedder", in_features=width, features=d)

    def __call__(self, timestep_B: Tensor, pooled_BP: Tensor, guidance_B: Tensor | None) -> Tensor:
        """Time step in 0..1, guidance as a scale such as 3.5 -> (B, D)."""
        time_BD = self._time_text(timestep_B * _TRAIN_TIMESTEPS, pooled_BP)
        if self._guidance is None:
            return time_BD
        scale = timestep_embedding(guidance_B * _TRAIN_TIMESTEPS, TimeTextEmbedding.TIME_FEATURES)
        return time_BD + self._guidance(scale.to(pooled_BP.dtype))
