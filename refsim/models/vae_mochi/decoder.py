"""Mochi's video decoder: latent in, frames out, two latent frames at a time, images cut over the mesh.

    latent --cut over rows (sp) and columns (tp)--> conv of 1 --> blocks --> [blocks, linear, enlarge] x 3 --> blocks
           --> silu, linear --all_gather over both--> frames, the first ones dropped

norm         group norm of every frame by itself (statistics gathered), so latent frames need not come all at once
convolution  causal; before the first frame stands the first frame, around a frame its outermost pixels
enlarge      a linear gives each place all values of what it becomes: channels outermost, then time, rows, columns
time         a latent frame makes six frames, the first latent frame one: the five before it are dropped

Each device holds all weights. Counterpart: ``decode`` of diffusers' ``AutoencoderKLMochi``, all frames at once.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.convolution import CausalConv3d, Stream
from refsim.layers.group_norm import GroupNorm
from refsim.layers.linear import Linear
from refsim.layers.residual import ResidualBlock
from refsim.models.inputs import BATCH, Dims
from refsim.models.vae_mochi.config import EPS, GROUPS, MochiVAEConfig, chunks
from refsim.models.vae_mochi.spec import CLASS_NAME
from refsim.parallel.halo import ImageShards, cut_image, gather_image
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


class FrameNorm:
    """GroupNorm of every frame."""

    def __init__(self, weights: Weights, device: Device, name: str, channels: int) -> None:
        self._norm = GroupNorm(weights, device, f"{name}.norm_layer", channels=channels, groups=GROUPS, eps=EPS)

    def __call__(self, x: Tensor, shards: ImageShards) -> Tensor:
        frames = x.transpose(1, 2)
        return self._norm(frames.flatten(0, 1), shards).unflatten(0, frames.shape[:2]).transpose(1, 2)


class Enlarge:
    """``proj``: a linear whose result is dealt out over ``frames`` times the frames and ``side`` times the rows."""

    def __init__(
        self, weights: Weights, device: Device, name: str, sizes: tuple[int, int], *, frames: int, side: int
    ) -> None:
        self._device = device
        self._by = (-1, frames, side, side)
        self._side = side
        out = sizes[1] * frames * side**2
        self._proj = Linear(weights, f"{name}.proj", in_features=sizes[0], out_features=out)

    def __call__(self, x: Tensor, shards: ImageShards) -> tuple[Tensor, ImageShards]:
        y = pixelwise(self._device, self._proj, x).unflatten(1, self._by)  # (B, C, t, h, w, T, H, W)
        y = y.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(6).flatten(4, 5).flatten(2, 3)
        return y, shards.scaled(self._side)


def pixelwise(device: Device, linear: Linear, x: Tensor) -> Tensor:
    """Apply a linear to the channels of (B, C, T, H, W)."""
    with device.compute("linear", x, linear.weight):
        return linear(x.movedim(1, -1)).movedim(-1, 1)


class MochiVAEDecoder:
    """``decoder`` of the checkpoint; every key but the encoder's must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: MochiVAEConfig) -> None:
        self._device = device
        self._config = config
        widths = config.decoder_block_out_channels[::-1]
        norm = partial(FrameNorm, weights, device)

        def conv(name: str, in_channels: int, out_channels: int) -> CausalConv3d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels}
            return CausalConv3d(weights, device, f"{name}.conv", **sizes, before="first", border="edge")

        def blocks(name: str, count: int, channels: int) -> list[ResidualBlock]:
            make = partial(ResidualBlock, norm=norm, conv=conv, shortcut=conv)
            return [make(f"decoder.{name}.resnets.{i}", channels, channels) for i in range(count)]

        first, *counts, last = config.layers_per_block[::-1]
        expansions = zip(config.temporal_expansions[::-1], config.spatial_expansions[::-1], strict=True)
        self._conv_in = CausalConv3d(
            weights,
            device,
            "decoder.conv_in",
            in_channels=config.latent_channels,
            out_channels=widths[0],
            kernel=(1, 1),
        )
        self._in = blocks("block_in", first, widths[0])
        self._stages = [
            (
                blocks(f"up_blocks.{i}", counts[i], widths[i]),
                Enlarge(weights, device, f"decoder.up_blocks.{i}", widths[i : i + 2], frames=frames, side=side),
            )
            for i, (frames, side) in enumerate(expansions)
        ]
        self._out = blocks("block_out", last, widths[-1])
        self._proj_out = Linear(weights, "decoder.proj_out", in_features=widths[-1], out_features=config.out_channels)
        weights.leave("encoder.")
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: MochiVAEConfig) -> dict[str, Dims]:
        """Name and shape of the argument of diffusers' ``decode``; a dim with a name may have any size."""
        return {"z": (BATCH, config.latent_channels, "frames", "height", "width")}

    def __call__(self, *, z: Tensor) -> Tensor:
        """Map (B, C, T, H, W) to (B, 3, 6 T - 5, 8 H, 8 W), both on every device."""
        shards = ImageShards.of(self._device, *z.shape[3:])
        latent = cut_image(self._device, z, shards)
        stream = Stream()
        frames = []
        start = 0
        for chunk in latent.split(chunks(latent.shape[2]), 2):
            self._device.activity(Kind.DECODING, f"from latent frame {start}")
            frames.append(self._decode(chunk, shards, stream))
            start += chunk.shape[2]
        return torch.cat(frames, 2)[:, :, self._config.ratios[0] - 1 :].contiguous()

    def _decode(self, x: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        """Map one chunk of latent frames to its frames, whole."""
        x = self._conv_in(x, shards, stream)
        x = self._run(self._in, x, shards, stream)
        for resnets, enlarge in self._stages:
            x, shards = enlarge(self._run(resnets, x, shards, stream), shards)
        x = F.silu(self._run(self._out, x, shards, stream))
        return gather_image(self._device, pixelwise(self._device, self._proj_out, x), shards)

    @staticmethod
    def _run(resnets: list[ResidualBlock], x: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        for resnet in resnets:
            x = resnet(x, to_norm=(shards,), to_conv=(shards, stream))
        return x
