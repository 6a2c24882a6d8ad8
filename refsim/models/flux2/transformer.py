"""The FLUX.2 transformer: packed latents, prompt, positions and time step in, velocity out.

    latents --linear--> tokens of this device --+--> double blocks --> single blocks --> norm, proj --all_gather-->
    prompt  --linear--> replicated or cut ------'        ^                  ^
    time step (+ guidance) --> (B, D) --silu, linear-----+------------------'       once, for all blocks of a kind

Counterpart: diffusers' ``Flux2Transformer2DModel``, without the cache of reference images' keys (Klein).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TwoLinears, timestep_embedding
from refsim.layers.linear import ColParallelLinear
from refsim.layers.modulation import ModulatedOutput
from refsim.models.flux1.block import build_block
from refsim.models.flux1.embeddings import sequences_of
from refsim.models.flux2.block import Modulations
from refsim.models.flux2.config import Flux2Config
from refsim.models.flux2.spec import CLASS_NAME
from refsim.models.inputs import BATCH, Dims
from refsim.parallel.sequence import cut_tokens
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_TRAIN_TIMESTEPS = 1000


class Flux2Transformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed.

    The prompt's tokens are held whole by every device of sp, or cut over them.
    """

    def __init__(self, weights: Weights, device: Device, config: Flux2Config) -> None:
        self._device = device
        self._config = config
        d = config.features
        embedders = ("timestep_embedder", *["guidance_embedder"] * config.guidance_embeds)
        wide = {"in_features": config.timestep_guidance_channels, "features": d, "bias": False}
        self._embedders = [TwoLinears(weights, f"time_guidance_embed.{name}", **wide) for name in embedders]
        self._modulations = Modulations(weights, device, config)
        self._x_embedder, self._context_embedder = (
            ColParallelLinear(weights, device, name, in_features=size, out_features=d, bias=False)
            for name, size in (("x_embedder", config.in_channels), ("context_embedder", config.joint_attention_dim))
        )
        count = config.num_layers + config.num_single_layers
        self._blocks = [build_block(weights, device, config, i) for i in range(count)]
        channels = config.patch_size**2 * config.out_channels
        self._out = ModulatedOutput(weights, device, features=d, out_features=channels, eps=config.eps, bias=False)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: Flux2Config) -> dict[str, Dims]:
        """Names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        axes = len(config.axes_dims_rope)
        shapes: dict[str, Dims] = {
            "hidden_states": (BATCH, "image tokens", config.in_channels),
            "encoder_hidden_states": (BATCH, "prompt tokens", config.joint_attention_dim),
            "timestep": (BATCH,),
            "img_ids": ("image tokens", axes),
            "txt_ids": ("prompt tokens", axes),
        }
        return shapes | ({"guidance": (BATCH,)} if config.guidance_embeds else {})

    def __call__(
        self,
        *,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        img_ids: Tensor,
        txt_ids: Tensor,
        guidance: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C), (B, L, joint), (B,) in 0..1, (N, 4), (L, 4) and, with guidance, (B,) on every device ->
        velocity (B, N, C), replicated over sp and tp."""
        sequences = sequences_of(self._device, self._config, img_ids, txt_ids)
        with self._device.module("time_guidance_embed"):
            silu_time = F.silu(self._conditioning(timestep, guidance, hidden_states))
        spatial = cut_tokens(self._device, MeshTensor(hidden_states), sequences.tokens, dim=1)
        spatial = self._x_embedder(spatial)
        prompt = self._context_embedder(sequences.place_prompt(self._device, encoder_hidden_states))
        chunks = self._modulations(silu_time)
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            before = spatial, prompt
            spatial, prompt = block(spatial, prompt, chunks, sequences=sequences)
            self._observe(index, before, (spatial, prompt))
        return self._out(spatial, silu_time, sequences.tokens).contiguous()

    def _conditioning(self, timestep_B: Tensor, guidance_B: Tensor | None, like: Tensor) -> Tensor:
        """Time step in 0..1, guidance as a scale such as 4.0 -> (B, D), their embeddings summed."""
        numbers = (timestep_B, guidance_B)[: len(self._embedders)]
        width = self._config.timestep_guidance_channels
        rows = [timestep_embedding(x * _TRAIN_TIMESTEPS, width).to(like.dtype) for x in numbers]
        return sum(embed(row) for embed, row in zip(self._embedders, rows, strict=True))

    def _observe(self, index: int, before: tuple[MeshTensor, ...], after: tuple[MeshTensor, ...]) -> None:
        """Observe what a block added; diffusers' single blocks have one stream, here it is called twice."""
        name = self._config.block_name(index)
        if index < self._config.num_layers:
            self._device.observe_added(name, before, after)
        else:
            for old, new in zip(before, after, strict=True):
                self._device.observe_added(name, (old,), (new,))
