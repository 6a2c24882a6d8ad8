"""The image decoder of Stable Diffusion 3.5: latent in, picture out, cut by rows (sp) and columns or channels (tp).

    latent --cut--> conv --> mid block (attention over all pixels) --> up blocks, x2 each but the last
           --> group norm, silu, conv --all_gather--> picture

                 spatial: tp cuts columns               tensor: tp cuts channels
    convolution  halo of rows and columns               halo of rows; channels gathered before, own ones out
    group norm   statistics merged over both            own groups of channels, statistics merged over rows
    attention    keys and values gathered over both,    channels gathered before, keys and values over rows;
                 queries local                          every member of tp the same, own channels out
    weights      all on every device                    convolutions' and norms' cut, but those of the last

Counterparts: ``decode`` of diffusers' ``AutoencoderKL``; the tensor form is tt_dit's ``VAEParallelConfig``.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.ccl import all_gather
from refsim.files.checkpoint import Weights
from refsim.layers.convolution import Conv2d
from refsim.layers.group_norm import GroupNorm
from refsim.layers.residual import ResidualBlock, stages_up
from refsim.models.inputs import BATCH, Dims
from refsim.models.vae.config import VAEConfig
from refsim.parallel.halo import ImageShards, cut_image, gather_image
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


class ImageAttention:
    """Every pixel over all pixels, one head."""

    def __init__(self, weights: Weights, device: Device, name: str, *, channels: int, groups: int, cut: bool) -> None:
        self._device = device
        self._cut = cut
        self._norm = GroupNorm(weights, device, f"{name}.group_norm", channels=channels, groups=groups, cut=cut)

        def linear(part: str, mine: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
            shape = (channels, channels)
            weight = weights.take(f"{name}.{part}.weight", shape, mine)
            return weight, weights.take(f"{name}.{part}.bias", shape[:1], mine)

        self._q, self._k, self._v = (linear(n) for n in ("to_q", "to_k", "to_v"))
        self._out = linear("to_out.0", shard_range(channels, device.groups["tp"]) if cut else None)

    def __call__(self, x: Tensor, shards: ImageShards) -> Tensor:
        normed = self._norm(x, shards)
        if self._cut:
            normed = all_gather(self._device, normed.contiguous(), self._device.groups["tp"], dim=1)
        normed = normed.movedim(1, -1)  # (B, H, W, C)
        q = F.linear(normed, *self._q).flatten(1, 2).unsqueeze(1)
        kv = torch.cat([F.linear(normed, *self._k), F.linear(normed, *self._v)], -1)
        kv = gather_image(self._device, kv.movedim(-1, 1), shards)
        k, v = kv.movedim(1, -1).flatten(1, 2).unsqueeze(1).chunk(2, -1)
        state = OnlineSoftmax(self._device, q)
        state.attend_in_blocks(k, v, buffer="image")
        out = state.result()[0].squeeze(1).unflatten(1, x.shape[2:])
        return x + F.linear(out, *self._out).movedim(-1, 1)


class VAEDecoder:
    """``post_quant_conv`` and ``decoder`` of the checkpoint; every key but the encoder's must be consumed.

    Raises:
        UserError: norm groups that the tp group cannot share out.
    """

    def __init__(self, weights: Weights, device: Device, config: VAEConfig) -> None:
        self._device = device
        self._config = config
        cut = device.options.vae_parallel == "tensor"
        self._cut = cut
        tp = device.groups["tp"].size
        groups = config.norm_num_groups
        if cut and groups % tp:
            raise UserError(
                f"a decoder with {groups} norm groups cannot cut its channels over tp{tp}; a tp that divides {groups} "
                "can, and --vae-parallel spatial."
            )
        z = config.latent_channels
        widths = config.widths[::-1]

        def norm(name: str, channels: int) -> GroupNorm:
            return GroupNorm(weights, device, name, channels=channels, groups=groups, cut=cut)

        def conv(name: str, in_channels: int, out_channels: int, kernel: int = 3) -> Conv2d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel": kernel}
            return Conv2d(weights, device, name, **sizes, gathers=cut, cuts=cut)

        def up(name: str, channels: int, index: int) -> Conv2d:
            return conv(f"{name}.conv", channels, channels)

        block = partial(ResidualBlock, norm=norm, conv=conv, shortcut=partial(conv, kernel=1))
        self._post_quant = None
        if config.use_post_quant_conv:
            self._post_quant = Conv2d(weights, device, "post_quant_conv", in_channels=z, out_channels=z, kernel=1)
        self._conv_in = Conv2d(weights, device, "decoder.conv_in", in_channels=z, out_channels=widths[0], cuts=cut)
        mid = "decoder.mid_block"
        self._mid_in, self._mid_out = (block(f"{mid}.resnets.{i}", widths[0], widths[0]) for i in range(2))
        self._attention = None
        if config.mid_block_add_attention:
            self._attention = ImageAttention(
                weights, device, f"{mid}.attentions.0", channels=widths[0], groups=groups, cut=cut
            )
        self._stages = stages_up(widths, config.layers_per_block + 1, block, up)
        self._norm_out = norm("decoder.conv_norm_out", widths[-1])
        self._conv_out = Conv2d(
            weights, device, "decoder.conv_out", in_channels=widths[-1], out_channels=config.out_channels, gathers=cut
        )
        weights.leave(*config.left_aside)
        weights.finish(config.class_name)

    @staticmethod
    def input_shapes(config: VAEConfig) -> dict[str, Dims]:
        """Name and shape of the argument of diffusers' ``decode``; a dim with a name may have any size."""
        return {"z": (BATCH, config.latent_channels, "height", "width")}

    def __call__(self, *, z: Tensor) -> Tensor:
        """Map (B, C, H, W) on every device to (B, 3, scale * H, scale * W), on every device."""
        shards = ImageShards.of(self._device, *z.shape[2:], whole_rows=self._cut)
        x = cut_image(self._device, z, shards)
        self._device.activity(Kind.DECODING, "the mid block")
        if self._post_quant is not None:
            x = self._post_quant(x, shards)
        at = {"to_norm": (shards,), "to_conv": (shards,)}
        x = self._mid_in(self._conv_in(x, shards), **at)
        if self._attention is not None:
            x = self._attention(x, shards)
        x = self._mid_out(x, **at)
        for index, (resnets, up) in enumerate(self._stages):
            self._device.activity(Kind.DECODING, "the way up", block=index)
            for resnet in resnets:
                x = resnet(x, to_norm=(shards,), to_conv=(shards,))
            if up is not None:
                shards = shards.scaled(2)
                x = up(x.repeat_interleave(2, -2).repeat_interleave(2, -1), shards)
        return gather_image(self._device, self._conv_out(F.silu(self._norm_out(x, shards)), shards), shards)
