"""What a class of model is asked for when it judges; a subclass changes what its class does otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import BlockShape, ModelShape
from parity.cases.inputs import encoder_inputs, model_inputs

_PROMPT_FEATURES = ("joint_attention_dim", "text_dim", "text_embed_dim")


class Oracle:
    """A model of diffusers or transformers that fits the usual: latents in, latents out, 2 x 2 patches.

    Attributes:
        class_names: of the classes that a subclass is for.
        exact: inputs of more than one dim that are places and no activations, and so are never rounded to bf16.
        shared_by_blocks: names of modules beside the blocks whose weights a block by itself needs, too.
        prompt_mask: what the mask of a prompt's tokens is called, in any pattern; empty where there is none.
        heads_dim: where the heads are in what the norms of queries and keys take, 1 or 2.
        text_to: of a transformer, diffusers' pipeline from text alone, in its own words, that is made for it.
        clip_in_rows: the prompt of that pipeline begins with the rows of CLIP.
        longest_prompt: the longest ``max_sequence_length`` that its ``check_inputs`` allows, None if it has no bound.
        other_than_class: keys of config.json, by published model, whose value is not the default of the class; every
            other one has the default.
        other_than_pipeline: what of a request, by published model, its cards or tt_dit's pipeline say otherwise than
            the pipeline: the default number of ``steps``; the ``size`` of picture, which then is not among those that
            predictions know; how many transformers (``experts``) it has.
    """

    class_names: ClassVar[tuple[str, ...]] = ()
    exact: ClassVar[tuple[str, ...]] = ()
    shared_by_blocks: ClassVar[tuple[str, ...]] = ()
    prompt_mask: ClassVar[str] = ""
    heads_dim: ClassVar[int] = 1
    text_to: ClassVar[str] = ""
    clip_in_rows: ClassVar[bool] = False
    longest_prompt: ClassVar[int | None] = None
    other_than_class: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    other_than_pipeline: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def model_class(self, class_name: str) -> Any:
        """Return the class in diffusers, None where diffusers has none; of a model of your own, your class.

        Beyond ``forward`` it needs what ``diffusers.ModelMixin`` and ``ConfigMixin`` give it: ``save_pretrained``,
        ``load_config`` and ``from_config``.
        """
        import diffusers

        return getattr(diffusers, class_name, None)

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        """Draw what a transformer's checkpoint is run on in fp32, by the names that ``refsim run`` takes."""
        features = next(config[name] for name in _PROMPT_FEATURES if name in config)
        return model_inputs(shape, features, config.get("pooled_projection_dim"), family, seed)

    def text_inputs(self, config: dict[str, Any], shape: ModelShape, seed: int) -> dict[str, Tensor]:
        """Draw what an encoder of prompts is run on: ``input_ids`` and ``attention_mask`` (B, L) in int64."""
        return encoder_inputs(shape, config["vocab_size"], seed)

    def answer(self, model: Any, tensors: dict[str, Any]) -> Tensor:
        """Return what ``forward`` answers with: its first result."""
        return model(**tensors, return_dict=False)[0]

    def further_inputs(self, model: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Make what a pipeline hands diffusers' ``forward`` beyond ``tensors`` and refsim computes itself."""
        return {}

    def pipeline_inputs(self, model: Any, tensors: dict[str, Tensor], size: tuple[int, ...]) -> dict[str, Any]:
        """Make what a pipeline hands ``forward`` on meta beyond ``tensors``, which may be changed in place.

        Args:
            tensors: what refsim's model takes of a latent of ``size``.

        Raises:
            ValueError: the pipeline makes something else of such a latent.
        """
        further = self.further_inputs(model, tensors)
        return {key: tuple(x.to("meta") for x in value) for key, value in further.items()}

    def block_prefix(self, config: dict[str, Any], index: int) -> str:
        """Return what the names of a block's weights begin with."""
        return f"transformer_blocks.{index}."

    def block_features(self, config: dict[str, Any], features: int) -> tuple[int, int]:
        """Return how wide a block's prompt and time step are, of an image's stream of ``features``."""
        return features, config.get("time_embed_dim") or features

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        """Draw what a block is run on besides its two streams and the time step."""
        return {}

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        """Make the arguments of diffusers' block of both streams, the time step and :meth:`further_block_inputs`."""
        return {"hidden_states": inputs["spatial"], "encoder_hidden_states": inputs["prompt"], "temb": inputs["time"]}

    def block_streams(self, out: Any) -> tuple[Tensor, Tensor | None]:
        """Return (image, prompt) of what a block gives; None for a prompt that it drops or only reads."""
        return (out[1], out[0]) if isinstance(out, tuple) else (out, None)

    def tokens(self, sample: Tensor) -> Tensor:
        """Return a sample as rows of image tokens, (B, N, F), in the order of the model."""
        return patches(sample)

    def restore(self, model: Any, config: dict[str, Any], dtype: torch.dtype) -> None:
        """Make, in place, the tables that are no part of a checkpoint in a model that was built on meta."""


STACK = ("num_layers", "num_attention_heads")
"""Keys of a config.json that say how large a model is."""


def patches(sample: Tensor, patch: int = 2) -> Tensor:
    """Cut (B, C, [T,] H, W) into (B, [T *] H/p * W/p, p * p * C): a row per image token, row by row of the picture."""
    x = sample.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch))
    x = x.movedim(1, -1).movedim(-4, -3)
    return x.reshape(x.shape[0], -1, patch * patch * sample.shape[1])
