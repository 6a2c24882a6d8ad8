"""FLUX.2's transformer: latents come packed, both streams have positions of four axes, time steps run from 0 to 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.cases import BlockShape, ModelShape
from parity.cases.inputs import model_inputs
from parity.cases.oracles.base import Oracle, patches
from parity.cases.oracles.flux1 import SCALES, TIMES
from parity.cases.oracles.library import check_same, packed


class Flux2Oracle(Oracle):
    """``Flux2Transformer2DModel``, with and without guidance."""

    class_names = ("Flux2Transformer2DModel",)
    text_to = "Flux2Pipeline"
    exact = ("img_ids", "txt_ids")
    shared_by_blocks = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")
    heads_dim = 2

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        channels = {"channels": config["in_channels"] // 4}
        tensors = model_inputs(shape, config["joint_attention_dim"], None, family, seed, **channels)
        tensors["hidden_states"] = patches(tensors["hidden_states"])
        sample = torch.arange(shape.batch) % len(TIMES)
        tensors["timestep"] = torch.tensor(TIMES)[sample]
        if config.get("guidance_embeds", True):
            tensors["guidance"] = torch.tensor(SCALES)[sample]
        rows, columns = (size // 2 for size in shape.latent)
        return tensors | _ids(rows, columns, shape.text)

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        pipeline, latent = packed(type(model).__name__, tensors["hidden_states"], size)
        patched = pipeline._patchify_latents(latent)
        check_same(tensors["hidden_states"], pipeline._pack_latents(patched))
        for name, ids in (
            ("img_ids", pipeline._prepare_latent_ids(patched)),
            ("txt_ids", pipeline._prepare_text_ids(tensors["encoder_hidden_states"])),
        ):
            check_same(tensors[name], ids[0])
        return {}

    def tokens(self, sample: Tensor) -> Tensor:
        return sample

    def block_prefix(self, config: dict[str, Any], index: int) -> str:
        single = index - config["num_layers"]
        return f"single_transformer_blocks.{single}." if single >= 0 else super().block_prefix(config, index)

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        return _ids(1, shape.n, shape.text)

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        tables = zip(*(model.pos_embed(inputs[name]) for name in ("txt_ids", "img_ids")), strict=True)
        arguments = super().block_arguments(model, inputs) | {"image_rotary_emb": tuple(map(torch.cat, tables))}
        time = arguments.pop("temb")  # with silu applied
        image, prompt, single = (model.get_submodule(name).linear(time) for name in self.shared_by_blocks)
        if all(weight.is_meta for weight in model.transformer_blocks.parameters()):  # the block is a single one
            return arguments | {"temb_mod": single, "split_hidden_states": True}
        return arguments | {"temb_mod_img": image, "temb_mod_txt": prompt}


def _ids(rows: int, columns: int, text: int) -> dict[str, Tensor]:
    """Make positions (N, 4) of the image and (L, 4) of the prompt, no axis of which is the same for all."""
    row, column = (x.flatten() for x in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    image = torch.stack([(row + column) % 3 * 10, row + 301, column, column % 2], -1)  # 301 to bf16 would be 302
    token = torch.arange(text)
    return {"img_ids": image.float(), "txt_ids": torch.stack([token % 3, token % 7, token % 2, token], -1).float()}
