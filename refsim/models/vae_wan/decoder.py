"""Wan's video decoder: latent in, frames in -1..1 out, one latent frame after the other, images cut over the mesh.

    latent --cut over rows (sp) and columns (tp)--> conv --> mid block --> up blocks (x2, x2 and time, x2 and time, x1)
           --> norm, silu, conv --all_gather over both--> clamp

Frame 0 of the latent makes one frame, every other one four. What a convolution must remember of the frames before is
kept per convolution, so chunks cost no more than their own frames. Each device holds all weights.

Counterpart: ``decode`` of diffusers' ``AutoencoderKLWan``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.convolution import CausalConv3d, Stream
from refsim.models.inputs import BATCH, Dims
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.layers import ChannelNorm, FrameAttention, ResidualBlock, Upsample
from refsim.models.vae_wan.spec import CLASS_NAME
from refsim.parallel.halo import ImageShards, cut_image, gather_image
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


class WanVAEDecoder:
    """``post_quant_conv`` and ``decoder`` of the checkpoint; every key but the encoder's must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: WanVAEConfig) -> None:
        self._device, self._config = device, config
        z, widths = config.z_dim, [config.base_dim * m for m in reversed(config.dim_mult)]
        self._post_quant = CausalConv3d(
            weights, device, "post_quant_conv", in_channels=z, out_channels=z, kernel=(1, 1)
        )
        self._conv_in = CausalConv3d(weights, device, "decoder.conv_in", in_channels=z, out_channels=widths[0])
        mid, same = "decoder.mid_block", {"in_channels": widths[0], "out_channels": widths[0]}
        self._mid_in, self._mid_out = (ResidualBlock(weights, device, f"{mid}.resnets.{i}", **same) for i in range(2))
        self._attention = FrameAttention(weights, device, f"{mid}.attentions.0", channels=widths[0])
        self._stages: list[tuple[list[ResidualBlock], Upsample | None]] = []
        doubles = list(reversed(config.temperal_downsample))
        arriving = widths[0]
        for i, channels in enumerate(widths):
            name, last = f"decoder.up_blocks.{i}", i == len(widths) - 1
            resnets = []
            for j in range(config.num_res_blocks + 1):
                sizes = {"in_channels": arriving, "out_channels": channels}
                resnets.append(ResidualBlock(weights, device, f"{name}.resnets.{j}", **sizes))
                arriving = channels
            up = None
            if not last:
                up = Upsample(weights, device, f"{name}.upsamplers.0", channels=channels, temporal=doubles[i])
                arriving = channels // 2
            self._stages.append((resnets, up))
        self._norm_out = ChannelNorm(weights, device, "decoder.norm_out", channels=arriving, dims=3)
        self._conv_out = CausalConv3d(
            weights, device, "decoder.conv_out", in_channels=arriving, out_channels=config.out_channels
        )
        weights.leave("encoder.", "quant_conv.")
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: WanVAEConfig) -> dict[str, Dims]:
        """Name and shape of the argument of diffusers' ``decode``; a dim with a name may have any size."""
        return {"z": (BATCH, config.z_dim, "frames", "height", "width")}

    def __call__(self, *, z: Tensor) -> Tensor:
        """Map (B, z, T, H, W) on every device to (B, 3, 1 + 4 (T - 1), 8 H, 8 W) in -1..1, on every device."""
        shards = ImageShards.of(self._device, *z.shape[3:])
        latent = cut_image(self._device, z, shards)
        stream, frames = Stream(), []
        for t in range(latent.shape[2]):
            self._device.activity(Kind.DECODING, f"latent frame {t}")
            frames.append(self._decode(latent[:, :, t : t + 1], shards, stream))
            stream.first = False
        return torch.cat(frames, 2).clamp(-1.0, 1.0)

    def _decode(self, x: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        """Map one latent frame to its frames, whole."""
        x = self._conv_in(self._post_quant(x, shards, stream), shards, stream)
        x = self._mid_in(x, shards, stream)
        x = self._mid_out(self._attention(x, shards), shards, stream)
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, shards, stream)
            if up is not None:
                x, shards = up(x, shards, stream)
        return gather_image(self._device, self._conv_out(F.silu(self._norm_out(x)), shards, stream), shards)
