"""Mochi's video decoder of one cfg group; counterpart of ``refsim.models.vae_mochi.decoder``.

    latent --cut over rows (sp) and columns (tp)--> conv of 1 --> blocks --> [blocks, linear, enlarge] x 3 --> blocks
           --> silu, linear --> frames, cut, the first ones dropped

norm         group norm of every frame by itself: rows (B, 1, T H W, C) become (B T, 1, H W, C)
convolution  causal; before the first frame stands the first frame, around a frame its outermost pixels
enlarge      the linear's out features are ordered (time, rows, columns, channels), so that they are dealt out in runs:
             (B T H, W, t h, w C) --> (B T, t, H, h W w C)

Each device holds all weights. Between layers pixels are rows (B, 1, N, C) in tiles, see ``tt_impl.parallel.halo``.
"""

from __future__ import annotations

from functools import partial

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.vae_mochi.config import EPS, GROUPS, MochiVAEConfig, chunks
from refsim.models.vae_mochi.spec import CLASS_NAME
from tt_impl.layers.convolution import CausalConv3d, Stream
from tt_impl.layers.group_norm import GroupNorm
from tt_impl.layers.linear import Linear
from tt_impl.layers.residual import ResidualBlock
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_image, to_rows, to_video

_SWAP = (0, 2, 1, 3)


class FrameNorm:
    """GroupNorm of every frame of rows (B, 1, N, C), then SiLU."""

    def __init__(self, weights: Weights, ctx: Context, name: str, channels: int) -> None:
        self._norm = GroupNorm(weights, ctx, f"{name}.norm_layer", channels=channels, groups=GROUPS, eps=EPS)

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
        images = to_image(x, shards)
        normed = self._norm(to_rows(images, images.shape[0]), shards, silu=True)
        return to_rows(to_image(normed, shards), x.shape[0])


class Enlarge:
    """``proj``: a linear whose result is dealt out over ``frames`` times the frames and ``side`` times the rows."""

    def __init__(
        self, weights: Weights, ctx: Context, name: str, sizes: tuple[int, int], *, frames: int, side: int
    ) -> None:
        self._ctx = ctx
        self._frames = frames
        self._side = side
        out = sizes[1] * frames * side**2
        weight = weights.take(f"{name}.proj.weight", (out, sizes[0]))
        bias = weights.take(f"{name}.proj.bias", (out,))
        weight, bias = (x.unflatten(0, (sizes[1], -1)).transpose(0, 1).flatten(0, 1) for x in (weight, bias))
        self._linear = [ctx.put(weight.t()[None, None]), ctx.put(bias[None, None, None])]

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> tuple[ttnn.Tensor, ImageShards]:
        """Rows in, rows of more pixels out, and the cut they have."""
        weight, bias = self._linear
        rows = ttnn.linear(x, weight, bias=bias, compute_kernel_config=self._ctx.linear_config)
        image = to_image(rows, shards)
        images, height, width, out = image.shape
        both = self._frames * self._side
        runs = ttnn.reshape(image, (images * height, width, both, out // both))  # (B T H, W, t h, w C)
        runs = ttnn.reshape(ttnn.permute(runs, _SWAP), (images, height, self._frames, width * out // self._frames))
        shards = shards.scaled(self._side)
        video = ttnn.reshape(ttnn.permute(runs, _SWAP), (-1, *shards.local, out // (both * self._side)))
        return to_rows(video, x.shape[0]), shards


class MochiVAEDecoder:
    """Built on one submesh from a checkpoint's ``decoder``; every key but the encoder's must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: MochiVAEConfig) -> None:
        self._ctx = ctx
        self._config = config
        widths = config.decoder_block_out_channels[::-1]
        norm = partial(FrameNorm, weights, ctx)

        def conv(name: str, in_channels: int, out_channels: int) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels}
            return CausalConv3d(weights, ctx, f"{name}.conv", **sizes, before="first", border="edge")

        def blocks(name: str, count: int, channels: int) -> list[ResidualBlock]:
            make = partial(ResidualBlock, norm=norm, conv=conv, shortcut=conv)
            return [make(f"decoder.{name}.resnets.{i}", channels, channels) for i in range(count)]

        first, *counts, last = config.layers_per_block[::-1]
        expansions = zip(config.temporal_expansions[::-1], config.spatial_expansions[::-1], strict=True)
        self._conv_in = CausalConv3d(
            weights,
            ctx,
            "decoder.conv_in",
            in_channels=config.latent_channels,
            out_channels=widths[0],
            kernel=(1, 1),
        )
        self._in = blocks("block_in", first, widths[0])
        self._stages = [
            (
                blocks(f"up_blocks.{i}", counts[i], widths[i]),
                Enlarge(weights, ctx, f"decoder.up_blocks.{i}", widths[i : i + 2], frames=frames, side=side),
            )
            for i, (frames, side) in enumerate(expansions)
        ]
        self._out = blocks("block_out", last, widths[-1])
        self._proj_out = Linear(
            weights, ctx, "decoder.proj_out", in_features=widths[-1], out_features=config.out_channels
        )
        weights.leave("encoder.")
        weights.finish(CLASS_NAME)

    def __call__(self, *, z: torch.Tensor) -> ttnn.Tensor:
        """Latent (B, z, T, H, W) on the host -> frames (B, 6 T - 5, local 8 H, local 8 W, 3), cut."""
        shards = ImageShards.of(self._ctx, *z.shape[3:])
        latent = cut_image(self._ctx, z, shards)
        stream = Stream()
        frames = []
        start = 0
        for count in chunks(z.shape[2]):
            chunk = latent[:, start : start + count]
            frames.append(self._decode(to_rows(chunk, z.shape[0]), shards, stream))
            start += count
        video = ttnn.concat(frames, dim=1) if len(frames) > 1 else frames[0]
        return video[:, self._config.ratios[0] - 1 :]

    def _decode(self, x: ttnn.Tensor, shards: ImageShards, stream: Stream) -> ttnn.Tensor:
        """Rows (B, 1, N, z) of one chunk of latent frames -> its frames (B, T, H, W, 3)."""
        x = self._run(self._in, self._conv_in(x, shards, stream), shards, stream)
        for resnets, enlarge in self._stages:
            x, shards = enlarge(self._run(resnets, x, shards, stream), shards)
        x = ttnn.silu(self._run(self._out, x, shards, stream))
        return to_video(self._proj_out(x), shards)

    @staticmethod
    def _run(resnets: list[ResidualBlock], x: ttnn.Tensor, shards: ImageShards, stream: Stream) -> ttnn.Tensor:
        for resnet in resnets:
            x = resnet(x, to_norm=(shards,), to_conv=(shards, stream))
        return x

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the frames on the host, (B, 3, 6 T - 5, 8 H, 8 W); ``sizes`` are those of the inputs' named dims."""
        shards = ImageShards.of(self._ctx, sizes["height"], sizes["width"])
        return read_image(self._ctx, out, shards.scaled(self._config.ratios[1]))
