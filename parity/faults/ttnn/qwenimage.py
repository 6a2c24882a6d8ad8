"""Faults of the device backend in Qwen-Image and Edit-2511: prompts cut to valid tokens, places, two time steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from parity.cases import Case, Layout, ModelShape, make_case
from parity.faults.around import at
from parity.faults.registry import fault

Prompts = Iterator[tuple[slice, torch.Tensor]]


def _model(mesh: str, parallel: str, batch: int = 1) -> Case:
    shape = ModelShape((12, 18), 24, batch)  # 54 tokens of the picture, 39 of others: two shards of 64 and 29
    return make_case("ttnn_transformer", "qwenimage_edit_tiny64", Layout(mesh, parallel), shape, dtype="bf16")


SP2 = _model("n300", "sp2")
SAMPLES = _model("n300", "tp2", batch=2)

prompts = partial(fault, "prompts", case=SP2)
places = partial(fault, "places", case=SP2)
times = partial(fault, "times", case=SP2)


@prompts("Masked prompt tokens are keys.", "a mask that nobody reads")
@at("tt_impl.parallel.sequence:valid_prompts")
def qwenimage_mask_ignored(_: Callable, mask: torch.Tensor, **more: Any) -> Prompts:
    yield slice(None), torch.arange(mask.shape[1])


@prompts("As many prompt tokens as are valid are keys, from the first one on.", "a mask taken for a length")
@at("tt_impl.parallel.sequence:valid_prompts")
def qwenimage_mask_as_length(
    original: Callable, mask: torch.Tensor, **more: Any
) -> Iterator[tuple[slice, torch.Tensor]]:
    for samples, tokens in original(mask, **more):
        yield samples, torch.arange(len(tokens))


@prompts("Every sample has the first one's prompt tokens.", "samples in one batch, whatever their masks", case=SAMPLES)
@at("tt_impl.parallel.sequence:valid_prompts")
def qwenimage_tokens_of_sample_0(
    original: Callable, mask: torch.Tensor, **more: Any
) -> Iterator[tuple[slice, torch.Tensor]]:
    yield slice(None), next(iter(original(mask, **more)))[1]


@prompts("The last valid token of every prompt is lost.", "a length read from the place of the last token")
@at("tt_impl.parallel.sequence:valid_prompts")
def qwenimage_last_token_lost(
    original: Callable, mask: torch.Tensor, **more: Any
) -> Iterator[tuple[slice, torch.Tensor]]:
    for samples, tokens in original(mask, **more):
        yield samples, tokens[:-1]


@prompts("Samples that run in turn come back in reverse order.", "results joined from the end", case=SAMPLES)
@at("tt_impl.parallel.sequence:ttnn.concat")
def qwenimage_samples_reversed(original: Callable, tensors: Any, dim: int) -> Any:
    return original(tensors[::-1] if dim == 0 else tensors, dim=dim)


@places("Valid tokens of a prompt close ranks.", "places counted on the prompt that was cut")
@at("tt_impl.models.qwenimage.transformer:sequences_of")
def qwenimage_prompt_closes_ranks(original: Callable, *args: Any) -> Any:
    return original(*args[:-1], torch.arange(len(args[-1])))


@places("The prompt begins at place 0.", "places of a language model")
@at("tt_impl.models.qwenimage.embeddings:image_positions")
def qwenimage_prompt_at_0(original: Callable, sizes: Any) -> Any:
    return *original(sizes)[:2], 0


@places("Rows and columns are counted from the corner.", "places of Flux.1, scale_rope forgotten")
@at("tt_impl.models.qwenimage.embeddings:image_positions")
def qwenimage_not_centred(original: Callable, sizes: Any) -> Any:
    tokens, numbers, first = original(sizes)
    corners = torch.tensor([[0, (rows + 1) // 2, (columns + 1) // 2] for _, rows, columns in sizes])
    return tokens + corners[numbers], numbers, first


@places("An odd side has one row more behind its centre.", "n // 2 rows before the centre instead of behind it")
@at("tt_impl.models.qwenimage.embeddings:image_positions")
def qwenimage_odd_sides(original: Callable, sizes: Any) -> Any:
    tokens, numbers, first = original(sizes)
    return tokens + torch.tensor([[0, rows % 2, columns % 2] for _, rows, columns in sizes])[numbers], numbers, first


@places("All images stand at frame 0.", "the number of an image left out")
@at("tt_impl.models.qwenimage.embeddings:image_positions")
def qwenimage_images_at_frame_0(original: Callable, sizes: Any) -> Any:
    tokens, numbers, first = original(sizes)
    return tokens * torch.tensor([0, 1, 1]), numbers, first


@times("Every shard's tokens choose between time steps as the first one's.", "an index replicated over sp")
@at("tt_impl.models.qwenimage.embeddings:put_tokens")
def qwenimage_index_of_shard_0(original: Callable, ctx: Any, index: torch.Tensor) -> Any:
    return original(ctx, torch.cat([index[:, :64], index[:, : index.shape[1] - 64]], 1))


@times("Images that are edited are modulated by the target's time step.", "Qwen-Image-Edit before 2511")
@at("tt_impl.models.qwenimage.embeddings:put_tokens")
def qwenimage_one_time_step(original: Callable, ctx: Any, index: torch.Tensor) -> Any:
    return original(ctx, index * 0)


@times("Tokens take the chunk of the other time step.", "operands of where exchanged")
@at("tt_impl.blocks.parts:ttnn.where")
def qwenimage_time_steps_swapped(original: Callable, index: Any, true: Any, false: Any) -> Any:
    return original(index, false, true)


@times("The time step is not multiplied by 1000.", "a pipeline's time steps taken for the scheduler's")
@at("tt_impl.layers.embeddings:timestep_embedding")
def qwenimage_time_in_0_to_1(original: Callable, timestep: torch.Tensor, features: int, **_: Any) -> torch.Tensor:
    return original(timestep, features)
