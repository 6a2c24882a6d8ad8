"""Wan's video decoder: latent in, frames in -1..1 out, one latent frame after the other, images cut over the mesh.

    latent --cut over rows (sp) and columns (tp)--> conv --> mid block --> up blocks (x2, x2 and time, x2 and time, x1)
           --> norm, silu, conv --all_gather over both--> clamp

Frame 0 of the latent makes one frame, every other one four. What a convolution must remember of the frames before is
kept per convolution, so chunks cost no more than their own frames. Each device holds all weights.

Counterpart: ``decode`` of diffusers' ``AutoencoderKLWan``.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.convolution import CausalConv3d, Stream
from refsim.layers.residual import ResidualBlock, stages_up
from refsim.models.inputs import BATCH, Dims
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.layers import ChannelNorm, FrameAttention, Upsample
from refsim.models.vae_wan.spec import CLASS_NAME
from refsim.parallel.halo import ImageShards, cut_image, gather_image
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


class WanVAEDecoder:
    """``post_quant_conv`` and ``decoder`` of the checkpoint; every key but the encoder's must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: WanVAEConfig) -> None:
        self._device = device
        self._config = config
        z = config.z_dim
        widths = [config.base_dim * m for m in reversed(config.dim_mult)]
        doubles = list(reversed(config.temperal_downsample))

        def norm(name: str, channels: int) -> ChannelNorm:
            return ChannelNorm(weights, device, name, channels=channels, dims=3)

        def conv(name: str, in_channels: int, out_channels: int, kernel: tuple[int, int] = (3, 3)) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel": kernel}
            return CausalConv3d(weights, device, name, **sizes)

        def up(name: str, channels: int, index: int) -> Upsample:
            return Upsample(weights, device, name, channels=channels, temporal=doubles[index])

        block = partial(ResidualBlock, norm=norm, conv=conv, shortcut=partial(conv, kernel=(1, 1)))
        mid = "decoder.mid_block"
        self._post_quant = conv("post_quant_conv", z, z, (1, 1))
        self._conv_in = conv("decoder.conv_in", z, widths[0])
        self._mid_in, self._mid_out = (block(f"{mid}.resnets.{i}", widths[0], widths[0]) for i in range(2))
        self._attention = FrameAttention(weights, device, f"{mid}.attentions.0", channels=widths[0])
        self._stages = stages_up(widths, config.num_res_blocks + 1, block, up, halves=True)
        self._norm_out = norm("decoder.norm_out", widths[-1])
        self._conv_out = conv("decoder.conv_out", widths[-1], config.out_channels)
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
        stream = Stream()
        frames = []
        for t in range(latent.shape[2]):
            self._device.activity(Kind.DECODING, f"latent frame {t}")
            frames.append(self._decode(latent[:, :, t : t + 1], shards, stream))
            stream.first = False
        return torch.cat(frames, 2).clamp(-1.0, 1.0)

    def _decode(self, x: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        """Map one latent frame to its frames, whole."""
        x = self._conv_in(self._post_quant(x, shards, stream), shards, stream)
        at = {"to_norm": (), "to_conv": (shards, stream)}
        x = self._mid_in(x, **at)
        x = self._mid_out(self._attention(x, shards), **at)
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, to_norm=(), to_conv=(shards, stream))
            if up is not None:
                x, shards = up(x, shards, stream)
        return gather_image(self._device, self._conv_out(F.silu(self._norm_out(x)), shards, stream), shards)
