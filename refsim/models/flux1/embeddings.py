"""What goes into Flux's blocks besides the two streams: how their tokens are cut, their rotary tables, and the time
step, guidance and pooled text as one vector.

    position ids   image (N, 3): [0, row, column] as a rule      text (L, 3): zeros as a rule
    a head         [ axis 0: 16 | axis 1: 56 | axis 2: 56 ]      features turned by each axis (``axes_dims_rope``)

The ids are inputs of the model, so any numbers will do. A member of sp makes the tables of its own tokens only.
"""

from __future__ import annotations

from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TimestepEmbedding, TimeTextEmbedding
from refsim.layers.linear import ColParallelLinear
from refsim.layers.rope import rotary_angles
from refsim.models.flux1.config import FluxBlocks, FluxConfig
from refsim.parallel.sequence import cut_tokens
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_TRAIN_TIMESTEPS = 1000


def sequences_of(device: Device, config: FluxBlocks, img_ids_N3: Tensor, txt_ids_L3: Tensor) -> Sequences:
    """Cut as many tokens as there are ids, which are their places."""

    def angles(ids_N3: Tensor) -> Tensor:
        return rotary_angles(ids_N3.unbind(-1), config.axes_dims_rope, config.rope_theta)

    sequences = Sequences.of(device, img_ids_N3.shape[0], txt_ids_L3.shape[0])
    return sequences.turned(device, img_ids_N3, txt_ids_L3, angles)


class StreamEmbedders:
    """``x_embedder`` and ``context_embedder``: the linears that both streams go through first, column-parallel."""

    def __init__(self, weights: Weights, device: Device, config: FluxBlocks, *, bias: bool = True) -> None:
        self._device = device
        self._image, self._prompt = (
            ColParallelLinear(weights, device, name, in_features=size, out_features=config.features, bias=bias)
            for name, size in (("x_embedder", config.in_channels), ("context_embedder", config.joint_attention_dim))
        )

    def __call__(self, latents_BNC: Tensor, prompt_BLJ: Tensor, sequences: Sequences) -> tuple[MeshTensor, MeshTensor]:
        """Cut both, which are whole on every device -> (B, local N, local D) and (B, local L, local D)."""
        spatial = self._image(cut_tokens(self._device, MeshTensor(latents_BNC), sequences.tokens, dim=1))
        return spatial, self._prompt(sequences.place_prompt(self._device, prompt_BLJ))


class Conditioning:
    """``time_text_embed``: time step, pooled text and, where the model has it, guidance, summed; on every device."""

    def __init__(self, weights: Weights, config: FluxConfig) -> None:
        name = "time_text_embed"
        d = config.features
        self._time_text = TimeTextEmbedding(weights, name, features=d, pooled_features=config.pooled_projection_dim)
        self._guidance = None
        if config.guidance_embeds:
            self._guidance = TimestepEmbedding(weights, f"{name}.guidance_embedder", features=d)

    def __call__(self, timestep_B: Tensor, pooled_BP: Tensor, guidance_B: Tensor | None) -> Tensor:
        """Time step in 0..1, guidance as a scale such as 3.5 -> (B, D)."""
        time_BD = self._time_text(timestep_B * _TRAIN_TIMESTEPS, pooled_BP)
        if self._guidance is None:
            return time_BD
        return time_BD + self._guidance(guidance_B * _TRAIN_TIMESTEPS, pooled_BP.dtype)
