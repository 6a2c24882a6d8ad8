"""Wan's video decoder of one cfg group; counterpart of ``refsim.models.vae_wan.decoder``.

    latent --cut over rows (sp) and columns (tp)--> conv --> mid block --> up blocks (x2, x2 and time, x2 and time, x1)
           --> norm, silu, conv --> clamp, frames stay cut

Frame 0 of the latent makes one frame, every other one four. What a convolution must remember of the frames before is
kept per convolution on the device, so chunks cost no more than their own frames. Each device holds all weights.

Between layers pixels are rows (B, 1, N, C) in tiles, see ``tt_impl.parallel.halo``.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.spec import CLASS_NAME
from tt_impl.layers.convolution import CausalConv3d, Stream
from tt_impl.models.vae_wan.layers import ChannelNorm, FrameAttention, ResidualBlock, Upsample
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_rows, to_video


class WanVAEDecoder:
    """Built on one submesh from a checkpoint's ``post_quant_conv`` and ``decoder``; every key but the encoder's must be
    consumed.
    """

    def __init__(self, weights: Weights, ctx: Context, config: WanVAEConfig) -> None:
        self._ctx, self._config = ctx, config
        z, widths = config.z_dim, [config.base_dim * m for m in reversed(config.dim_mult)]
        self._post_quant = CausalConv3d(weights, ctx, "post_quant_conv", in_channels=z, out_channels=z, kernel=(1, 1))
        self._conv_in = CausalConv3d(weights, ctx, "decoder.conv_in", in_channels=z, out_channels=widths[0])
        mid, same = "decoder.mid_block", {"in_channels": widths[0], "out_channels": widths[0]}
        self._mid_in, self._mid_out = (ResidualBlock(weights, ctx, f"{mid}.resnets.{i}", **same) for i in range(2))
        self._attention = FrameAttention(weights, ctx, f"{mid}.attentions.0", channels=widths[0])
        self._stages: list[tuple[list[ResidualBlock], Upsample | None]] = []
        doubles = list(reversed(config.temperal_downsample))
        arriving = widths[0]
        for i, channels in enumerate(widths):
            name, last = f"decoder.up_blocks.{i}", i == len(widths) - 1
            resnets = []
            for j in range(config.num_res_blocks + 1):
                sizes = {"in_channels": arriving, "out_channels": channels}
                resnets.append(ResidualBlock(weights, ctx, f"{name}.resnets.{j}", **sizes))
                arriving = channels
            up = None
            if not last:
                up = Upsample(weights, ctx, f"{name}.upsamplers.0", channels=channels, temporal=doubles[i])
                arriving = channels // 2
            self._stages.append((resnets, up))
        self._norm_out = ChannelNorm(weights, ctx, "decoder.norm_out", channels=arriving, dims=3)
        self._conv_out = CausalConv3d(
            weights, ctx, "decoder.conv_out", in_channels=arriving, out_channels=config.out_channels
        )
        weights.leave("encoder.", "quant_conv.")
        weights.finish(CLASS_NAME)

    def __call__(self, *, z: torch.Tensor) -> ttnn.Tensor:
        """Latent (B, z, T, H, W) on the host -> frames (B, 1 + 4 (T - 1), local 8 H, local 8 W, 3) in -1..1, cut."""
        shards = ImageShards.of(self._ctx, *z.shape[3:])
        latent = cut_image(self._ctx, z, shards)
        stream, frames = Stream(), []
        for t in range(z.shape[2]):
            frames.append(self._decode(to_rows(latent[:, t : t + 1], z.shape[0]), shards, stream))
            stream.first = False
        video = ttnn.concat(frames, dim=1) if len(frames) > 1 else frames[0]
        return ttnn.clamp(video, -1.0, 1.0)

    def _decode(self, x: ttnn.Tensor, shards: ImageShards, stream: Stream) -> ttnn.Tensor:
        """Rows (B, 1, N, z) of one latent frame -> its frames (B, T, H, W, 3)."""
        x = self._conv_in(self._post_quant(x, shards, stream), shards, stream)
        x = self._mid_in(x, shards, stream)
        x = self._mid_out(self._attention(x, shards), shards, stream)
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, shards, stream)
            if up is not None:
                x, shards = up(x, shards, stream)
        x = self._conv_out(self._norm_out(x, silu=True), shards, stream)
        return to_video(x, shards)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """The frames on the host, (B, 3, 1 + 4 (T - 1), 8 H, 8 W); ``sizes`` are those of the inputs' named dims."""
        shards = ImageShards.of(self._ctx, sizes["height"], sizes["width"])
        return read_image(self._ctx, out, shards.scaled(2 ** (len(self._config.dim_mult) - 1)))
