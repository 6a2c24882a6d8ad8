"""What goes into Flux's blocks besides the two streams: how their tokens are cut, their rotary tables, and the time
step, guidance and pooled text as one vector.

    position ids   image (N, 3): [0, row, column] as a rule      text (L, 3): zeros as a rule
    a head         [ axis 0: 16 | axis 1: 56 | axis 2: 56 ]      features turned by each axis (``axes_dims_rope``)

The ids are inputs of the model, so any numbers will do. A member of sp makes the tables of its own tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TimeTextEmbedding, TwoLinears, timestep_embedding
from refsim.layers.rope import Rotary, rotary_angles
from refsim.models.flux1.config import FluxConfig
from refsim.parallel.sequence import TokenShards
from refsim.runtime.device import Device

_TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True)
class Sequences:
    """How the tokens of both streams are cut over sp, and what turns this device's queries and keys.

    Attributes:
        tokens: of the image.
        prompt_tokens: of the prompt, None if every device holds all of it.
        rotary, prompt_rotary: tables of this device's rows; padding stands at position 0, and is no key.
    """

    tokens: TokenShards
    prompt_tokens: TokenShards | None
    rotary: Rotary
    prompt_rotary: Rotary

    @property
    def cut(self) -> dict[str, TokenShards | None]:
        """Return what attention takes of them besides the tables."""
        return {"tokens": self.tokens, "prompt_tokens": self.prompt_tokens}

    @classmethod
    def of(cls, device: Device, config: FluxConfig, img_ids_N3: Tensor, txt_ids_L3: Tensor) -> Sequences:
        """Cut as many tokens as there are ids; the tables are those of this device's part."""
        sp = device.groups["sp"]
        tokens = TokenShards.of(img_ids_N3.shape[0], sp.size)
        prompt_tokens = TokenShards.of_prompt(txt_ids_L3.shape[0], sp.size) if device.options.splits_prompt else None
        return cls(
            tokens,
            prompt_tokens,
            _tables(config, img_ids_N3, tokens, sp.index),
            _tables(config, txt_ids_L3, prompt_tokens, sp.index),
        )


def _tables(config: FluxConfig, ids_N3: Tensor, shards: TokenShards | None, index: int) -> Rotary:
    mine = ids_N3 if shards is None else shards.cut(ids_N3, index, dim=0)
    angles = rotary_angles(mine.unbind(-1), config.axes_dims_rope)
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
