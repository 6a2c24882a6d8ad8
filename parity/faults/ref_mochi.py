"""Faults of the reference in Mochi: learned rotations, gates and norms of its blocks, valid tokens of a prompt; and in
its decoder: borders, norms of frames, what is dealt out to where.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.cases import Layout, ModelShape, make_case
from parity.faults.around import Patch, at, instead
from parity.faults.registry import fault
from refsim.models.mochi import embeddings
from refsim.models.vae_mochi import config

_SHAPE = ModelShape((3, 6, 10), 29, 2)  # 45 tokens over two devices are 32 and 13; prompts of 20 and, with holes, 22
MOCHI = make_case("transformer", "mochi_tiny", Layout("bh-qb", "sp2_tp2"), _SHAPE)
FRAMES = make_case("vae_decoder", "mochi_vae_tiny", Layout("bh-qb", "sp2_tp2"), ModelShape((3, 5, 7), 0, 1))

rotation = partial(fault, "tables", case=MOCHI)
block = partial(fault, "affine", case=MOCHI)
order = partial(fault, "order", case=MOCHI)
prompt = partial(fault, "padding", case=MOCHI)
decoder = partial(fault, "decoder", case=FRAMES)


@rotation("All heads turn as the first one does.", "one table for all heads, as other models have it")
@at("refsim.models.mochi.transformer:sequences_of")
def mochi_one_rotation_for_all(original: Any, device: Any, frequencies: Tensor, *more: Any) -> Any:
    return original(device, frequencies[:, :1].expand_as(frequencies), *more)


@rotation("Every device turns its heads as the first device's.", "learned frequencies not cut over tp")
@at("refsim.models.mochi.embeddings:shard_range")
def mochi_rotation_of_the_first_heads(original: Any, padded: int, group: Any) -> Any:
    return original(padded, replace(group, index=0))


@rotation("Every shard takes the places of the first.", "tables of the length of a shard")
@at("refsim.parallel.sequence:TokenShards.cut", within="refsim.models.mochi.transformer:sequences_of")
def mochi_places_of_the_first_shard(original: Any, self: Any, places: Tensor, shard: int, *, dim: int) -> Tensor:
    return original(self, places, 0, dim=dim)


@rotation("Rows and columns are counted from the corner.", "positions of other models, which are not centred")
@at("refsim.models.mochi.embeddings:positions")
def mochi_places_from_the_corner(original: Any, grid: Any) -> Tensor:
    places = original(grid)
    return places - places[0]


@rotation("Rows and columns are not stretched to the area of training.", "positions as plain numbers")
def mochi_places_not_stretched() -> Patch:
    return instead(embeddings, "_AREA", 15)  # 3 x 5 patches a frame


@rotation("Frames are stretched as rows and columns are.", "one scale for all three axes")
@at("refsim.models.mochi.embeddings:positions")
def mochi_frames_stretched(original: Any, grid: Any) -> Tensor:
    return original(grid) * torch.tensor([(embeddings._AREA / (grid[1] * grid[2])) ** 0.5, 1.0, 1.0])


@block("Gates are not bounded.", "tanh of the gates left out, as other models have none")
@at("torch:Tensor.tanh")
def mochi_gates_without_tanh(_: Any, x: Tensor) -> Tensor:
    return x


@block("Results go into the stream without a norm.", "the second norm of a branch left out")
@at("refsim.blocks.double:_Stream._added")
def mochi_results_not_normed(original: Any, self: Any, *args: Any) -> Any:
    with instead(self, "_norms_out", []):
        return original(self, *args)


@block("Norms take the mean square of a device's own features.", "a norm of one device on features cut over tp")
@at("refsim.layers.norm:all_gather", within="refsim.layers.norm:DistributedStreamRMSNorm.__call__")
def mochi_norm_of_own_features(_: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return torch.cat([x] * group.size, dim)


@block("Norms count padded features.", "divided by the padded width")
@at("refsim.layers.norm:DistributedStreamRMSNorm.__init__")
def mochi_norm_counts_padding(original: Any, self: Any, device: Any, *, features: int, **more: Any) -> None:
    original(self, device, features=-(-features // 64) * 64, **more)


@block("Streams are multiplied by scale instead of 1 + scale.", "the 1 of adaptive norms left out")
@at("refsim.blocks.double:modulate")
def mochi_scale_without_one(_: Any, x: Any, shift: Any, scale: Any) -> Any:
    return x * scale


@order("Attention's gate and the feed-forward's scale change places.", "chunks taken for two scales and two gates")
@at("refsim.layers.modulation:Modulation.__call__")
def mochi_chunks_scale_scale_gate_gate(original: Any, self: Any, time: Any) -> Any:
    made = original(self, time)
    return [made[i] for i in (0, 2, 1, 3)] if len(made) == 4 else made


@order("Frames' patches come out with their channels outermost.", "the order of the patches that go in")
@at("refsim.layers.embeddings:VideoPatches.unpatchify")
def mochi_channels_outermost(original: Any, self: Any, out: Tensor, grid: Any) -> Tensor:
    return original(self, out.unflatten(2, (-1, *self._patch)).movedim(2, -1).flatten(2), grid)


@prompt("Padding of the prompts counts as keys.", "the mask handed to the encoder only")
@at("refsim.blocks.double:joint_attention")
def mochi_padding_attended(original: Any, *args: Any, prompt_mask: Any, **more: Any) -> Any:
    return original(*args, **more)


@prompt("All samples have the valid tokens of the first.", "one length for a batch")
@at("refsim.models.mochi.transformer:sequences_of")
def mochi_valid_as_in_the_first(original: Any, device: Any, frequencies: Any, grid: Any, mask: Tensor) -> Any:
    return original(device, frequencies, grid, mask[:1].expand_as(mask))


@prompt("Answers of a prompt with holes stay where they are.", "what Genmo's code does, and diffusers' does not")
@at("refsim.blocks.double:_answers_first")
def mochi_answers_not_moved(_: Any, device: Any, answers: Any, sequences: Any) -> Any:
    mask = sequences.prompt_mask[:, None, :, None]
    return answers.map("answered", lambda x: x * mask.to(x.dtype))


@prompt("The pooled prompt is the mean of padding, too.", "a mean over all rows")
@at("refsim.models.mochi.embeddings:Conditioning._pooled")
def mochi_padding_pooled(original: Any, self: Any, prompt: Tensor, mask: Tensor) -> Tensor:
    return original(self, prompt, torch.ones_like(mask))


@decoder("Zeros lie around the frames.", "the border of other decoders")
@at("refsim.layers.convolution:exchange_halo")
def mochi_zeros_around(original: Any, device: Any, x: Tensor, shards: Any, *, by: int, **_: Any) -> Tensor:
    return original(device, x, shards, by=by)


@decoder("The edge that is repeated is that of the padded picture.", "replicate padding of a part that is not full")
@at("refsim.parallel.halo:_repeat_edges")
def mochi_edge_of_the_padding(original: Any, x: Tensor, cut: Any, *more: Any) -> Tensor:
    return original(x, replace(cut, logical_n=cut.local_n * cut.factor), *more)


@decoder("Frames are normed together.", "group norm of a video, as CogVideoX has it")
@at("refsim.models.vae_mochi.decoder:FrameNorm.__call__")
def mochi_frames_normed_together(_: Any, self: Any, x: Tensor, shards: Any) -> Tensor:
    return self._norm(x, shards)


@decoder("Pixels are dealt out with the channels innermost.", "the other order of a pixel shuffle")
@at("refsim.models.vae_mochi.decoder:pixelwise")
def mochi_dealt_channels_innermost(original: Any, device: Any, linear: Any, x: Tensor) -> Tensor:
    out = original(device, linear, x)
    return out.unflatten(1, (-1, 4 if out.shape[1] % 3 else 1)).transpose(1, 2).flatten(1, 2)


@decoder("The last frames are dropped, not the first.", "the frames too many looked for at the end")
@at("refsim.models.vae_mochi.decoder:MochiVAEDecoder._decode")
def mochi_last_frames_dropped(original: Any, self: Any, x: Tensor, shards: Any, stream: Any) -> Tensor:
    frames = original(self, x, shards, stream)
    return frames.roll(self._config.ratios[0] - 1, 2) if x.shape[2] == sum(config.chunks(x.shape[2])) else frames
