"""CogVideoX's transformer: frames stand before channels, and positions are made by the pipeline or at construction."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import BlockShape, ModelShape
from parity.cases.inputs import model_inputs
from parity.cases.oracles.base import STACK, Oracle


class CogVideoXOracle(Oracle):
    """``CogVideoXTransformer3DModel`` with its table of positions (2b) or rotary ones (5b)."""

    class_names = ("CogVideoXTransformer3DModel",)
    text_to = "CogVideoXPipeline"
    other_than_class: ClassVar = {"cogvideox-5b": (*STACK, "use_rotary_positional_embeddings")}

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        channels = config.get("in_channels", 16)
        tensors = model_inputs(shape, config["text_embed_dim"], None, family, seed, channels=channels)
        if config.get("ofs_embed_dim") is not None:
            tensors["ofs"] = torch.tensor([2.0])  # as the pipeline hands it over
        tensors["hidden_states"] = tensors["hidden_states"].transpose(1, 2).contiguous()  # (B, T, C, H, W)
        return tensors

    def further_inputs(self, model: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
        if not model.config.use_rotary_positional_embeddings:
            return {}
        return {"image_rotary_emb": _rotary_tables(model, tensors["hidden_states"])}

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        return {"grid": torch.tensor(box(shape.n))}

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        frames, rows, columns = inputs["grid"].tolist()
        patch = model.config.patch_size
        latent = torch.empty(1, frames * (model.config.patch_size_t or 1), 1, rows * patch, columns * patch)
        return super().block_arguments(model, inputs) | {"image_rotary_emb": _rotary_tables(model, latent)}

    def block_streams(self, out: Any) -> tuple[Tensor, Tensor | None]:
        return out

    def tokens(self, sample: Tensor) -> Tensor:
        return super().tokens(sample.transpose(1, 2))

    def restore(self, model: Any, config: dict[str, Any], dtype: torch.dtype) -> None:
        if config["use_rotary_positional_embeddings"]:
            return
        sizes = [config[f"sample_{side}"] for side in ("height", "width", "frames")]
        model.patch_embed.pos_embedding = model.patch_embed._get_positional_embeddings(*sizes).to(dtype)


def box(tokens: int) -> tuple[int, int, int]:
    """Return three factors of a number of tokens, as near to one another as it has them, the smallest first."""

    def factor(n: int, root: float) -> int:
        return max(d for d in range(1, int(n**root + 1e-9) + 1) if n % d == 0)

    deep = factor(tokens, 1 / 3)
    high = factor(tokens // deep, 1 / 2)
    return deep, high, tokens // deep // high


def _rotary_tables(model: Any, latent_BTCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Make what diffusers' CogVideoX pipeline hands its transformer, by the pipeline's own code."""
    from diffusers import CogVideoXPipeline

    pipe = CogVideoXPipeline.__new__(CogVideoXPipeline)
    pipe.transformer = model
    pipe.vae_scale_factor_spatial = 1
    frames, height, width = (latent_BTCHW.shape[i] for i in (1, 3, 4))
    make = CogVideoXPipeline._prepare_rotary_positional_embeddings
    return make(pipe, height, width, frames, torch.device("cpu"))
