"""One Wan2.2 expert: video latent, prompt and time step in, velocity out.

    latent --patches--> tokens of this device -----------+--> blocks --> norm, proj --all_gather over sp--> unpatchify
    prompt --two linears--> replicated on every device --+
    image (2.1) ------------------- the same ------------'

Text to video, and image to video: Wan2.2 A14B has the image among the latent's channels, Wan2.1 its features as a
further input, TI2V-5B a time step for every token, 0 for those of the image.

Counterpart: diffusers' ``WanTransformer3DModel``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.layers.linear import Linear
from refsim.layers.norm import LayerNorm
from refsim.models.inputs import BATCH, Dims
from refsim.models.spec import PROMPT
from refsim.models.wan22.block import WanBlock
from refsim.models.wan22.config import WanConfig
from refsim.models.wan22.embeddings import ConditionEmbedder, ImageEmbedder, WanPatches, rotary_tables
from refsim.models.wan22.spec import CLASS_NAME
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.parallel.tensor import gather_features
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_TOKENS = "[video tokens]"
_PROMPT_TOKENS = 512
"""Of a model with an image beside the prompt: diffusers takes the last 512 rows for the prompt."""


class WanTransformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: WanConfig) -> None:
        if device.options.prompt_layout == "split":
            raise UserError(
                f"{CLASS_NAME} attends to the whole prompt on every device; leave out --prompt-layout split."
            )
        self._device = device
        self._config = config
        d = config.features
        self._patches = WanPatches(weights, device, config)
        self._condition = ConditionEmbedder(weights, device, config)
        self._image = None
        if config.image_dim is not None:
            self._image = ImageEmbedder(weights, device, config, config.image_dim)
        self._blocks = [WanBlock(weights, device, config, i) for i in range(config.num_layers)]
        self._norm_out = LayerNorm(device, features=d, eps=config.eps)
        self._table_12D = weights.to(torch.float32).take("scale_shift_table", (1, 2, d))
        out_features = math.prod(config.patch_size) * config.out_channels
        self._proj_out = Linear(weights, "proj_out", in_features=d, out_features=out_features)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: WanConfig) -> dict[str, Dims]:
        """Return the names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        shapes: dict[str, Dims] = {
            "hidden_states": (BATCH, config.in_channels, "frames", "height", "width"),
            "encoder_hidden_states": (BATCH, PROMPT, config.text_dim),
            "timestep": (BATCH, _TOKENS),
        }
        if config.image_dim is not None:
            shapes["encoder_hidden_states"] = (BATCH, _PROMPT_TOKENS, config.text_dim)
            shapes["encoder_hidden_states_image"] = (BATCH, "image tokens", config.image_dim)
        return shapes

    def check_inputs(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise ``UserError`` if the latent does not fit the patches or the rotary table, or time steps the tokens."""
        tokens = math.prod(self._patches.grid(shapes["hidden_states"][2:]))
        if len(shapes["timestep"]) == 2 and shapes["timestep"][1] != tokens:
            raise UserError(
                f"input timestep has {shapes['timestep'][1]} time steps a sample but the latent has {tokens} tokens; "
                "give one for every token, or one a sample."
            )

    def __call__(
        self,
        *,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
    ) -> Tensor:
        """Map (B, C, T, H, W), (B, L, text), (B,) or (B, tokens), and (B, M, image) on every device to velocity
        (B, C, T, H, W), replicated over sp and tp.
        """
        sp = self._device.groups["sp"]
        dtype = hidden_states.dtype
        grid = self._patches.grid(hidden_states.shape[2:])
        tokens = TokenShards.of(math.prod(grid), sp.size)
        rotary = rotary_tables(self._config, grid, tokens, sp.index)
        steps = MeshTensor(timestep)
        with self._device.module("condition_embedder"):
            temb, time = self._condition.time(
                steps if timestep.ndim == 1 else cut_tokens(self._device, steps, tokens, dim=1), dtype
            )
            prompt = self._condition.text(encoder_hidden_states)
            image = None
        if self._image is not None and encoder_hidden_states_image is not None:
            image = self._image(encoder_hidden_states_image)
        spatial = self._patches(hidden_states, tokens)
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            before = spatial
            spatial = block(spatial, prompt, time, rotary=rotary, tokens=tokens, image=image)
            self._device.observe_added(f"blocks.{index}", (before,), (spatial,))
        self._device.stage()
        with self._device.module("proj_out"):
            out_BNP = self._project_out(spatial, temb)
            return self._patches.unpatchify(gather_tokens(self._device, out_BNP, tokens, dim=1).local, grid)

    def _project_out(self, spatial: MeshTensor, temb: MeshTensor) -> MeshTensor:
        """Map (B, local N, local D) to (B, local N, pt * ph * pw * C), modulated by the time step before its silu,
        (B, D) or (B, local N, D).
        """
        both = (self._table_12D + temb.local.unsqueeze(-2)).chunk(2, -2)
        shift, scale = (x.flatten(1, -2) for x in both)
        gathered = gather_features(self._device, spatial)
        normed = self._norm_out(gathered.local.float()) * (1 + scale) + shift
        return gathered.with_local(self._proj_out(normed.to(gathered.local.dtype)))
