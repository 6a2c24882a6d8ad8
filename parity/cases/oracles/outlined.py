"""Transformers that predictions alone know: each takes what its pipeline makes of a latent, on meta tensors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parity.cases.oracles.base import Oracle
from parity.cases.oracles.library import pipeline_of
from parity.cases.oracles.meta import empty


class LTXOracle(Oracle):
    """A latent packed by the pipeline, and its sizes beside it."""

    class_names = ("LTXVideoTransformer3DModel",)
    text_to = "LTXPipeline"

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        tensors["hidden_states"] = pipeline_of(type(model).__name__)._pack_latents(tensors["hidden_states"])
        mask = empty(tuple(tensors["encoder_hidden_states"].shape[:2]))
        return {"encoder_attention_mask": mask} | dict(zip(("num_frames", "height", "width"), size, strict=True))


class MochiOracle(Oracle):
    """A latent as it is, in place of its patches."""

    class_names = ("MochiTransformer3DModel",)
    text_to = "MochiPipeline"
    other_than_pipeline: ClassVar = {"mochi-1": ("steps", "size")}

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        prompt = tensors["encoder_hidden_states"]
        _on_cpu(model)
        tensors["hidden_states"] = empty((len(prompt), model.config.in_channels, *size))
        return {"encoder_attention_mask": empty(tuple(prompt.shape[:2]), torch.bool)}


def _on_cpu(model: Any) -> None:
    """Let Mochi turn its places on the processor: torch has no autocast on meta."""
    model.pos_frequencies = nn.Parameter(torch.empty(model.pos_frequencies.shape))
    model.rope.register_forward_pre_hook(lambda _, args, more: (args, more | {"device": "cpu"}), with_kwargs=True)
    model.rope.register_forward_hook(lambda _, inputs, tables: tuple(x.to("meta") for x in tables))
