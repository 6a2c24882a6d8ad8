"""ttnn's convolution of videos, with a kernel laid out once and blocks that fit a core's memory.

    video (B, T, H, W, C)                          one core at a time
      C in blocks of C_in_block     --gather-->    64 patches x K,  K = J L M C_in_block    (row-major, then tiles)
      O in blocks of C_out_block                   K x C_out_block of the kernel            (tiles)
      8 x 8 pixels of a frame                      64 x C_out_block, summed in fp32 over the blocks of C

What stands on the right lies in L1 together. The pair of blocks with the most arithmetic per byte that still fits is
taken; it does not depend on the size of the picture, so the kernel is laid out for it when it is loaded.

Legend: B videos, T frames, H and W rows and columns, C channels, O channels out, J x L x M kernel over (T, H, W).
"""

from __future__ import annotations

import math

import torch
import ttnn

from tt_impl.layers.linear import pad_to
from tt_impl.parallel.context import Context, filled
from tt_impl.parallel.halo import to_rows
from tt_impl.parallel.padding import TILE, round_up
from tt_impl.parallel.programs import divisors

L1_BYTES = 1_200_000
"""What the blocks may take of a core's 1.43 MB (Wormhole); kernels, bias and staging are in the rest."""
DST_TILES = 4
"""Tiles of fp32 sums that a core's registers hold: more tiles of channels out than that are a multiple of it."""
_SIDE = 8
"""Rows and columns of pixels that a core takes at a time."""


class Conv3d:
    """A convolution without padding of its own but what it is told.

    Args:
        weight: (O, C, J, L, M) on the host.
        bias: (O,) on the host.
    """

    def __init__(self, ctx: Context, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._ctx = ctx
        self._kernel = tuple(weight.shape[2:])
        self._out = weight.shape[0]
        # The op pads its output to whole tiles of channels, and a reshape would read that memory as if it were not:
        # all padded channels are asked for, and those that are none are dropped later.
        self._out_padded, self._in = (round_up(size, TILE) for size in weight.shape[:2])
        self._blocks = blocks(self._in, self._out_padded, math.prod(self._kernel))
        weight = pad_to(filled(weight), self._out_padded, *weight.shape[1:])
        self._weight = ttnn.experimental.prepare_conv3d_weights(
            weight_tensor=ctx.host(weight), C_in_block=self._blocks[0], device=ctx.device
        )
        self._bias = ctx.put(pad_to(bias, self._out_padded)[None])

    def __call__(
        self, video: ttnn.Tensor, *, padding: tuple[int, int, int] = (0, 0, 0), mode: str = "zeros"
    ) -> ttnn.Tensor:
        """Video (B, T, H, W, C), row-major -> rows (B, 1, T' H' W', O).

        ``padding``: frames, rows and columns on either side, zeros or (``mode`` "replicate") the outermost ones again.
        """
        out = ttnn.experimental.conv3d(
            input_tensor=self._with_whole_tiles(video),
            weight_tensor=self._weight,
            bias_tensor=self._bias,
            device=self._ctx.device,
            config=config(self._ctx, self._blocks, video.shape[2], video.shape[3]),
            dtype=self._ctx.dtype,
            output_channels=self._out_padded,
            kernel_size=self._kernel,
            padding=padding,
            padding_mode=mode,
            compute_kernel_config=self._ctx.linear_config,
        )
        rows = to_rows(out, video.shape[0])
        return rows if self._out_padded == self._out else rows[:, :, :, : self._out]

    def _with_whole_tiles(self, video: ttnn.Tensor) -> ttnn.Tensor:
        """Channels filled up to a multiple of 32, as the op takes no other number; no published decoder needs it."""
        if video.shape[4] == self._in:
            return video
        b, t, h, w, c = video.shape
        images = ttnn.reshape(video, (b * t, h, w, c))
        images = ttnn.pad(images, [(0, 0), (0, 0), (0, 0), (0, self._in - c)], 0.0)
        return ttnn.reshape(images, (b, t, h, w, self._in))


def config(ctx: Context, blocks: tuple[int, int], height: int, width: int) -> ttnn.Conv3dConfig:
    """Return the op's settings for :func:`blocks` and images of so many pixels."""
    return ttnn.Conv3dConfig(
        weights_dtype=ctx.dtype,
        output_layout=ttnn.ROW_MAJOR_LAYOUT,
        C_in_block=blocks[0],
        C_out_block=blocks[1],
        H_out_block=min(_SIDE, height),
        W_out_block=min(_SIDE, width),
        compute_with_storage_grid_size=ctx.device.compute_with_storage_grid_size(),
    )


def blocks(channels: int, out_channels: int, taps: int) -> tuple[int, int]:
    """(C_in_block, C_out_block) for a kernel of ``taps`` positions; both numbers of channels are multiples of 32."""

    def parts(size: int) -> list[int]:
        return [TILE * n for n in divisors(size // TILE)]

    def l1_bytes(c_in: int, c_out: int) -> int:
        k = taps * c_in
        patches = _SIDE * _SIDE
        return 2 * k * (2 * patches + c_out) + patches * c_out * 6

    widths = [c for c in parts(out_channels) if c % min(c, DST_TILES * TILE) == 0]
    pairs = [(c_in, c_out) for c_in in parts(channels) for c_out in widths]
    fitting = [pair for pair in pairs if l1_bytes(*pair) <= L1_BYTES]
    return max(fitting, key=lambda pair: (pair[0] * pair[1], pair[0]), default=(TILE, TILE))
