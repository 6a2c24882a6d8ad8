"""Faults of the autoencoders' decoders: borders of the cut, padding, statistics of the whole picture, time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.cases import Layout, ModelShape, make_case
from parity.faults.around import at, instead
from parity.faults.registry import fault
from refsim.parallel.halo import ImageShards

SP2_TP4 = Layout("t3k", "sp2_tp4")
IMAGE = make_case(
    "vae_decoder", "sd35_vae_tiny", SP2_TP4, ModelShape((10, 13), 0, 1)
)  # 13 columns as 4 + 4 + 4 + 1 of 4
CHANNELS = make_case(
    "vae_decoder", "sd35_vae_tiny", Layout("t3k", "sp2_tp4", vae_parallel="tensor"), ModelShape((10, 13), 0, 1)
)
VIDEO = make_case("vae_decoder", "cogvideox_vae_tiny", SP2_TP4, ModelShape((4, 10, 13), 0, 1))  # two chunks


decoder = partial(fault, "decoder", case=IMAGE)


@decoder(
    "The neighbours' borders arrive in other buffers than those that are read.",
    "the ping-pong index of neighbor_pad's buffer flipped between allocation and use",
)
@at("refsim.ccl.neighbor_pad:exchange")
def halo_arrives_elsewhere(original: Any, *args: Any, recvs: list[tuple[Tensor, int]], **rest: Any) -> None:
    original(*args, recvs=[(torch.empty_like(border), source) for border, source in recvs], **rest)


@decoder("Every device pads its part with zeros itself.", "Conv2d's own padding left on in the port")
@at("refsim.parallel.halo:neighbor_pad")
def halo_missing(original: Any, device: Any, x: Tensor, group: Any, *, dim: int, by: int) -> Tensor:
    zeros = x.narrow(dim, 0, by) * 0
    return torch.cat([zeros, x, zeros], dim)


@decoder("The borders of the neighbours are exchanged for each other.", "left and right semaphores swapped")
@at("refsim.parallel.halo:neighbor_pad")
def halo_sides_swapped(original: Any, device: Any, x: Tensor, group: Any, *, dim: int, by: int) -> Tensor:
    wide = original(device, x, group, dim=dim, by=by)
    before = wide.narrow(dim, 0, by)
    after = wide.narrow(dim, wide.shape[dim] - by, by)
    return torch.cat([after, x, before], dim)


@decoder("A border comes from one row too deep.", "neighbor_pad's offset counted from the halo")
@at("refsim.parallel.halo:neighbor_pad")
def halo_a_row_too_deep(original: Any, device: Any, x: Tensor, group: Any, *, dim: int, by: int) -> Tensor:
    wide = original(device, x, group, dim=dim, by=min(2 * by, x.shape[dim]))
    if wide.shape[dim] - x.shape[dim] == 2 * by:  # a part that is one row high
        return wide
    return torch.cat([wide.narrow(dim, 0, by), x, wide.narrow(dim, wide.shape[dim] - by, by)], dim)


@decoder("The corners of the halo stay empty.", "both axes exchanged at once instead of one after the other")
@at("refsim.layers.convolution:exchange_halo")
def halo_without_corners(original: Any, device: Any, x: Tensor, shards: Any, *, by: int = 1, **how: Any) -> Tensor:
    wide = original(device, x, shards, by=by, **how)
    for rows in (slice(None, by), slice(-by, None)):
        for columns in (slice(None, by), slice(-by, None)):
            wide[..., rows, columns] = 0
    return wide


@decoder(
    "What lies in the padding goes into the convolutions.",
    "known-issues.md of tt-metal: W-padding has no mask in neighbor_pad, garbage into conv",
)
@at("refsim.parallel.halo:zero_padding")
def padding_not_masked(_: Any, device: Any, x: Any, shards: Any) -> Any:
    return x


@decoder("GroupNorm takes every device's own statistics.", "GroupNorm of the part in place of the picture")
@at("refsim.layers.group_norm:all_gather")
def statistics_of_the_part(_: Any, device: Any, x: Any, group: Any, *, dim: Any) -> Any:
    return x


@decoder("GroupNorm's statistics are merged over one of both axes.", "cluster_axis of one axis only")
@at("refsim.layers.group_norm:all_gather")
def statistics_over_one_axis(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return x if group.name == "sp" else original(device, x, group, dim=dim)


@decoder("GroupNorm counts padding as pixels.", "statistics over the padded shape")
@at("refsim.layers.group_norm:GroupNorm.__call__")
def padding_counted(original: Any, self: Any, x: Tensor, shards: ImageShards) -> Tensor:
    with instead(ImageShards, "real", lambda shards, device: tuple(x.shape[-2:])):
        return original(self, x, shards)


@decoder("GroupNorm merges means, and forgets how far apart they are.", "M2 summed without the cross term")
@at("refsim.layers.group_norm:merge_statistics")
def merge_without_the_cross_term(_: Any, stats: Tensor) -> Tensor:
    count, mean, m2 = stats.split(1, -1)
    total = count.sum(0)
    return torch.cat([total, (count * mean).sum(0) / total.clamp(min=1), m2.sum(0)], -1)


@decoder("Every chunk of frames starts as if it were the first.", "conv_cache not handed on", case=VIDEO)
@at("refsim.layers.convolution:CausalConv3d.__call__")
def past_frames_forgotten(original: Any, self: Any, x: Tensor, shards: Any, stream: Any) -> Tensor:
    stream.past.pop(self._name, None)
    return original(self, x, shards, stream)


@decoder("The frames before the next chunk are kept one too early.", "cache cut at [-3:-1]", case=VIDEO)
@at("refsim.layers.convolution:CausalConv3d.__call__")
def past_frames_a_step_early(original: Any, self: Any, x: Tensor, shards: Any, stream: Any) -> Tensor:
    out = original(self, x, shards, stream)
    if self._time > 1:
        past = stream.past[self._name]
        stream.past[self._name] = past[:, :, :1].expand_as(past)
    return out


@decoder("Zeros stand before the first frame, not the first frame.", "Wan's causal padding in CogVideoX", case=VIDEO)
@at("refsim.layers.convolution:CausalConv3d.__init__")
def zeros_before_the_first_frame(original: Any, self: Any, *args: Any, before: str = "zeros", **sizes: Any) -> None:
    original(self, *args, **sizes)


@decoder("Channels are gathered in another order than they were cut.", "all_gather over a reversed axis", case=CHANNELS)
@at("refsim.layers.convolution:all_gather")
def channels_gathered_backwards(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return torch.cat(original(device, x, group, dim=dim).chunk(group.size, dim)[::-1], dim)


@decoder(
    "Statistics of different groups of channels are merged over tp.", "GroupNorm told the mesh axis", case=CHANNELS
)
@at("refsim.layers.group_norm:GroupNorm.__call__")
def groups_merged_over_channels(original: Any, self: Any, x: Tensor, shards: ImageShards) -> Tensor:
    columns = replace(shards.columns, logical_n=4 * x.shape[-1], factor=4)
    with instead(ImageShards, "across", lambda self, device: device.groups["tp"]):
        return original(self, x, replace(shards, columns=columns))


@decoder(
    "Every member of tp holds the first channels' kernels.", "a weight mapper without the mesh axis", case=CHANNELS
)
@at("refsim.layers.convolution:shard_range")
def kernels_of_the_first_member(_: Any, padded: Any, group: Any) -> Any:
    return (0, padded // group.size)
