"""CogVideoX's video decoder: latent in, frames out, two latent frames at a time, images cut over the mesh.

    latent --cut over rows (sp) and columns (tp)--> conv --> mid block --> up blocks (x2 and time, x2 and time, x2, x1)
           --> norm, silu, conv --all_gather over both--> frames

norm         group norm (statistics of the whole chunk, gathered) * y(latent) + b(latent): the latent of the chunk,
             through a convolution of 1 each, enlarged to the size of what is normed
time         frame 0 of the latent makes one frame, every other one four; the first chunk takes a frame that is left
             over, so its statistics are over three latent frames where the others have two
convolution  causal; before the first frame stands the first frame itself

Each device holds all weights. Counterpart: ``decode`` of diffusers' ``AutoencoderKLCogVideoX``, without tiling.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.convolution import CausalConv3d, Stream
from refsim.layers.group_norm import GroupNorm
from refsim.layers.residual import ResidualBlock, stages_up
from refsim.models.inputs import BATCH, Dims
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.models.vae_cogvideox.spec import CLASS_NAME
from refsim.parallel.halo import ImageShards, cut_image, exchange_halo, gather_image
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind

_CHUNK = 2  # latent frames; the model is trained with this number


class SpatialNorm:
    """GroupNorm, scaled and shifted by what the latent says at that place and time."""

    def __init__(
        self, weights: Weights, device: Device, name: str, *, channels: int, latent_channels: int, groups: int
    ) -> None:
        self._norm = GroupNorm(weights, device, f"{name}.norm_layer", channels=channels, groups=groups)
        sizes = {"in_channels": latent_channels, "out_channels": channels, "kernel": (1, 1)}
        self._scale, self._shift = (
            CausalConv3d(weights, device, f"{name}.{part}.conv", **sizes) for part in ("conv_y", "conv_b")
        )

    def __call__(self, x: Tensor, latent: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        # a convolution of 1 and nearest enlargement change places: the convolution is of the small one
        scale, shift = (enlarge(conv(latent, shards, stream), x.shape[2:]) for conv in (self._scale, self._shift))
        return self._norm(x, shards) * scale + shift


class Upsample:
    """Twice the height and width, and with ``temporal`` twice the frames (nearest), then a convolution per frame."""

    def __init__(self, weights: Weights, device: Device, name: str, *, channels: int, temporal: bool) -> None:
        self._device = device
        self._temporal = temporal
        self.weight = weights.take(f"{name}.conv.weight", (channels, channels, 3, 3)).unsqueeze(2)
        self.bias = weights.take(f"{name}.conv.bias", (channels,))

    def __call__(self, x: Tensor, shards: ImageShards) -> tuple[Tensor, ImageShards]:
        frames, height, width = x.shape[2:]
        if self._temporal:
            frames = 2 * frames - frames % 2
        shards = shards.scaled(2)
        x = exchange_halo(self._device, enlarge(x, (frames, 2 * height, 2 * width)), shards)
        with self._device.compute("conv3d", x, self.weight):
            return F.conv3d(x, self.weight, self.bias), shards


class CogVideoXVAEDecoder:
    """``decoder`` of the checkpoint; every key but the encoder's must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: CogVideoXVAEConfig) -> None:
        self._device = device
        self._config = config
        widths = config.block_out_channels[::-1]
        z = config.latent_channels
        groups = config.norm_num_groups

        def norm(name: str, channels: int) -> SpatialNorm:
            return SpatialNorm(weights, device, name, channels=channels, latent_channels=z, groups=groups)

        def conv(name: str, in_channels: int, out_channels: int) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels}
            return CausalConv3d(weights, device, f"{name}.conv", **sizes, before="first")

        def shortcut(name: str, in_channels: int, out_channels: int) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels}
            return CausalConv3d(weights, device, name, **sizes, kernel=(1, 1))

        def up(name: str, channels: int, index: int) -> Upsample:
            return Upsample(weights, device, name, channels=channels, temporal=index < config.doublings)

        block = partial(ResidualBlock, norm=norm, conv=conv, shortcut=shortcut)
        self._conv_in = conv("decoder.conv_in", z, widths[0])
        self._mid = [block(f"decoder.mid_block.resnets.{i}", widths[0], widths[0]) for i in range(2)]
        self._stages = stages_up(widths, config.layers_per_block + 1, block, up)
        self._norm_out = norm("decoder.norm_out", widths[-1])
        self._conv_out = conv("decoder.conv_out", widths[-1], config.out_channels)
        weights.leave("encoder.", "quant_conv.")
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: CogVideoXVAEConfig) -> dict[str, Dims]:
        """Name and shape of the argument of diffusers' ``decode``; a dim with a name may have any size."""
        return {"z": (BATCH, config.latent_channels, "frames", "height", "width")}

    def __call__(self, *, z: Tensor) -> Tensor:
        """Map (B, C, T, H, W) to (B, 3, F, 8 H, 8 W), both on every device; F is 4 T, or 4 T - 3 for odd T."""
        shards = ImageShards.of(self._device, *z.shape[3:])
        latent = cut_image(self._device, z, shards)
        stream = Stream()
        frames = []
        start = 0
        stop = _CHUNK + latent.shape[2] % 2
        while start < latent.shape[2]:
            self._device.activity(Kind.DECODING, f"from latent frame {start}")
            frames.append(self._decode(latent[:, :, start:stop], shards, stream))
            start = stop
            stop = stop + _CHUNK
        return torch.cat(frames, 2)

    def _decode(self, latent: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        """Map one chunk of latent frames to its frames, whole."""
        x = self._conv_in(latent, shards, stream)
        for resnet in self._mid:
            x = resnet(x, to_norm=(latent, shards, stream), to_conv=(shards, stream))
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, to_norm=(latent, shards, stream), to_conv=(shards, stream))
            if up is not None:
                x, shards = up(x, shards)
        x = F.silu(self._norm_out(x, latent, shards, stream))
        return gather_image(self._device, self._conv_out(x, shards, stream), shards)


def enlarge(x: Tensor, size: tuple[int, int, int]) -> Tensor:
    """Enlarge (B, C, T, H, W) to multiples of H and W by nearest values, and of T: all frames, or all but the first."""
    frames, height, width = x.shape[2:]
    x = x.repeat_interleave(size[1] // height, -2).repeat_interleave(size[2] // width, -1)
    if size[0] == frames:
        return x
    alone = size[0] % 2
    rest = x[:, :, alone:].repeat_interleave((size[0] - alone) // (frames - alone), 2)
    return torch.cat([x[:, :, :alone], rest], 2)
