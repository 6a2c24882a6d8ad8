"""Faults of the reference in Qwen-Image and Edit-2511: masks of prompts, centred places, images, two time steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.cases import Case, Layout, ModelShape, make_case
from parity.faults.around import at
from parity.faults.registry import fault
from refsim.parallel.sequence import TokenShards


def _model(mesh: str, parallel: str, batch: int = 1, **layout: Any) -> Case:
    shape = ModelShape((12, 18), 45, batch)  # 54 tokens of the picture, 39 of others: two shards of 64 and 29
    return make_case("transformer", "qwenimage_edit_tiny", Layout(mesh, parallel, **layout), shape)


SERIAL = _model("n150", "sp1")
SP2 = _model("n300", "sp2")
SPLIT = _model("n300", "sp2", prompt_layout="split")
SAMPLES = _model("n150", "sp1", batch=2)

masks = partial(fault, "joint", case=SERIAL)
tables = partial(fault, "tables", case=SERIAL)
times = partial(fault, "affine", case=SP2)


@masks("Masked prompt tokens are keys.", "a joint attention that takes no mask")
@at("refsim.blocks.double:joint_attention")
def qwenimage_mask_ignored(original: Any, *args: Any, prompt_mask: Tensor, **more: Any) -> Any:
    return original(*args, **more)


@masks("As many prompt tokens as are valid are keys, from the first one on.", "a mask taken for a length")
@at("refsim.blocks.double:joint_attention")
def qwenimage_mask_as_length(original: Any, *args: Any, prompt_mask: Tensor, **more: Any) -> Any:
    lengths = prompt_mask.sum(1, keepdim=True)
    return original(*args, prompt_mask=torch.arange(prompt_mask.shape[1]) < lengths, **more)


@masks("Every sample's prompt is masked as the first one's.", "branches whose prompts have one length", case=SAMPLES)
@at("refsim.blocks.double:joint_attention")
def qwenimage_mask_of_sample_0(original: Any, *args: Any, prompt_mask: Tensor, **more: Any) -> Any:
    return original(*args, prompt_mask=prompt_mask[:1].expand_as(prompt_mask), **more)


@masks("Every shard of a split prompt is masked as the first one.", "a mask that is not cut", case=SPLIT)
@at("refsim.parallel.sequence:TokenShards.cut")
def qwenimage_mask_of_shard_0(original: Any, self: TokenShards, x: Tensor, shard: int, *, dim: int) -> Tensor:
    return original(self, x, 0 if x.dtype is torch.bool else shard, dim=dim)


@masks("Masked tokens of a split prompt are keys on the last shard.", "padding and mask confused", case=SPLIT)
@at("refsim.parallel.usp:_both")
def qwenimage_last_shard_unmasked(original: Any, tokens: Any, prompt_tokens: Any, mask: Any) -> Any:
    def valid(shard: int) -> Any:
        keys = original(tokens, prompt_tokens, mask)(shard)
        return (
            keys if shard < tokens.factor - 1 else keys | original(tokens, prompt_tokens, torch.ones_like(mask))(shard)
        )

    return valid


@tables("Rows and columns are counted from the corner.", "places of Flux.1, scale_rope forgotten")
@at("refsim.models.qwenimage.embeddings:image_positions")
def qwenimage_not_centred(original: Any, sizes: Any) -> Any:
    places, numbers, first = original(sizes)
    corners = torch.tensor([[0, rows - rows // 2, columns - columns // 2] for _, rows, columns in sizes])
    return places + corners[numbers], numbers, first


@tables("An odd side has one row more behind its centre.", "n // 2 rows before the centre instead of behind it")
@at("refsim.models.qwenimage.embeddings:image_positions")
def qwenimage_odd_sides(original: Any, sizes: Any) -> Any:
    places, numbers, first = original(sizes)
    return places + torch.tensor([[0, rows % 2, columns % 2] for _, rows, columns in sizes])[numbers], numbers, first


@tables("All images stand at frame 0.", "the number of an image left out")
@at("refsim.models.qwenimage.embeddings:image_positions")
def qwenimage_images_at_frame_0(original: Any, sizes: Any) -> Any:
    places, numbers, first = original(sizes)
    return places * torch.tensor([0, 1, 1]), numbers, first


@tables("The prompt begins at place 0.", "places of a language model")
@at("refsim.models.qwenimage.embeddings:image_positions")
def qwenimage_prompt_at_0(original: Any, sizes: Any) -> Any:
    return *original(sizes)[:2], 0


@tables("The prompt begins behind a whole side, not half a one.", "places that are not centred")
@at("refsim.models.qwenimage.embeddings:image_positions")
def qwenimage_prompt_behind_whole_side(original: Any, sizes: Any) -> Any:
    places, numbers, first = original(sizes)
    return places, numbers, 2 * first


@tables("Every shard turns its tokens by the first one's places.", "places of the local row", case=SP2)
@at("refsim.parallel.sequence:TokenShards.cut", within="refsim.blocks.sequences:Sequences.turned")
def qwenimage_places_of_shard_0(original: Any, self: TokenShards, places: Tensor, shard: int, *, dim: int) -> Tensor:
    return original(self, places, 0, dim=dim)


@times("Every shard's tokens choose between time steps as the first one's.", "modulate_index not cut with the tokens")
@at("refsim.models.qwenimage.transformer:sequences_of")
def qwenimage_index_of_shard_0(original: Any, device: Any, config: Any, sizes: Tensor, *more: Any) -> Any:
    sequences = original(device, config, sizes, *more)
    target = int(sizes[0].prod())
    picks = (torch.arange(sequences.tokens.logical_n) >= target).long()[None]
    return replace(sequences, modulate_index=sequences.tokens.cut(picks, 0, dim=1))


@times("Images that are edited are modulated by the target's time step.", "Qwen-Image-Edit before 2511", case=SERIAL)
@at("refsim.models.qwenimage.transformer:sequences_of")
def qwenimage_one_time_step(original: Any, *args: Any) -> Any:
    sequences = original(*args)
    return replace(sequences, modulate_index=torch.zeros_like(sequences.modulate_index))


@times(
    "The target is modulated by time step 0, the images that are edited by its own.", "halves exchanged", case=SERIAL
)
@at("refsim.models.qwenimage.transformer:QwenImageTransformer._embedded")
def qwenimage_time_steps_swapped(original: Any, self: Any, *args: Any) -> Tensor:
    return original(self, *args).flip(1)


@times("The time step is not multiplied by 1000.", "a pipeline's time steps taken for the scheduler's", case=SERIAL)
@at("refsim.layers.embeddings:timestep_embedding")
def qwenimage_time_in_0_to_1(original: Any, timestep: Tensor, features: int, **_: Any) -> Tensor:
    return original(timestep, features)


@times("The prompt is not normed before it is projected.", "txt_norm left out", case=SERIAL)
@at("refsim.layers.norm:RMSNorm.of_rows")
def qwenimage_prompt_not_normed(original: Any, self: Any, x: Any) -> Any:
    return x if self._name == "txt_norm" else original(self, x)
