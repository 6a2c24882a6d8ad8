"""Wan's video decoder of one cfg group; counterpart of ``refsim.models.vae_wan.decoder``.

    latent --cut over rows (sp) and columns (tp)--> conv --> mid block --> up blocks (x2, x2 and time, x2 and time, x1)
           --> norm, silu, conv --> clamp, frames stay cut

Frame 0 of the latent makes one frame, every other one four. What a convolution must remember of the frames before is
kept per convolution on the device, so chunks cost no more than their own frames. Each device holds all weights.

Between layers pixels are rows (B, 1, N, C) in tiles, see ``tt_impl.parallel.halo``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.spec import CLASS_NAME
from tt_impl.layers.convolution import CausalConv3d, Stream
from tt_impl.layers.residual import ResidualBlock, stages_up
from tt_impl.models.vae_wan.layers import ChannelNorm, FrameAttention, Upsample
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_rows, to_video


class WanVAEDecoder:
    """Built on one submesh from a checkpoint's ``post_quant_conv`` and ``decoder``; every key but the encoder's must be
    consumed.
    """

    def __init__(self, weights: Weights, ctx: Context, config: WanVAEConfig) -> None:
        self._ctx = ctx
        self._config = config
        z = config.z_dim
        widths = [config.base_dim * m for m in reversed(config.dim_mult)]
        doubles = list(reversed(config.temperal_downsample))

        def norm(name: str, channels: int) -> Callable[..., ttnn.Tensor]:
            return partial(ChannelNorm(weights, ctx, name, channels=channels, dims=3), silu=True)

        def conv(name: str, in_channels: int, out_channels: int, kernel: tuple[int, int] = (3, 3)) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel": kernel}
            return CausalConv3d(weights, ctx, name, **sizes)

        def up(name: str, channels: int, index: int) -> Upsample:
            return Upsample(weights, ctx, name, channels=channels, temporal=doubles[index])

        block = partial(ResidualBlock, norm=norm, conv=conv, shortcut=partial(conv, kernel=(1, 1)))
        mid = "decoder.mid_block"
        self._post_quant = conv("post_quant_conv", z, z, (1, 1))
        self._conv_in = conv("decoder.conv_in", z, widths[0])
        self._mid_in, self._mid_out = (block(f"{mid}.resnets.{i}", widths[0], widths[0]) for i in range(2))
        self._attention = FrameAttention(weights, ctx, f"{mid}.attentions.0", channels=widths[0])
        self._stages = stages_up(widths, config.num_res_blocks + 1, block, up, halves=True)
        self._norm_out = norm("decoder.norm_out", widths[-1])
        self._conv_out = conv("decoder.conv_out", widths[-1], config.out_channels)
        weights.leave("encoder.", "quant_conv.")
        weights.finish(CLASS_NAME)

    def __call__(self, *, z: torch.Tensor) -> ttnn.Tensor:
        """Latent (B, z, T, H, W) on the host -> frames (B, 1 + 4 (T - 1), local 8 H, local 8 W, 3) in -1..1, cut."""
        shards = ImageShards.of(self._ctx, *z.shape[3:])
        latent = cut_image(self._ctx, z, shards)
        stream = Stream()
        frames = []
        for t in range(z.shape[2]):
            frames.append(self._decode(to_rows(latent[:, t : t + 1], z.shape[0]), shards, stream))
            stream.first = False
        video = ttnn.concat(frames, dim=1) if len(frames) > 1 else frames[0]
        return ttnn.clamp(video, -1.0, 1.0)

    def _decode(self, x: ttnn.Tensor, shards: ImageShards, stream: Stream) -> ttnn.Tensor:
        """Rows (B, 1, N, z) of one latent frame -> its frames (B, T, H, W, 3)."""
        x = self._conv_in(self._post_quant(x, shards, stream), shards, stream)
        at = {"to_norm": (), "to_conv": (shards, stream)}
        x = self._mid_in(x, **at)
        x = self._mid_out(self._attention(x, shards), **at)
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, to_norm=(), to_conv=(shards, stream))
            if up is not None:
                x, shards = up(x, shards, stream)
        x = self._conv_out(self._norm_out(x), shards, stream)
        return to_video(x, shards)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the frames on the host, (B, 3, 1 + 4 (T - 1), 8 H, 8 W); ``sizes``: of the inputs' named dims."""
        shards = ImageShards.of(self._ctx, sizes["height"], sizes["width"])
        return read_image(self._ctx, out, shards.scaled(2 ** (len(self._config.dim_mult) - 1)))
