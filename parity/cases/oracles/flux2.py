"""Flux.2's transformer takes a packed latent, and the places that its pipeline gives both streams."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from parity.cases.oracles.base import Oracle
from parity.cases.oracles.library import check_same, packed
from parity.cases.oracles.meta import empty


class Flux2Oracle(Oracle):
    """``Flux2Transformer2DModel``."""

    class_names = ("Flux2Transformer2DModel",)
    text_to = "Flux2Pipeline"

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        pipeline, latent = packed(type(model).__name__, tensors["hidden_states"], size)
        patches = pipeline._patchify_latents(latent)
        check_same(tensors["hidden_states"], pipeline._pack_latents(patches))
        image = pipeline._prepare_latent_ids(patches)[0]
        prompt = pipeline._prepare_text_ids(tensors["encoder_hidden_states"])[0]
        return {"img_ids": image.to("meta"), "txt_ids": prompt.to("meta"), "guidance": empty((len(latent),))}
