"""Mochi's transformer: a mask says which tokens of a prompt are valid; a block is given grid and rotation."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parity.cases import BlockShape, ModelShape
from parity.cases.inputs import generator, model_inputs
from parity.cases.oracles.base import Oracle
from parity.cases.oracles.cogvideox import box
from parity.cases.oracles.meta import empty
from parity.cases.pipelines import quietly


class MochiOracle(Oracle):
    """``MochiTransformer3DModel``; the first prompt ends early, the second one has holes."""

    class_names = ("MochiTransformer3DModel",)
    text_to = "MochiPipeline"
    prompt_mask = "encoder_attention_mask"
    heads_dim = 2
    exact = ("pos_frequencies", "grid")
    other_than_pipeline: ClassVar = {"mochi-1": ("steps", "size")}

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        channels = config.get("in_channels", 12)
        tensors = model_inputs(shape, config["text_embed_dim"], None, family, seed, channels=channels)
        return tensors | {"encoder_attention_mask": _valid(shape.batch, shape.text)}

    def answer(self, model: Any, tensors: dict[str, Any]) -> Tensor:
        with quietly():
            return super().answer(model, tensors)

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        _on_cpu(model)
        tensors["encoder_attention_mask"] = empty(tuple(tensors["encoder_attention_mask"].shape), torch.bool)
        return {}

    def block_features(self, config: dict[str, Any], features: int) -> tuple[int, int]:
        return config["pooled_projection_dim"], features

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        size = (3, config["num_attention_heads"], config["attention_head_dim"] // 2)
        frequencies = torch.randn(size, generator=generator(0, "rotation")) / 2
        return {
            "grid": torch.tensor(box(shape.n)),
            "pos_frequencies": frequencies,
        }

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        with quietly():
            rotary = model.rope(inputs["pos_frequencies"], *inputs["grid"].tolist(), dtype=torch.float32)
        more = {"image_rotary_emb": rotary, "encoder_attention_mask": torch.ones(inputs["prompt"].shape[:2])}
        return super().block_arguments(model, inputs) | more

    def block_streams(self, out: Any) -> tuple[Tensor, Tensor | None]:
        return out


def _valid(batch: int, text: int) -> Tensor:
    """Return which tokens are valid, bool (B, L): of samples in turn all but the last third, or but every fourth."""
    token = torch.arange(text)
    return torch.stack([token % 4 != 1 if sample % 2 else token < text - text // 3 for sample in range(batch)])


def _on_cpu(model: Any) -> None:
    """Let Mochi turn its places on the processor: torch has no autocast on meta."""
    model.pos_frequencies = nn.Parameter(torch.empty(model.pos_frequencies.shape))
    model.rope.register_forward_pre_hook(lambda _, args, more: (args, more | {"device": "cpu"}), with_kwargs=True)
    model.rope.register_forward_hook(lambda _, inputs, tables: tuple(x.to("meta") for x in tables))
