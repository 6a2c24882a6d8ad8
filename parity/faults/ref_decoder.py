"""Faults of the autoencoders' decoders: borders of the cut, padding, statistics of the whole picture, time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity.cases import Layout, ModelShape, make_case
from parity.faults.ref_tools import around, fault, instead
from refsim.layers import convolution, group_norm
from refsim.parallel import halo
from refsim.parallel.halo import ImageShards

DECODER = "decoder"
SP2_TP4 = Layout("t3k", "sp2_tp4")
IMAGE = make_case(
    "vae_decoder", "sd35_vae_tiny", SP2_TP4, ModelShape((10, 13), 0, 1)
)  # 13 columns as 4 + 4 + 4 + 1 of 4
CHANNELS = make_case(
    "vae_decoder", "sd35_vae_tiny", Layout("t3k", "sp2_tp4", vae_parallel="tensor"), ModelShape((10, 13), 0, 1)
)
VIDEO = make_case("vae_decoder", "cogvideox_vae_tiny", SP2_TP4, ModelShape((4, 10, 13), 0, 1))  # two chunks


@fault(
    DECODER,
    IMAGE,
    "The neighbours' borders arrive in other buffers than those that are read.",
    "the ping-pong index of neighbor_pad's buffer flipped between allocation and use",
)
def halo_arrives_elsewhere() -> Iterator[None]:
    def elsewhere(original: Any, *args: Any, recvs: list[tuple[Tensor, int]], **rest: Any) -> None:
        original(*args, recvs=[(torch.empty_like(border), source) for border, source in recvs], **rest)

    # the package's attribute of that name is the function
    with around(sys.modules["refsim.ccl.neighbor_pad"], "exchange", elsewhere):
        yield


@fault(DECODER, IMAGE, "Every device pads its part with zeros itself.", "Conv2d's own padding left on in the port")
def halo_missing() -> Iterator[None]:
    def alone(original: Any, device: Any, x: Tensor, group: Any, *, dim: int, by: int) -> Tensor:
        zeros = x.narrow(dim, 0, by) * 0
        return torch.cat([zeros, x, zeros], dim)

    with around(halo, "neighbor_pad", alone):
        yield


@fault(
    DECODER, IMAGE, "The borders of the neighbours are exchanged for each other.", "left and right semaphores swapped"
)
def halo_sides_swapped() -> Iterator[None]:
    def swapped(original: Any, device: Any, x: Tensor, group: Any, *, dim: int, by: int) -> Tensor:
        wide = original(device, x, group, dim=dim, by=by)
        before, after = wide.narrow(dim, 0, by), wide.narrow(dim, wide.shape[dim] - by, by)
        return torch.cat([after, x, before], dim)

    with around(halo, "neighbor_pad", swapped):
        yield


@fault(DECODER, IMAGE, "A border comes from one row too deep.", "neighbor_pad's offset counted from the halo")
def halo_a_row_too_deep() -> Iterator[None]:
    def deep(original: Any, device: Any, x: Tensor, group: Any, *, dim: int, by: int) -> Tensor:
        wide = original(device, x, group, dim=dim, by=min(2 * by, x.shape[dim]))
        if wide.shape[dim] - x.shape[dim] == 2 * by:  # a part that is one row high
            return wide
        return torch.cat([wide.narrow(dim, 0, by), x, wide.narrow(dim, wide.shape[dim] - by, by)], dim)

    with around(halo, "neighbor_pad", deep):
        yield


@fault(
    DECODER, IMAGE, "The corners of the halo stay empty.", "both axes exchanged at once instead of one after the other"
)
def halo_without_corners() -> Iterator[None]:
    def bare(original: Any, device: Any, x: Tensor, shards: Any, *, by: int = 1) -> Tensor:
        wide = original(device, x, shards, by=by)
        for rows in (slice(None, by), slice(-by, None)):
            for columns in (slice(None, by), slice(-by, None)):
                wide[..., rows, columns] = 0
        return wide

    with around(convolution, "exchange_halo", bare):
        yield


@fault(
    DECODER,
    IMAGE,
    "What lies in the padding goes into the convolutions.",
    "known-issues.md of tt-metal: W-padding has no mask in neighbor_pad, garbage into conv",
)
def padding_not_masked() -> Iterator[None]:
    with instead(halo, "zero_padding", lambda device, x, shards: x):
        yield


@fault(
    DECODER, IMAGE, "GroupNorm takes every device's own statistics.", "GroupNorm of the part in place of the picture"
)
def statistics_of_the_part() -> Iterator[None]:
    with instead(group_norm, "all_gather", lambda device, x, group, *, dim: x):
        yield


@fault(DECODER, IMAGE, "GroupNorm's statistics are merged over one of both axes.", "cluster_axis of one axis only")
def statistics_over_one_axis() -> Iterator[None]:
    def one(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
        return x if group.name == "sp" else original(device, x, group, dim=dim)

    with around(group_norm, "all_gather", one):
        yield


@fault(DECODER, IMAGE, "GroupNorm counts padding as pixels.", "statistics over the padded shape")
def padding_counted() -> Iterator[None]:
    def padded(original: Any, self: Any, x: Tensor, shards: ImageShards) -> Tensor:
        with instead(ImageShards, "real", lambda shards, device: tuple(x.shape[-2:])):
            return original(self, x, shards)

    with around(group_norm.GroupNorm, "__call__", padded):
        yield


@fault(
    DECODER, IMAGE, "GroupNorm merges means, and forgets how far apart they are.", "M2 summed without the cross term"
)
def merge_without_the_cross_term() -> Iterator[None]:
    def merge(stats: Tensor) -> Tensor:
        count, mean, m2 = stats.split(1, -1)
        total = count.sum(0)
        return torch.cat([total, (count * mean).sum(0) / total.clamp(min=1), m2.sum(0)], -1)

    with instead(group_norm, "merge_statistics", merge):
        yield


@fault(DECODER, VIDEO, "Every chunk of frames starts as if it were the first.", "conv_cache not handed on")
def past_frames_forgotten() -> Iterator[None]:
    def forget(original: Any, self: Any, x: Tensor, shards: Any, stream: Any) -> Tensor:
        stream.past.pop(self._name, None)
        return original(self, x, shards, stream)

    with around(convolution.CausalConv3d, "__call__", forget):
        yield


@fault(DECODER, VIDEO, "The frames before the next chunk are kept one too early.", "cache cut at [-3:-1]")
def past_frames_a_step_early() -> Iterator[None]:
    def early(original: Any, self: Any, x: Tensor, shards: Any, stream: Any) -> Tensor:
        out = original(self, x, shards, stream)
        if self._time > 1:
            kept = stream.past[self._name]
            stream.past[self._name] = kept[:, :, :1].expand_as(kept)
        return out

    with around(convolution.CausalConv3d, "__call__", early):
        yield


@fault(DECODER, VIDEO, "Zeros stand before the first frame, not the first frame.", "Wan's causal padding in CogVideoX")
def zeros_before_the_first_frame() -> Iterator[None]:
    def zeros(original: Any, self: Any, *args: Any, before: str = "zeros", **sizes: Any) -> None:
        original(self, *args, **sizes)

    with around(convolution.CausalConv3d, "__init__", zeros):
        yield


@fault(
    DECODER, CHANNELS, "Channels are gathered in another order than they were cut.", "all_gather over a reversed axis"
)
def channels_gathered_backwards() -> Iterator[None]:
    def backwards(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
        return torch.cat(original(device, x, group, dim=dim).chunk(group.size, dim)[::-1], dim)

    with around(convolution, "all_gather", backwards):
        yield


@fault(
    DECODER, CHANNELS, "Statistics of different groups of channels are merged over tp.", "GroupNorm told the mesh axis"
)
def groups_merged_over_channels() -> Iterator[None]:
    def every(original: Any, self: ImageShards, device: Any) -> Any:
        return device.groups["tp"]

    def normed(original: Any, self: Any, x: Tensor, shards: ImageShards) -> Tensor:
        columns = replace(shards.columns, logical_n=4 * x.shape[-1], factor=4)
        with around(ImageShards, "across", every):
            return original(self, x, replace(shards, columns=columns))

    with around(group_norm.GroupNorm, "__call__", normed):
        yield


@fault(
    DECODER, CHANNELS, "Every member of tp holds the first channels' kernels.", "a weight mapper without the mesh axis"
)
def kernels_of_the_first_member() -> Iterator[None]:
    with instead(convolution, "shard_range", lambda padded, group: (0, padded // group.size)):
        yield
