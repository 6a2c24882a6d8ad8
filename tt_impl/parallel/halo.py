"""Spatial parallelism of images: rows cut over the sp axis, columns over the tp axis, borders from the neighbours.

    image of 6 x 8 over sp 2 (rows) and tp 2 (columns)        what device (0, 0) needs for a 3 x 3 convolution

        columns 0..3   columns 4..7                               0 0 0 0 0 0      0  the image's own border
        +-----------+ +-----------+  rows 0..2                    0 x x x x e      e  from (0, 1)
        |  (0, 0)   | |  (0, 1)   |                               0 x x x x e      s  from (1, 0)
        +-----------+ +-----------+                               0 x x x x e      c  from (1, 1), by way of (0, 1)
        +-----------+ +-----------+  rows 3..5                    0 s s s s c
        |  (1, 0)   | |  (1, 1)   |
        +-----------+ +-----------+     one op: neighbor_pad_async(dim=[1, 2], cluster_axis=[sp, tp])

Pixels have two forms on the device, the same values in the same order:

    image   (B T, H, W, C), rows of memory (ROW_MAJOR)    convolutions, halos, enlarging, gathers of pixels
    rows    (B, 1, T H W, C), tiles (TILE)                norms, linears, arithmetic, gathers of channels

Sizes that do not divide are padded at the bottom and right. What lies there is multiplied by zero before it meets a
convolution; the op's own ``logical_h`` leaves the padding of columns, and rows that a neighbour sends, as they are.

Legend: B samples, T frames, H and W local rows and columns, C channels, N = T H W.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
import ttnn

from refsim.base.errors import UserError
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import round_up


@dataclass(frozen=True)
class ImageShards:
    """How images of (height, width) are cut: rows over the sp axis, columns over the tp axis.

    Attributes:
        height, width: of the whole image.
        local: rows and columns per device, padding included.
        axes: the mesh axes that rows and columns are cut over; None where one device has them all.
    """

    height: int
    width: int
    local: tuple[int, int]
    axes: tuple[int | None, int | None]
    _cache: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, ctx: Context, height: int, width: int, *, whole_rows: bool = False) -> ImageShards:
        """Cut an image over the mesh; with ``whole_rows`` its columns are not, as the tp axis holds channels."""
        if ctx.sp > 1 and ctx.sp_axis is None:
            raise UserError(
                f"rows over sp{ctx.sp} on both axes of the mesh have no neighbours that TTNN could ask; put sp on one "
                "axis and tp on the other."
            )
        columns = 1 if whole_rows else ctx.tp
        local = (round_up(height, ctx.sp) // ctx.sp, round_up(width, columns) // columns)
        return cls(height, width, local, (ctx.sp_axis if ctx.sp > 1 else None, ctx.tp_axis if columns > 1 else None))

    def scaled(self, by: int) -> ImageShards:
        """Return the cut of the same images ``by`` times as high and wide, every device keeping its part."""
        if by not in self._cache:
            rows, columns = (by * n for n in self.local)
            self._cache[by] = ImageShards(by * self.height, by * self.width, (rows, columns), self.axes)
        return self._cache[by]

    def padded(self, ctx: Context) -> tuple[int, int]:
        """Rows and columns of all devices together, padding included."""
        return tuple(
            n * (1 if axis is None else ctx.shape[axis]) for n, axis in zip(self.local, self.axes, strict=True)
        )

    def mask(
        self, ctx: Context, frames: int, dtype: ttnn.DataType, *, samples: int = 1, across: bool = False
    ) -> object:
        """Ones where a device's rows of ``frames`` frames are image and zeros where they are padding.

        Args:
            across: (samples, 1, 1, N), a row to multiply by, instead of (samples, 1, N, 1).
        """
        key = ("mask", frames, dtype, samples, across)
        if key not in self._cache:
            height, width = self.padded(ctx)
            inside = F.pad(torch.ones(self.height, self.width), (0, width - self.width, 0, height - self.height))
            rows = height // self.local[0]
            columns = width // self.local[1]
            # (rows of devices, columns of devices, N) -> every device's own N, whichever way the axes lie
            cut = (
                inside.view(rows, self.local[0], columns, self.local[1]).transpose(1, 2).flatten(2).repeat(1, 1, frames)
            )
            x = cut.unsqueeze(-2 if across else -1).repeat_interleave(samples, 0)
            self._cache[key] = ctx.put(x, sp_dim=0, tp_dim=1 if columns > 1 else None, dtype=dtype)
        return self._cache[key]

    def inside(self, ctx: Context, images: int, by: int) -> object:
        """Return, for every pixel of a device's ``images`` with halos of ``by``, the number of the pixel nearest to it
        among those of the whole image, (1, N) in uint32; a direction that is not cut has no halo.
        """
        key = ("inside", images, by)
        if key not in self._cache:
            padded = self.padded(ctx)
            nearest = [
                _nearest(size, local, whole // local, 0 if axis is None else by)
                for size, local, whole, axis in zip(
                    (self.height, self.width), self.local, padded, self.axes, strict=True
                )
            ]
            rows, columns = nearest
            pixels = rows[:, None, :, None] * columns.shape[1] + columns[None, :, None]
            step = rows.shape[1] * columns.shape[1]
            x = (torch.arange(images)[:, None] * step + pixels.flatten(2).unsqueeze(2)).flatten(2)
            where = {"sp_dim": 0, "tp_dim": None if self.axes[1] is None else 1}
            index = ctx.put(x.int(), **where, dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT)
            self._cache[key] = ttnn.reshape(index, (1, x.shape[2]))
        return self._cache[key]


def cut_image(ctx: Context, x: torch.Tensor, shards: ImageShards) -> ttnn.Tensor:
    """Every device's image (B, [T,] H, W, C) of (B, C, [T,] height, width) on the host, zero-padded."""
    height, width = shards.padded(ctx)
    x = F.pad(x, (0, width - x.shape[-1], 0, height - x.shape[-2])).movedim(1, -1).contiguous()
    tp_dim = None if shards.axes[1] is None else x.ndim - 2
    return ctx.put(x, sp_dim=x.ndim - 3, tp_dim=tp_dim, layout=ttnn.ROW_MAJOR_LAYOUT)


def read_image(ctx: Context, image: ttnn.Tensor, shards: ImageShards) -> torch.Tensor:
    """Read the whole image (B, C, [T,] height, width) to the host, from the devices' parts (B, [T,] H, W, C)."""
    rows = len(image.shape) - 3
    whole = ctx.get(image, sp_dim=rows, tp_dim=None if shards.axes[1] is None else rows + 1)
    return whole[..., : shards.height, : shards.width, :].movedim(-1, 1)


def gather_image(ctx: Context, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
    """Gather a cut image to the whole one (B T, height, width, C) on every device, padding dropped."""
    for dim, axis, size in ((2, shards.axes[1], shards.width), (1, shards.axes[0], shards.height)):
        if axis is not None:
            x = ctx.ccl.all_gather(x, dim=dim, axis=axis)
        if x.shape[dim] != size:
            x = x[:, :, :size, :] if dim == 2 else x[:, :size, :, :]
    return x


def zero_padding(ctx: Context, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
    """Set those of the rows (B, 1, N, C) that are no image to zero."""
    if shards.padded(ctx) == (shards.height, shards.width):
        return x
    frames = x.shape[2] // (shards.local[0] * shards.local[1])
    return ttnn.multiply(x, shards.mask(ctx, frames, ctx.dtype))


def to_image(rows: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
    """Rows (B, 1, N, C) -> image (B T, H, W, C)."""
    return ttnn.reshape(ttnn.to_layout(rows, ttnn.ROW_MAJOR_LAYOUT), (-1, *shards.local, rows.shape[3]))


def to_rows(image: ttnn.Tensor, samples: int) -> ttnn.Tensor:
    """Image (B T, H, W, C) of B ``samples`` -> rows (B, 1, N, C)."""
    rows = ttnn.reshape(image, (samples, 1, -1, image.shape[-1]))
    return ttnn.to_layout(rows, ttnn.TILE_LAYOUT)


def to_video(rows: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
    """Rows (B, 1, N, C) -> video (B, T, H, W, C), row-major."""
    images = to_image(rows, shards)
    return ttnn.reshape(images, (rows.shape[0], -1, *tuple(images.shape)[1:]))


def _nearest(size: int, local: int, parts: int, by: int) -> torch.Tensor:
    """Return the local number of the real row nearest to each of a device's rows, halos included: (parts, rows)."""
    first = torch.arange(parts)[:, None] * local - by
    rows = torch.arange(local + 2 * by)
    return ((first + rows).clamp(0, size - 1) - first).clamp(0, local + 2 * by - 1)


def exchange_halo(
    ctx: Context, x: ttnn.Tensor, shards: ImageShards, *, by: int = 1, border: Literal["zeros", "edge"] = "zeros"
) -> tuple[ttnn.Tensor, tuple[int, int]]:
    """``by`` more rows and columns around an image whose padding is zero: the neighbours', or those of ``border``.

    Args:
        border: what lies around the whole image: zeros, or its outermost rows and columns, repeated. Where it does not
            divide over the devices, these lie in the padding, and each pixel takes the value of its nearest real one.

    Returns:
        The image, and how many rows and columns of the border a convolution has to add on either side by itself: those
        of directions that are not cut.
    """
    cut = [(dim, axis) for dim, axis in zip((1, 2), shards.axes, strict=True) if axis is not None]
    if cut:
        dims, axes = ([pair[i] for pair in cut] for i in range(2))
        x = ctx.ccl.neighbor_pad(x, dims=dims, axes=axes, by=by, mode="replicate" if border == "edge" else "zeros")
        if border == "edge" and shards.padded(ctx) != (shards.height, shards.width):
            shape = tuple(x.shape)
            index = shards.inside(ctx, shape[0], by)
            table = ttnn.reshape(x, (-1, shape[3]))
            x = ttnn.reshape(ttnn.embedding(index, table, layout=ttnn.ROW_MAJOR_LAYOUT), shape)
    return x, tuple(0 if axis is not None else by for axis in shards.axes)
