"""Configuration of the FLUX.2 transformer, as diffusers' ``Flux2Transformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Positive, Size
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, SingleStreamShape, StreamShape, chunks
from refsim.models.flux1.config import FluxBlocks


@dataclass(frozen=True)
class Flux2Config(FluxBlocks):
    """Keys and defaults of diffusers' config.json, those of dev: 8 double and 48 single blocks of 48 heads of 128.

    Klein has fewer and no ``guidance_embeds``. ``rope_theta`` and ``eps`` are numbers of the positions and the norms.
    """

    patch_size: Size = 1
    in_channels: Size = 128
    out_channels: Size = 128
    num_layers: Count = 8
    num_single_layers: Count = 48
    attention_head_dim: Size = 128
    num_attention_heads: Size = 48
    joint_attention_dim: Size = 15360
    timestep_guidance_channels: Size = 256
    mlp_ratio: Positive = 3.0
    axes_dims_rope: tuple[Size, ...] = (32, 32, 32, 32)
    rope_theta: Positive = 2000.0
    eps: Positive = 1e-6
    guidance_embeds: Flag = True

    @property
    def mlp_features(self) -> int:
        """Hidden features of a feed-forward, and of a single block's MLP."""
        return int(self.features * self.mlp_ratio)

    def _block(self) -> dict[str, Any]:
        """Return what both kinds of block have."""
        return {
            "num_heads": self.num_attention_heads,
            "head_dim": self.attention_head_dim,
            "time_features": self.features,
            "shared_modulation": True,
            "eps": self.eps,
            "qk_eps": self.eps,
            "qkv_bias": False,
            "out_bias": False,
            "ff_bias": False,
            "activation": "swiglu_gate_first",
        }

    def double_block(self) -> DoubleStreamShape:
        """Return what a double block is made of; modulations have their names in the model."""
        d = self.features
        hidden = self.mlp_features
        return DoubleStreamShape(
            modulations=(
                ModulationShape("double_stream_modulation_img", d),
                ModulationShape("double_stream_modulation_txt", d, chunks("prompt.attn", "prompt.ff")),
            ),
            ff_linears=("linear_in", "linear_out"),
            spatial=StreamShape(d, hidden),
            prompt=StreamShape(d, hidden, PROMPT_NAMES, ("norm1_context", "norm2_context"), "ff_context"),
            **self._block(),
        )

    def single_block(self) -> SingleStreamShape:
        """Return what a single block is made of."""
        d = self.features
        return SingleStreamShape(
            modulations=(ModulationShape("single_stream_modulation", d, chunks("attn")),),
            features=d,
            hidden=self.mlp_features,
            norm_name="norm",
            packed="attn.to_qkv_mlp_proj",
            out="attn.to_out",
            joined=True,
            **self._block(),
        )

    def check(self) -> None:
        super().check()
        if not self.mlp_features:
            raise UserError(f"config.json has mlp_ratio = {self.mlp_ratio}, which leaves the MLP no features.")
        if self.timestep_guidance_channels % 2:
            raise UserError("config.json has an odd timestep_guidance_channels; they are cosines and as many sines.")
