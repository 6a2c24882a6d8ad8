"""The CogVideoX transformer: video latent, prompt and time step in, prediction out.

    latent --patches--> tokens of this device --+--> blocks --> norms, proj --all_gather over sp--> unpatchify
    prompt --linear--> replicated or cut -------'

Positions are a table added to the tokens (2b) or a rotation of queries and keys (5b); see ``embeddings.py``.

An image to be made a video of is among the latent's channels (1.5 takes ``ofs`` beside the time step).

Counterpart: diffusers' ``CogVideoXTransformer3DModel``, its ``image_rotary_emb`` as diffusers' pipeline makes it.
Source of both forms of the prompt: xDiT's USP tutorial for CogVideoX.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.stack import BoundBlock, bind, build_block
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TimestepEmbedding
from refsim.layers.linear import ColParallelLinear, Linear
from refsim.layers.norm import LayerNorm
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.cogvideox.embeddings import CogVideoXPatches, sequences_of
from refsim.models.cogvideox.spec import CLASS_NAME
from refsim.models.inputs import BATCH, Dims
from refsim.parallel.sequence import gather_tokens
from refsim.parallel.tensor import gather_features
from refsim.runtime.device import Device


class CogVideoXTransformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: CogVideoXConfig) -> None:
        self._device = device
        self._config = config
        d = config.features
        self._patches = CogVideoXPatches(weights, device, config)
        self._text = ColParallelLinear(
            weights, device, "patch_embed.text_proj", in_features=config.text_embed_dim, out_features=d
        )
        wide = config.time_embed_dim
        self._time = TimestepEmbedding(weights, "time_embedding", features=wide, width=d)
        self._ofs = None
        if config.ofs_embed_dim is not None:
            self._ofs = TimestepEmbedding(weights, "ofs_embedding", features=wide, width=wide)
        self._blocks = [build_block(weights, device, config, i) for i in range(config.num_layers)]
        self._norm_final, self._norm_out = (
            LayerNorm(device, features=d, eps=config.norm_eps, affine=(weights, name))
            for name in ("norm_final", "norm_out.norm")
        )
        self._mod_out = Linear(weights, "norm_out.linear", in_features=config.time_embed_dim, out_features=2 * d)
        out_features = config.patch_size**2 * (config.patch_size_t or 1) * config.out_channels
        self._proj_out = Linear(weights, "proj_out", in_features=d, out_features=out_features)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: CogVideoXConfig) -> dict[str, Dims]:
        """Return the names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        shapes: dict[str, Dims] = {
            "hidden_states": (BATCH, "frames", config.in_channels, "height", "width"),
            "encoder_hidden_states": (BATCH, "prompt tokens", config.text_embed_dim),
            "timestep": (BATCH,),
        }
        return shapes if config.ofs_embed_dim is None else {**shapes, "ofs": (1,)}

    def check_inputs(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise ``UserError`` if the latent does not fit the patches."""
        self._patches.grid(_size(shapes["hidden_states"]))

    def __call__(
        self, *, hidden_states: Tensor, encoder_hidden_states: Tensor, timestep: Tensor, ofs: Tensor | None = None
    ) -> Tensor:
        """Map (B, F, C, H, W), (B, L, text), (B,), (1,) on all devices to (B, F, C, H, W), replicated over sp, tp."""
        grid = self._patches.grid(_size(hidden_states.shape))
        sequences = sequences_of(self._device, self._config, grid, encoder_hidden_states.shape[1])
        with self._device.module("time_embedding"):
            time = self._time(timestep, hidden_states.dtype)
            if self._ofs is not None and ofs is not None:
                time = time + self._ofs(ofs, hidden_states.dtype)
            silu_time = F.silu(time)
        video = self._patches(hidden_states, sequences.tokens)
        text = self._text(sequences.place_prompt(self._device, encoder_hidden_states))
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            before = video, text
            video, text = block(video, text, silu_time, sequences=sequences)
            self._device.observe_added(f"transformer_blocks.{index}", before, (video, text))
        self._device.stage()
        with self._device.module("norm_out"):
            gathered = gather_features(self._device, video)
            shift, scale = self._mod_out(silu_time).unsqueeze(1).chunk(2, -1)
            x = gathered.local[..., : self._config.features]
            x = self._norm_out(self._norm_final(x)) * (1 + scale) + shift
        with self._device.module("proj_out"):
            out_BNP = gather_tokens(self._device, gathered.with_local(self._proj_out(x)), sequences.tokens, dim=1).local
            return self._patches.unpatchify(out_BNP, grid)


def _size(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (frames, height, width) of a latent (B, F, C, H, W)."""
    _, frames, _, height, width = shape
    return frames, height, width


def bind_block(
    weights: Weights, device: Device, config: CogVideoXConfig, index: int, inputs: dict[str, Tensor]
) -> BoundBlock:
    """Return block ``index`` for the video whose patches ``grid`` (deep, high, wide) counts."""
    frames, rows, columns = inputs["grid"].tolist()
    sequences = sequences_of(device, config, (frames, rows, columns), inputs["prompt"].shape[1])
    return bind(weights, device, config, index, sequences)
