"""CLIP's text encoder answers with the row of the first end token and pads with that token."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from parity.cases import ModelShape
from parity.cases.oracles.base import Oracle

_SIZES = ("hidden_size", "intermediate_size", "projection_dim", "num_attention_heads")


class CLIPOracle(Oracle):
    """``CLIPTextModel`` with and without projection."""

    class_names = ("CLIPTextModel", "CLIPTextModelWithProjection")
    other_than_class: ClassVar = {"clip-l": _SIZES, "clip-g": (*_SIZES, "num_hidden_layers", "hidden_act")}

    def text_inputs(self, config: dict[str, Any], shape: ModelShape, seed: int) -> dict[str, Tensor]:
        tensors = super().text_inputs(config, shape, seed)
        ids = tensors["input_ids"]
        mask = tensors["attention_mask"]
        end = config["eos_token_id"]
        ids[ids == end] = end + 1
        mask[:, -1] = 0
        ids[mask == 0] = end
        return {"input_ids": ids}  # rows see those before them, so padding needs no mask

    def answer(self, model: Any, tensors: dict[str, Any]) -> Tensor:
        output = model(**tensors)
        return output.text_embeds if hasattr(model, "text_projection") else output.pooler_output
