"""Pictures and videos cut over rows and columns, sizes that do not divide: layers of the decoders against torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from tests.tt_impl.env import Env, collect, raises

HEIGHT, WIDTH = 5, 13
"""Rows 3 + 2 of 3 over axis 0, columns 4 + 4 + 4 + 1 of 4 over axis 1."""


class _Weights:
    """What a layer takes from a checkpoint."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        x = self._tensors[name.rpartition(".")[2]]
        assert tuple(x.shape) == shape
        return x


def _context(t: Env, **more: Any) -> Any:
    from tt_impl.parallel.context import Context

    return Context(t.device, RunOptions.of(**{"mesh": "t3k", "parallel": "sp2_tp4", "backend": "ttnn-mock"} | more))


def _near(out: Tensor, wanted: Tensor) -> None:
    assert out.shape == wanted.shape
    error = float((out.float() - wanted).square().mean().sqrt() / wanted.std())
    assert error < 0.01, f"relative RMSE {error:.2g}"


def borders(t: Env) -> None:
    """The neighbours' pixels with corners, zeros at the picture's edge and where there is no picture."""
    from tt_impl.parallel.halo import ImageShards, cut_image, exchange_halo, to_image, to_rows, zero_padding

    ctx, x = _context(t), t.rand(1, 3, HEIGHT, WIDTH, scale=8.0).round()
    shards = ImageShards.of(ctx, HEIGHT, WIDTH)
    rows = t.ttnn.add(to_rows(cut_image(ctx, x + 1, shards), 1), -1.0)  # exact: whole numbers; padding holds -1
    wide, padding = exchange_halo(ctx, to_image(zero_padding(ctx, rows, shards), shards), shards)
    assert padding == (0, 0)
    around = F.pad(x, (1, 4, 1, 2)).permute(0, 2, 3, 1)
    parts = [around[:, 3 * r : 3 * r + 5, 4 * c : 4 * c + 6] for r in range(2) for c in range(4)]
    t.check(wide, parts, ulps=2)


def group_norm(t: Env) -> None:
    """Statistics of the picture and of nothing else, of two frames together, then SiLU."""
    from tt_impl.layers.group_norm import GroupNorm
    from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_rows, to_video

    ctx, x = _context(t), t.rand(1, 24, 2, HEIGHT, WIDTH) + 2
    weight, bias = t.rand(24), t.rand(24)
    shards = ImageShards.of(ctx, HEIGHT, WIDTH)
    norm = GroupNorm(_Weights(weight=weight, bias=bias), ctx, "norm", channels=24, groups=8)
    out = norm(to_rows(cut_image(ctx, x, shards), 1), shards, silu=True)
    wanted = F.silu(F.group_norm(x.bfloat16().float(), 8, weight, bias, 1e-6))
    _near(read_image(ctx, to_video(out, shards), shards), wanted)


def chunks_of_a_video(t: Env) -> None:
    """A causal convolution chunk by chunk is one convolution behind zeros, or behind the first frame repeated."""
    from tt_impl.layers.convolution import CausalConv3d, Stream
    from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_rows, to_video

    ctx, x = _context(t), t.rand(1, 8, 4, HEIGHT, WIDTH)
    weight, bias = t.rand(40, 8, 3, 3, 3, scale=0.1), t.rand(40)
    shards = ImageShards.of(ctx, HEIGHT, WIDTH)
    for before in ("zeros", "first"):
        conv = CausalConv3d(
            _Weights(weight=weight, bias=bias), ctx, "conv", in_channels=8, out_channels=40, before=before
        )
        stream, found = Stream(), []
        for chunk in x.split((1, 2, 1), 2):
            rows = conv(to_rows(cut_image(ctx, chunk, shards), 1), shards, stream)
            found.append(read_image(ctx, to_video(rows, shards), shards))
        past = x[:, :, :1].expand(-1, -1, 2, -1, -1) * (before == "first")
        _near(torch.cat(found, 2), F.conv3d(F.pad(torch.cat([past, x], 2), (1, 1, 1, 1)), weight, bias))


def channels_cut(t: Env) -> None:
    """Rows over axis 0 and channels over axis 1: a convolution gathers them and leaves its own."""
    from tt_impl.layers.convolution import Conv2d
    from tt_impl.parallel.halo import ImageShards, cut_image, to_rows

    ctx, x = _context(t, vae_parallel="tensor"), t.rand(1, 16, HEIGHT, 6)
    weight, bias = t.rand(32, 16, 3, 3, scale=0.1), t.rand(32)
    shards = ImageShards.of(ctx, HEIGHT, 6, whole_rows=True)
    conv = Conv2d(_Weights(weight=weight, bias=bias), ctx, "conv", in_channels=16, out_channels=32, cuts=True)
    out = conv(to_rows(cut_image(ctx, x, shards), 1), shards)
    wanted = F.pad(F.conv2d(x, weight, bias, padding=1), (0, 0, 0, 1)).permute(0, 2, 3, 1)
    parts = t.shards(wanted, (1, 3))
    for value, part in zip(t.shadow.values(out), parts, strict=True):
        rows = part.shape[1] if part is parts[0] else HEIGHT - 3  # the last row below is padding
        _near(value.reshape(part.shape)[:, :rows], part[:, :rows])


def refused(t: Env) -> None:
    """Rows over both axes have no neighbours; half a tile of channels has no attention."""
    from tt_impl.layers.pixels import PixelAttention
    from tt_impl.parallel.halo import ImageShards

    both = _context(t, parallel="sp8", attention="usp", ring=4, ulysses=2)
    raises(UserError, lambda: ImageShards.of(both, HEIGHT, WIDTH), "sp8", "on one axis")
    qkv, out = (t.rand(72, 24), t.rand(72)), (t.rand(24, 24), t.rand(24))
    raises(UserError, lambda: PixelAttention(_context(t), qkv, out, channels=24), "24", "multiple of 32")


CASES = collect(globals())
