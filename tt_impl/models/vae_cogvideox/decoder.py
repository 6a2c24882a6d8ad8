"""CogVideoX's video decoder of one cfg group; counterpart of ``refsim.models.vae_cogvideox.decoder``.

    latent --cut over rows (sp) and columns (tp)--> conv --> mid block --> up blocks (x2 and time, x2 and time, x2, x1)
           --> norm, silu, conv --> frames, cut

norm         group norm (statistics of the whole chunk, gathered) * y(latent) + b(latent): the latent of the chunk,
             through one linear for both, enlarged to the size of what is normed
time         frame 0 of the latent makes one frame, every other one four; the first chunk takes a frame that is left
             over, so its statistics are over three latent frames where the others have two
convolution  causal; before the first frame stands the first frame itself

Each device holds all weights. Between layers pixels are rows (B, 1, N, C) in tiles, see ``tt_impl.parallel.halo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.models.vae_cogvideox.spec import CLASS_NAME
from tt_impl.layers.conv3d import Conv3d
from tt_impl.layers.convolution import CausalConv3d, Stream
from tt_impl.layers.group_norm import SILU, GroupNorm
from tt_impl.layers.residual import ResidualBlock, stages_up
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, cut_image, exchange_halo, read_image, to_rows, to_video, zero_padding

_CHUNK = 2  # latent frames; the model is trained with this number


@dataclass(frozen=True)
class LatentChunk:
    """The latent frames under way: rows (B, 1, N, z), and their local (T, H, W)."""

    rows: ttnn.Tensor
    size: tuple[int, int, int]


class SpatialNorm:
    """GroupNorm, scaled and shifted by what the latent says at that place and time."""

    def __init__(
        self, weights: Weights, ctx: Context, name: str, *, channels: int, latent_channels: int, groups: int
    ) -> None:
        self._ctx = ctx
        self._channels = channels
        self._norm = GroupNorm(weights, ctx, f"{name}.norm_layer", channels=channels, groups=groups)
        shape = (channels, latent_channels, 1, 1, 1)
        parts = [f"{name}.{part}.conv" for part in ("conv_y", "conv_b")]
        weight = torch.cat([weights.take(f"{part}.weight", shape).flatten(1) for part in parts])
        bias = torch.cat([weights.take(f"{part}.bias", shape[:1]) for part in parts])
        self._linear = [ctx.put(weight.t()[None, None]), ctx.put(bias[None, None, None])]

    def __call__(self, x: ttnn.Tensor, latent: LatentChunk, shards: ImageShards) -> ttnn.Tensor:
        """Rows in, rows out, through SiLU."""
        # a convolution of 1 and nearest enlargement change places: the convolution is of the small one
        weight, bias = self._linear
        small = ttnn.linear(latent.rows, weight, bias=bias, compute_kernel_config=self._ctx.linear_config)
        small = ttnn.reshape(ttnn.to_layout(small, ttnn.ROW_MAJOR_LAYOUT), (x.shape[0], *latent.size, -1))
        frames = x.shape[2] // (shards.local[0] * shards.local[1])
        both = to_rows(enlarge(small, (frames, *shards.local)), x.shape[0])
        scale = both[:, :, :, : self._channels]
        shift = both[:, :, :, self._channels :]
        return ttnn.add(ttnn.multiply(self._norm(x, shards), scale), shift, activations=[SILU])


class Upsample:
    """Twice the height and width, and with ``temporal`` twice the frames (nearest), then a convolution per frame."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, channels: int, temporal: bool) -> None:
        self._ctx = ctx
        self._temporal = temporal
        weight = weights.take(f"{name}.conv.weight", (channels, channels, 3, 3)).unsqueeze(2)
        self._conv = Conv3d(ctx, weight, weights.take(f"{name}.conv.bias", (channels,)))

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> tuple[ttnn.Tensor, ImageShards]:
        """Rows in, rows of more pixels out, and the cut they have."""
        video = to_video(zero_padding(self._ctx, x, shards), shards)
        samples, frames, height, width, channels = video.shape
        if self._temporal and frames > 1:
            frames = 2 * frames - frames % 2
        shards = shards.scaled(2)
        video = enlarge(video, (frames, 2 * height, 2 * width))
        images = ttnn.reshape(video, (samples * frames, 2 * height, 2 * width, channels))
        images, padding = exchange_halo(self._ctx, images, shards)
        video = ttnn.reshape(images, (samples, frames, *tuple(images.shape)[1:]))
        return self._conv(video, padding=(0, *padding)), shards


class CogVideoXVAEDecoder:
    """Built on one submesh from a checkpoint's ``decoder``; every key but the encoder's must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: CogVideoXVAEConfig) -> None:
        self._ctx = ctx
        self._config = config
        widths = config.block_out_channels[::-1]
        z = config.latent_channels
        groups = config.norm_num_groups

        def norm(name: str, channels: int) -> SpatialNorm:
            return SpatialNorm(weights, ctx, name, channels=channels, latent_channels=z, groups=groups)

        def conv(name: str, in_channels: int, out_channels: int) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels}
            return CausalConv3d(weights, ctx, f"{name}.conv", **sizes, before="first")

        def shortcut(name: str, in_channels: int, out_channels: int) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels}
            return CausalConv3d(weights, ctx, name, **sizes, kernel=(1, 1))

        def up(name: str, channels: int, index: int) -> Upsample:
            return Upsample(weights, ctx, name, channels=channels, temporal=index < config.doublings)

        block = partial(ResidualBlock, norm=norm, conv=conv, shortcut=shortcut)
        self._conv_in = conv("decoder.conv_in", z, widths[0])
        self._mid = [block(f"decoder.mid_block.resnets.{i}", widths[0], widths[0]) for i in range(2)]
        self._stages = stages_up(widths, config.layers_per_block + 1, block, up)
        self._norm_out = norm("decoder.norm_out", widths[-1])
        self._conv_out = conv("decoder.conv_out", widths[-1], config.out_channels)
        weights.leave("encoder.", "quant_conv.")
        weights.finish(CLASS_NAME)

    def __call__(self, *, z: torch.Tensor) -> ttnn.Tensor:
        """Latent (B, z, T, H, W) on the host -> frames (B, F, local 8 H, local 8 W, 3), cut; F is 4 T, or 4 T - 3 for
        odd T.
        """
        shards = ImageShards.of(self._ctx, *z.shape[3:])
        latent = cut_image(self._ctx, z, shards)
        stream = Stream()
        frames = []
        start = 0
        stop = _CHUNK + z.shape[2] % 2
        while start < z.shape[2]:
            part = latent[:, start : min(stop, z.shape[2])]  # a single latent frame is a chunk of one
            chunk = LatentChunk(to_rows(part, z.shape[0]), tuple(part.shape)[1:4])
            frames.append(self._decode(chunk, shards, stream))
            start = stop
            stop = stop + _CHUNK
        return ttnn.concat(frames, dim=1) if len(frames) > 1 else frames[0]

    def _decode(self, latent: LatentChunk, shards: ImageShards, stream: Stream) -> ttnn.Tensor:
        """One chunk of latent frames -> its frames (B, T, H, W, 3)."""
        x = self._conv_in(latent.rows, shards, stream)
        for resnet in self._mid:
            x = resnet(x, to_norm=(latent, shards), to_conv=(shards, stream))
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, to_norm=(latent, shards), to_conv=(shards, stream))
            if up is not None:
                x, shards = up(x, shards)
        return to_video(self._conv_out(self._norm_out(x, latent, shards), shards, stream), shards)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the frames on the host, (B, 3, F, 8 H, 8 W); ``sizes`` are those of the inputs' named dims."""
        shards = ImageShards.of(self._ctx, sizes["height"], sizes["width"])
        return read_image(self._ctx, out, shards.scaled(self._config.scale))


def enlarge(x: ttnn.Tensor, size: tuple[int, int, int]) -> ttnn.Tensor:
    """Enlarge (B, T, H, W, C), row-major, to multiples of H and W by nearest values, and of T: all frames, or all but
    the first. Time comes first, while frames are small.
    """
    samples, frames, height, width, channels = x.shape
    if size[0] != frames:
        alone = size[0] % 2
        times = (size[0] - alone) // (frames - alone)
        each = [x[:, t : t + 1] for t in range(frames)]
        x = ttnn.concat([frame for t, frame in enumerate(each) for _ in range(1 if t < alone else times)], dim=1)
    if size[1:] == (height, width):
        return x
    images = ttnn.reshape(x, (samples * size[0], height, width, channels))
    images = ttnn.upsample(images, [size[1] // height, size[2] // width])
    return ttnn.reshape(images, (samples, *size, channels))
