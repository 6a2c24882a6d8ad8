"""Qwen-Image's transformer: latents come packed, one picture or several behind one another, prompts with a mask."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parity.cases import BlockShape, ModelShape
from parity.cases.inputs import generator
from parity.cases.oracles.base import Oracle, patches
from parity.cases.oracles.library import check_same, packed

_TIMES = (0.75, 0.3125, 1.0, 0.125)
"""Numbers that bf16 holds, which diffusers rounds a time step to: another time step is another answer."""
_CONDITIONS = ((1, 3, 5), (2, 1, 12))
"""Frames, tokens down and across of what Edit starts from: odd sides, two frames, one wider than the target."""
EDIT = "qwen-image-edit-2511"


class QwenImageOracle(Oracle):
    """``QwenImageTransformer2DModel``; one that modulates by two time steps is handed further pictures."""

    class_names = ("QwenImageTransformer2DModel",)
    text_to = "QwenImagePipeline"
    longest_prompt = 1024
    other_than_class: ClassVar = {EDIT: ("zero_cond_t",)}
    other_than_pipeline: ClassVar = {EDIT: ("steps",)}
    exact = ("img_shapes",)
    prompt_mask = "encoder_hidden_states_mask"
    heads_dim = 2

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        tensors = super().inputs(config, shape, family, seed)
        sizes = [(1, *(size // 2 for size in shape.latent)), *(_CONDITIONS if config["zero_cond_t"] else ())]
        further = (shape.batch, sum(map(prod, sizes[1:])), config["in_channels"])
        latents = patches(tensors["hidden_states"]), torch.randn(further, generator=generator(seed, "conditions"))
        tensors["hidden_states"] = torch.cat(latents, 1)
        tensors["encoder_hidden_states"][:, ::3] *= 1e-3  # as small as the root of the epsilon of their norm
        tensors["timestep"] = torch.tensor(_TIMES)[torch.arange(shape.batch) % len(_TIMES)]
        return tensors | {"img_shapes": torch.tensor(sizes), "encoder_hidden_states_mask": _mask(shape)}

    def answer(self, model: Any, tensors: dict[str, Any]) -> Tensor:
        sizes = [tuple(size) for size in tensors["img_shapes"].tolist()]
        return super().answer(model, tensors | {"img_shapes": [sizes] * len(tensors["hidden_states"])})

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        latents = tensors["hidden_states"].chunk(len(tensors["img_shapes"]), 1)
        pipeline, latent = packed(type(model).__name__, latents[0], size)
        check_same(latents[0], pipeline._pack_latents(latent, *latent.shape))
        tensors["encoder_hidden_states_mask"] = tensors["encoder_hidden_states_mask"].bool()
        return {"img_shapes": [[(1, size[0] // 2, size[1] // 2)] * len(latents)] * len(latent)}

    def tokens(self, sample: Tensor) -> Tensor:
        return sample

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        rows = next(rows for rows in (5, 4, 3, 2, 1) if shape.n % rows == 0)
        everything = torch.ones(shape.batch, shape.text, dtype=torch.bool)
        return {"img_shapes": torch.tensor([(1, rows, shape.n // rows)]), "encoder_hidden_states_mask": everything}

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        for block in model.transformer_blocks:
            for linear in (block.img_mod, block.txt_mod):
                linear[0] = nn.Identity()  # the time step comes with silu applied
        sizes = [tuple(size) for size in inputs["img_shapes"].tolist()]
        mask = inputs["encoder_hidden_states_mask"]
        rotary = model.pos_embed([sizes], max_txt_seq_len=mask.shape[1])
        arguments = super().block_arguments(model, inputs)
        return arguments | {"image_rotary_emb": rotary, "encoder_hidden_states_mask": mask}

    def restore(self, model: Any, config: dict[str, Any], dtype: torch.dtype) -> None:
        kind = type(model.pos_embed)
        model.pos_embed = kind(theta=10000, axes_dim=list(config["axes_dims_rope"]), scale_rope=True)


def _mask(shape: ModelShape) -> Tensor:
    """Make a mask of prompt tokens (B, L): no sample has as many as another, each has holes, the last rows are none."""
    token = torch.arange(shape.text)
    last = [max(1, shape.text - 1 - 5 * sample) for sample in range(shape.batch)]
    return torch.stack([(token < stop) & (token % (5 + sample) != 2) for sample, stop in enumerate(last)])
