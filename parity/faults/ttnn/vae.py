"""Faults of the device backend's decoders: borders, padding, statistics of the whole picture, channels, time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parity.cases import Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, at
from parity.faults.registry import fault
from parity.faults.ttnn.device import ttnn


def _case(model: str, mesh: str, parallel: str, latent: tuple[int, ...], *, tag: str = "", **more: Any) -> Case:
    layout = Layout(mesh, parallel, **more)
    shape = ModelShape(latent, 0, 1)
    return make_case("ttnn_vae_decoder", model, layout, shape, dtype="bf16", tag=tag)


IMAGE = _case("sd35_vae_tiny", "bh-qb", "sp2_tp2", (5, 7))  # rows 3 + 2 of 3, columns 4 + 3 of 4; axes of equal size
WHOLE = _case("sd35_vae_tiny64", "n300", "tp2", (4, 5), vae_parallel="tensor")  # whole pictures, channels cut
WAN = _case("wan_vae_tiny", "n300", "sp2", (2, 4, 3))  # the first frame, and one behind what it left
COGVIDEOX = _case("cogvideox_vae_tiny", "n300", "sp2", (4, 4, 3))  # two chunks
ODD = _case("cogvideox_vae_tiny", "n300", "sp2", (3, 4, 3), tag="odd")  # one chunk whose first frame stands alone


def _halos(change: Callable[..., Any]) -> Patch:
    """Replace every exchange of borders by ``change(exchange, x, dims, axes)``."""

    @at("tt_impl.parallel.manager:CCLManager.neighbor_pad")
    def pad(original: Callable, self: Any, x: Any, *, dims: list[int], axes: list[int], **how: Any) -> Any:
        return change(lambda x, dims, axes: original(self, x, dims=dims, axes=axes, **how), x, dims, axes)

    return pad()


def _cut(x: Any, dim: int, start: int, stop: int) -> Any:
    return x[tuple(slice(start, stop) if d == dim else slice(None) for d in range(len(x.shape)))]


halo = partial(fault, "halo", case=IMAGE)
statistics = partial(fault, "statistics", case=IMAGE)
picture = partial(fault, "picture", case=IMAGE)
time = partial(fault, "time", case=WAN)


@halo("Every device pads its part with zeros itself.", "a convolution's own padding left on in the port")
@at(_halos)
def vae_halo_missing(exchange: Callable, x: Any, dims: list[int], axes: list[int]) -> Any:
    exchange(x, dims, axes)
    return ttnn.pad(x, [(int(d in dims), int(d in dims)) for d in range(4)], 0.0)


@halo("The borders of the two neighbours are exchanged for each other.", "left and right mixed up")
@at(_halos)
def vae_halo_sides_swapped(exchange: Callable, x: Any, dims: list[int], axes: list[int]) -> Any:
    wide = exchange(x, dims, axes)
    for dim in dims:
        n = wide.shape[dim]
        parts = [_cut(wide, dim, n - 1, n), _cut(wide, dim, 1, n - 1), _cut(wide, dim, 0, 1)]
        wide = ttnn.concat(parts, dim=dim)
    return wide


@halo("The border rows are a row short: the outermost one is the second again.", "padding of 1 read as 0")
@at(_halos)
def vae_halo_one_row_short(exchange: Callable, x: Any, dims: list[int], axes: list[int]) -> Any:
    wide = exchange(x, dims, axes)
    return ttnn.concat([_cut(wide, 1, 1, 2), _cut(wide, 1, 1, wide.shape[1])], dim=1)


@halo("Rows are exchanged over the axis of the columns.", "cluster_axis of the two dims mixed up")
@at(_halos)
def vae_halo_over_the_other_axis(exchange: Callable, x: Any, dims: list[int], axes: list[int]) -> Any:
    return exchange(x, dims, axes[::-1])


@halo("Corners of the halo stay empty.", "both axes exchanged at once instead of one after the other")
@at(_halos)
def vae_halo_without_corners(exchange: Callable, x: Any, dims: list[int], axes: list[int]) -> Any:
    wide = exchange(x, dims, axes)
    n = wide.shape[1]
    middle = ttnn.pad(_cut(wide, 1, 1, n - 1), [(0, 0), (1, 1), (0, 0), (0, 0)], 0.0)
    m = wide.shape[2]
    between = [_cut(middle, 2, 0, 1), _cut(wide, 2, 1, m - 1), _cut(middle, 2, m - 1, m)]
    return ttnn.concat(between, dim=2)


@halo("The picture's own edge is repeated where zeros belong.", "padding_mode of the other models")
@at("ttnn:experimental.neighbor_pad_async")
def vae_edge_repeated(
    original: Callable, x: Any, dims: Any, left: Any, right: Any, _mode: str, *more: Any, **how: Any
) -> Any:
    return original(x, dims, left, right, "replicate", *more, **how)


@halo("What lies in the padding goes into the convolutions.", "neighbor_pad has no mask for columns")
@at("tt_impl.layers.convolution:zero_padding", "tt_impl.models.vae.decoder:zero_padding")
def vae_padding_not_masked(_: Callable, ctx: Any, x: Any, shards: Any) -> Any:
    return x


@statistics("Every device takes the statistics of its own part.", "GroupNorm of the part, sums not gathered")
@at("tt_impl.layers.group_norm:_CutPicture._summed")
def vae_statistics_local(original: Callable, self: Any, moments: Any, axis: int) -> Any:
    original(self, moments, axis)
    return ttnn.multiply(moments, float(self._ctx.shape[axis]))


@statistics("Statistics are gathered over the columns only.", "one cluster_axis, as the fused op takes it")
@at("tt_impl.layers.group_norm:_CutPicture._summed")
def vae_statistics_of_a_row_of_devices(original: Callable, self: Any, moments: Any, axis: int) -> Any:
    total = original(self, moments, axis)
    return total if axis == self._ctx.tp_axis else ttnn.multiply(moments, float(self._ctx.shape[axis]))


@statistics("Padding counts in the statistics.", "a mask that is applied to the convolutions only")
@at("tt_impl.parallel.halo:ImageShards.mask")
def vae_padding_in_statistics(
    original: Callable, self: Any, ctx: Any, *args: Any, across: bool = False, **more: Any
) -> Any:
    mask = original(self, ctx, *args, across=across, **more)
    return ctx.put(torch.ones(tuple(mask.shape))) if across else mask


@statistics("Every group gets every eighth channel.", "channels viewed as (C/G, G) instead of (G, C/G)")
@at("tt_impl.layers.group_norm:_CutPicture.__init__")
def vae_groups_interleaved(
    original: Callable, self: Any, ctx: Any, affine: Any, channels: int, groups: int, **more: Any
) -> None:
    original(self, ctx, affine, channels, groups, **more)
    self._member = torch.eye(groups).repeat(channels // groups, 1)
    self._of_group = ctx.put(self._member.t()[None, None], dtype=ttnn.float32)


@statistics(
    "The group norm's grid is that of another product.",
    "a grid pinned for Blackhole, on which Wormhole hangs",
    case=WHOLE,
    says="asks for 12x10 cores",
)
@at("tt_impl.layers.group_norm:_WholePicture._pinned")
def vae_grid_of_another_product(original: Callable, self: Any, *args: Any) -> tuple:
    return ttnn.CoreGrid(x=12, y=10), *original(self, *args)[1:]


@statistics(
    "Every device has the norm weights of the first.", "parameters replicated instead of cut over tp", case=WHOLE
)
@at("tt_impl.layers.group_norm:_WholePicture.__init__")
def vae_norm_weights_of_the_first(
    original: Callable, self: Any, ctx: Any, affine: Any, channels: int, groups: int, **more: Any
) -> None:
    first = [torch.cat([p[:channels]] * ctx.tp) for p in affine]
    original(self, ctx, first, channels, groups, **more)


@picture("Every device adds the first one's bias.", "a bias replicated where its weight is cut", case=WHOLE)
@at("tt_impl.parallel.context:Context.host")
def vae_bias_of_the_first(original: Callable, self: Any, x: Any, *, tp_dim: int | None = None) -> Any:
    return original(self, torch.cat([x.chunk(self.tp, 3)[0]] * self.tp, 3) if tp_dim == 3 else x, tp_dim=tp_dim)


@picture("The latent is read as if its channels came last.", "a view in place of a permute to NHWC")
@at("tt_impl.models.vae.decoder:cut_image")
def vae_latent_not_permuted(original: Callable, ctx: Any, x: Any, shards: Any) -> Any:
    batch, channels, height, width = x.shape
    return original(ctx, x.reshape(batch, height, width, channels).movedim(-1, 1), shards)


@picture("The picture is repeated where every pixel should be.", "repeat in place of repeat_interleave")
@at("ttnn:upsample")
def vae_enlarged_by_repeating(_: Callable, x: Any, scale: Any) -> Any:
    return ttnn.repeat(x, [1, 2, 2, 1])


@picture("Keys and values are exchanged for each other.", "the fused linear laid out as q, v, k")
@at("tt_impl.layers.pixels:PixelAttention.__init__")
def vae_keys_as_values(
    original: Callable, self: Any, ctx: Any, qkv: Any, out: Any, *, channels: int, **more: Any
) -> None:
    q, k, v = ([part[i * channels : (i + 1) * channels] for part in qkv] for i in range(3))
    original(self, ctx, [torch.cat(x) for x in zip(q, v, k, strict=True)], out, channels=channels, **more)


@picture("Attention also looks at the padding.", "a gathered picture that is not cut to its size")
@at("tt_impl.layers.pixels:gather_image")
def vae_attends_to_padding(original: Callable, ctx: Any, x: Any, shards: Any) -> Any:
    from dataclasses import replace

    height, width = shards.padded(ctx)
    return original(ctx, x, replace(shards, height=height, width=width))


@time("The frames kept for the next chunk are one frame late.", "the cache cut before the new frame joined it")
@at("tt_impl.layers.convolution:CausalConv3d._with_past")
def vae_cache_one_frame_late(original: Callable, self: Any, video: Any, stream: Any) -> Any:
    video = original(self, video, stream)
    past = self._time - 1
    n = video.shape[1]
    stream.past[self._name] = video[:, n - past - 1 : n - 1]
    return video


@time("Every chunk begins as if it were the first.", "a cache made anew per chunk", case=COGVIDEOX)
@at("tt_impl.layers.convolution:CausalConv3d._with_past")
def vae_cache_forgotten(original: Callable, self: Any, video: Any, stream: Any) -> Any:
    stream.past.pop(self._name, None)
    return original(self, video, stream)


@time("A convolution finds the frames that another one kept.", "caches by shape instead of by name", case=COGVIDEOX)
@at("tt_impl.layers.convolution:CausalConv3d._with_past")
def vae_cache_of_another_convolution(original: Callable, self: Any, video: Any, stream: Any) -> Any:
    name = self._name
    self._name = str(tuple(video.shape)[2:])
    try:
        return original(self, video, stream)
    finally:
        self._name = name


@time("The first frame is repeated before itself where zeros belong.", "CogVideoX's rule in Wan's decoder")
def vae_first_frame_repeated() -> Patch:
    return _before("first")


@time("Zeros stand before the first frame where it is repeated.", "Wan's rule in CogVideoX's decoder", case=COGVIDEOX)
def vae_zeros_before_the_first_frame() -> Patch:
    return _before("zeros")


def _before(what: str) -> Patch:
    """Let every causal convolution put this before its first frame."""

    @at("tt_impl.layers.convolution:CausalConv3d.__init__")
    def init(original: Callable, self: Any, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        self._before = what

    return init()


@time("The convolution that doubles time remembers the first frame.", "its cache starts with the first chunk")
@at("tt_impl.models.vae_wan.layers:Upsample.__call__")
def vae_doubling_remembers_the_first_frame(original: Callable, self: Any, x: Any, shards: Any, stream: Any) -> Any:
    if self._time_conv is not None and stream.first:
        self._time_conv(x, shards, stream)
    return original(self, x, shards, stream)


@time("The two frames that time is doubled to lie channel by channel.", "channels viewed as (C, 2)")
@at("tt_impl.models.vae_wan.layers:Upsample._in_turn")
def vae_pairs_channel_by_channel(_: Callable, self: Any, pairs: Any) -> Any:
    images, height, width, _ = pairs.shape
    frames = ttnn.permute(ttnn.reshape(pairs, (images, height * width, self._channels, 2)), (0, 3, 1, 2))
    return ttnn.reshape(frames, (2 * images, height, width, self._channels))


@time("The last frame of an odd chunk stands alone instead of the first.", "time doubled from the wrong end", case=ODD)
@at("tt_impl.models.vae_cogvideox.decoder:enlarge")
def vae_last_frame_alone(original: Callable, x: Any, size: Any) -> Any:
    return _backwards(original(_backwards(x), size))


def _backwards(x: Any) -> Any:
    return ttnn.concat([x[:, t : t + 1] for t in reversed(range(x.shape[1]))], dim=1) if x.shape[1] > 1 else x


@time("The latent's scale and shift are exchanged for each other.", "conv_y and conv_b mixed up", case=ODD)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.models.vae_cogvideox.decoder:SpatialNorm.__init__")
def vae_scale_as_shift(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    of_the_norm = "dtype" in where
    return original(ctx, x if of_the_norm else x.roll(x.shape[-1] // 2, -1), **where)
