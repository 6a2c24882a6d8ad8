"""Flux.1's transformer: latents come packed, positions are inputs, time steps run from 0 to 1."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import BlockShape, ModelShape
from parity.cases.oracles.base import Oracle, patches
from parity.cases.oracles.library import check_same, packed

TIMES = (0.7, 0.3, 1.0, 0.1)
SCALES = (4.0, 2.0, 1.0, 8.0)
"""Of guidance. A thousand times these, and the time steps, are numbers that bf16 holds: diffusers multiplies in the
storage dtype, and another time step is another answer."""


class FluxOracle(Oracle):
    """``FluxTransformer2DModel``, dev and schnell."""

    class_names = ("FluxTransformer2DModel",)
    text_to = "FluxPipeline"
    longest_prompt = 512
    other_than_class: ClassVar = {"flux1-dev": ("guidance_embeds",)}
    other_than_pipeline: ClassVar = {"flux1-schnell": ("steps",)}
    exact = ("img_ids", "txt_ids")
    heads_dim = 2

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        tensors = super().inputs(config, shape, family, seed)
        tensors["hidden_states"] = patches(tensors["hidden_states"])
        sample = torch.arange(shape.batch) % len(TIMES)
        tensors["timestep"] = torch.tensor(TIMES)[sample]
        if config["guidance_embeds"]:
            tensors["guidance"] = torch.tensor(SCALES)[sample]
        rows, columns = (size // 2 for size in shape.latent)
        return tensors | _ids(rows, columns, shape.text)

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        pipeline, latent = packed(type(model).__name__, tensors["hidden_states"], size)
        check_same(tensors["hidden_states"], pipeline._pack_latents(latent, *latent.shape))
        return {}

    def tokens(self, sample: Tensor) -> Tensor:
        return sample

    def block_prefix(self, config: dict[str, Any], index: int) -> str:
        single = index - config["num_layers"]
        return f"single_transformer_blocks.{single}." if single >= 0 else super().block_prefix(config, index)

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        return _ids(1, shape.n, shape.text)

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        rotary = model.pos_embed(torch.cat([inputs["txt_ids"], inputs["img_ids"]]))
        return super().block_arguments(model, inputs) | {"image_rotary_emb": rotary}


def _ids(rows: int, columns: int, text: int) -> dict[str, Tensor]:
    """Make positions (N, 3) of the image and (L, 3) of the prompt, which has some too here, so that they count."""
    row, column = (x.flatten() for x in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    image = torch.stack([torch.full_like(row, 2), row + 301, column], -1)  # 301 to bf16 would be 302
    token = torch.arange(text)
    return {"img_ids": image.float(), "txt_ids": torch.stack([token % 3, token % 7, token], -1).float()}
