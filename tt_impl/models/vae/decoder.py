"""The image decoder of one cfg group; counterpart of ``refsim.models.vae.decoder``.

    latent --cut--> conv --> mid block (attention over all pixels) --> up blocks, x2 each but the last
           --> group norm, silu, conv --> picture, cut

                 spatial: tp cuts columns               tensor: tp cuts channels
    convolution  halo of rows and columns, one op       halo of rows; channels gathered before, own ones out
    group norm   sums of both axes                      own groups of channels, sums of rows
    attention    keys and values gathered over both,    channels gathered before, keys and values over rows;
                 queries local                          every member of tp the same, own channels out
    weights      all on every device                    convolutions' and norms' cut, but those of the last

Between layers pixels are rows (B, 1, N, C) in tiles, see ``tt_impl.parallel.halo``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.vae.config import VAEConfig
from tt_impl.layers.convolution import Conv2d
from tt_impl.layers.group_norm import GroupNorm
from tt_impl.layers.pixels import PixelAttention
from tt_impl.layers.residual import ResidualBlock, stages_up
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_image, to_rows, zero_padding
from tt_impl.parallel.tensor import gather_features


class ImageAttention:
    """Every pixel over all pixels, one head."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, channels: int, groups: int, cut: bool) -> None:
        self._ctx = ctx
        self._cut = cut
        self._norm = GroupNorm(weights, ctx, f"{name}.group_norm", channels=channels, groups=groups, cut=cut)

        def linear(part: str) -> tuple[torch.Tensor, torch.Tensor]:
            shape = (channels, channels)
            return weights.take(f"{name}.{part}.weight", shape), weights.take(f"{name}.{part}.bias", shape[:1])

        qkv = [torch.cat(parts) for parts in zip(*(linear(n) for n in ("to_q", "to_k", "to_v")), strict=True)]
        self._attention = PixelAttention(ctx, qkv, linear("to_out.0"), channels=channels, cuts=cut)

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
        normed = self._norm(x, shards)
        if self._cut:
            normed = gather_features(self._ctx, normed)
        return ttnn.add(x, self._attention(normed, shards))


class VAEDecoder:
    """Built on one submesh from a checkpoint's ``post_quant_conv`` and ``decoder``; every key but the encoder's must be
    consumed.

    Raises:
        UserError: norm groups that the tp group cannot share out.
    """

    def __init__(self, weights: Weights, ctx: Context, config: VAEConfig) -> None:
        self._ctx = ctx
        self._config = config
        cut = ctx.options.vae_parallel == "tensor"
        self._cut = cut
        groups = config.norm_num_groups
        if cut and groups % ctx.tp:
            raise UserError(
                f"a decoder with {groups} norm groups cannot cut its channels over tp{ctx.tp}; a tp that divides "
                f"{groups} can, and --vae-parallel spatial."
            )
        z = config.latent_channels
        widths = config.widths[::-1]

        def norm(name: str, channels: int) -> Callable[..., ttnn.Tensor]:
            norm = GroupNorm(weights, ctx, name, channels=channels, groups=groups, cut=cut)
            return partial(norm, silu=True)

        def conv(name: str, in_channels: int, out_channels: int, kernel: int = 3) -> Conv2d:
            sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel": kernel}
            return Conv2d(weights, ctx, name, **sizes, gathers=cut, cuts=cut)

        def up(name: str, channels: int, index: int) -> Conv2d:
            return conv(f"{name}.conv", channels, channels)

        block = partial(ResidualBlock, norm=norm, conv=conv, shortcut=partial(conv, kernel=1))
        self._post_quant = None
        if config.use_post_quant_conv:
            self._post_quant = Conv2d(weights, ctx, "post_quant_conv", in_channels=z, out_channels=z, kernel=1)
        self._conv_in = Conv2d(weights, ctx, "decoder.conv_in", in_channels=z, out_channels=widths[0], cuts=cut)
        mid = "decoder.mid_block"
        self._mid_in, self._mid_out = (block(f"{mid}.resnets.{i}", widths[0], widths[0]) for i in range(2))
        self._attention = None
        if config.mid_block_add_attention:
            self._attention = ImageAttention(
                weights, ctx, f"{mid}.attentions.0", channels=widths[0], groups=groups, cut=cut
            )
        self._stages = stages_up(widths, config.layers_per_block + 1, block, up)
        self._norm_out = norm("decoder.conv_norm_out", widths[-1])
        self._conv_out = Conv2d(
            weights, ctx, "decoder.conv_out", in_channels=widths[-1], out_channels=config.out_channels, gathers=cut
        )
        weights.leave(*config.left_aside)
        weights.finish(config.class_name)

    def __call__(self, *, z: torch.Tensor) -> ttnn.Tensor:
        """Latent (B, C, H, W) on the host -> image (B, local H, local W, 3) on the device, cut as it is."""
        ctx = self._ctx
        shards = ImageShards.of(ctx, *z.shape[2:], whole_rows=self._cut)
        x = cut_image(ctx, z, shards)
        if self._post_quant is not None:
            x = self._post_quant(to_rows(x, z.shape[0]), shards)
        at = {"to_norm": (shards,), "to_conv": (shards,)}
        x = self._mid_in(self._conv_in(x, shards), **at)
        if self._attention is not None:
            x = self._attention(x, shards)
        x = self._mid_out(x, **at)
        for resnets, up in self._stages:
            for resnet in resnets:
                x = resnet(x, to_norm=(shards,), to_conv=(shards,))
            if up is not None:
                x = self._enlarged(x, shards)
                shards = shards.scaled(2)
                x = up(x, shards)
        return to_image(self._conv_out(self._norm_out(x, shards), shards), shards)

    def _enlarged(self, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
        """Rows of ``shards`` -> an image twice as high and wide, for a convolution that gathers its channels itself."""
        return ttnn.upsample(to_image(zero_padding(self._ctx, x, shards), shards), 2)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the picture on the host, (B, 3, scale * H, scale * W); ``sizes``: those of the inputs' named dims."""
        shards = ImageShards.of(self._ctx, sizes["height"], sizes["width"], whole_rows=self._cut)
        return read_image(self._ctx, out, shards.scaled(self._config.scale))
