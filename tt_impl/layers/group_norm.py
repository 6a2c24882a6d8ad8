"""GroupNorm whose statistics are those of the whole picture, however it is cut.

    picture cut      mask . x  and  mask . x^2 --> (mean, mean square) per group, of all pixels, this device's share
                     --all_gather over columns, then rows; summed--> the picture's --> x * scale + shift per channel

    picture whole    ttnn.group_norm, one op: grid of cores and masks are pinned per number of pixels, as its own choice
                     can be a grid on which the cores wait for each other forever

Padding counts for nothing: the mask is zero there, and sums, in fp32, are divided by the picture's number of pixels.
Bytes sent per member: 8 (n - 1) per sample, group of channels and member of either axis.

Legend: B samples, N local pixels (of all frames), C local channels, G local groups.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.parallel.context import Context, filled
from tt_impl.parallel.halo import ImageShards
from tt_impl.parallel.padding import TILE

SILU = ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)


class GroupNorm:
    """Of rows (B, 1, N, C); exact, padding counts for nothing.

    Args:
        cut: channels are cut over tp, whole groups of them on every device.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        channels: int,
        groups: int,
        cut: bool = False,
        eps: float = 1e-6,
    ) -> None:
        parts = ctx.tp if cut else 1
        affine = [filled(weights.take(f"{name}.{part}", (channels,))) for part in ("weight", "bias")]
        picture_is_whole = ctx.sp == 1 and parts == ctx.tp
        norm = _WholePicture if picture_is_whole and channels // parts % TILE == 0 else _CutPicture
        self._norm = norm(ctx, affine, channels // parts, groups // parts, cut=cut, eps=eps)

    def __call__(self, x: ttnn.Tensor, shards: ImageShards, *, silu: bool = False) -> ttnn.Tensor:
        """Rows in, rows of the same shape and dtype out, through SiLU if asked for."""
        return self._norm(x, shards, silu=silu)


class _CutPicture:
    """Own sums, gathered."""

    def __init__(
        self, ctx: Context, affine: list[torch.Tensor], channels: int, groups: int, *, cut: bool, eps: float
    ) -> None:
        self._ctx = ctx
        self._eps = eps
        self._groups = groups
        tp_dim = 3 if cut else None
        self._weight, self._bias = (ctx.put(p[None, None, None], tp_dim=tp_dim, dtype=ttnn.float32) for p in affine)
        member = torch.eye(groups).repeat_interleave(channels // groups, 0)  # (C, G): which channel is of which group
        self._member = member
        self._of_group = ctx.put(member.t()[None, None], dtype=ttnn.float32)
        self._shares: dict[int, ttnn.Tensor] = {}

    def __call__(self, x: ttnn.Tensor, shards: ImageShards, *, silu: bool) -> ttnn.Tensor:
        mean, mean_square = self._moments(x, shards)
        variance = ttnn.subtract(mean_square, ttnn.multiply(mean, mean))
        inverse = ttnn.rsqrt(ttnn.add(variance, self._eps))
        scale = ttnn.multiply(self._per_channel(inverse), self._weight)
        shift = ttnn.subtract(self._bias, ttnn.multiply(self._per_channel(mean), scale))
        scaled = ttnn.multiply(x, scale, dtype=ttnn.float32)
        return ttnn.add(scaled, shift, dtype=x.dtype, activations=[SILU] if silu else [])

    def _moments(self, x: ttnn.Tensor, shards: ImageShards) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Mean and mean square of every group over the whole picture, (B, 1, 1, G) in fp32."""
        ctx = self._ctx
        samples = x.shape[0]
        frames = x.shape[2] // (shards.local[0] * shards.local[1])
        mask = shards.mask(ctx, frames, x.dtype, samples=samples, across=True)
        square = ttnn.multiply(x, x, dtype=ttnn.float32)
        sums = ttnn.concat([self._matmul(mask, x), self._matmul(mask, square)], dim=1)  # (B, 2, 1, C)
        pixels = frames * shards.height * shards.width
        if pixels not in self._shares:
            share = self._member / (pixels * self._member[:, 0].sum())
            self._shares[pixels] = ctx.put(share[None, None], dtype=ttnn.float32)
        moments = self._matmul(sums, self._shares[pixels])  # (B, 2, 1, G)
        for axis in reversed(shards.axes):
            if axis is not None:
                moments = self._summed(moments, axis)
        return moments[:, :1], moments[:, 1:]

    def _summed(self, moments: ttnn.Tensor, axis: int) -> ttnn.Tensor:
        """Sum moments over the devices of an axis."""
        samples = moments.shape[0]
        gathered = self._ctx.ccl.all_gather(moments, dim=0, axis=axis)
        gathered = ttnn.reshape(gathered, (-1, 2 * samples, 1, self._groups))
        return ttnn.reshape(ttnn.sum(gathered, dim=0, keepdim=True), (samples, 2, 1, self._groups))

    def _per_channel(self, x_G: ttnn.Tensor) -> ttnn.Tensor:
        return self._matmul(x_G, self._of_group)

    def _matmul(self, a: ttnn.Tensor, b: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.matmul(a, b, dtype=ttnn.float32, compute_kernel_config=self._ctx.norm_config)


class _WholePicture:
    """``ttnn.group_norm`` on a grid that is computed once per number of pixels."""

    def __init__(
        self, ctx: Context, affine: list[torch.Tensor], channels: int, groups: int, *, cut: bool, eps: float
    ) -> None:
        self._ctx = ctx
        self._eps = eps
        self._affine = affine
        self._channels = channels
        self._groups = groups
        self._axis = ctx.tp_axis if cut and ctx.tp > 1 else None
        self._prepared: dict[tuple[int, int], tuple] = {}

    def __call__(self, x: ttnn.Tensor, shards: ImageShards, *, silu: bool) -> ttnn.Tensor:
        grid, (weight, bias), mask = self._pinned(x.shape[0], x.shape[2])
        y = ttnn.group_norm(
            x,
            num_groups=self._groups,
            epsilon=self._eps,
            input_mask=mask,
            weight=weight,
            bias=bias,
            core_grid=grid,
            inplace=False,
            num_out_blocks=-1,
            output_layout=ttnn.TILE_LAYOUT,
            use_welford=True,
            compute_kernel_config=self._ctx.norm_config,
        )
        return ttnn.silu(y) if silu else y

    def _pinned(self, samples: int, pixels: int) -> tuple:
        """Return the grid for so many pixels, and weights and masks laid out for it."""
        key = samples, pixels
        if key not in self._prepared:
            device = self._ctx.device
            grid = ttnn.determine_expected_group_norm_dram_grid_size(
                device=device,
                num_channels=self._channels,
                num_groups=self._groups,
                input_nhw=samples * pixels,
                num_batches=samples,
            )
            params, mask = ttnn.dram_group_norm_params_from_torch(
                self._affine, self._channels, self._groups, device, mesh_axis=self._axis, core_grid=grid
            )
            self._prepared[key] = grid, params, mask
        return self._prepared[key]
