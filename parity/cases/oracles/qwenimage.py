"""Qwen-Image's transformer takes a packed latent, and rows and columns of tokens beside it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from parity.cases.oracles.base import Oracle
from parity.cases.oracles.library import check_same, packed


class QwenImageOracle(Oracle):
    """``QwenImageTransformer2DModel``."""

    class_names = ("QwenImageTransformer2DModel",)
    text_to = "QwenImagePipeline"

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        pipeline, latent = packed(type(model).__name__, tensors["hidden_states"], size)
        check_same(tensors["hidden_states"], pipeline._pack_latents(latent, *latent.shape))
        return {"img_shapes": [[(1, size[0] // 2, size[1] // 2)]] * len(latent)}
