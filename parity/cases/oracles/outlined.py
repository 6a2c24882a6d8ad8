"""Transformers that predictions alone know: each takes what its pipeline makes of a latent, on meta tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
