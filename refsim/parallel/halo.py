"""Spatial parallelism of images: rows cut over one group, columns over another, borders handed to the neighbours.

    image of 6 x 8 over sp 2 (rows) and tp 2 (columns)        what member (0, 0) needs for a 3 x 3 convolution

        columns 0..3   columns 4..7                               0 0 0 0 0 0      0  the image's own border
        +-----------+ +-----------+  rows 0..2                    0 x x x x e      e  from (0, 1), first hop
        |  (0, 0)   | |  (0, 1)   |                               0 x x x x e      s  from (1, 0), first hop
        +-----------+ +-----------+                               0 x x x x e      c  from (1, 1): (1, 0)'s rows
        +-----------+ +-----------+  rows 3..5                    0 s s s s c         travel with (0, 1)'s columns
        |  (1, 0)   | |  (1, 1)   |
        +-----------+ +-----------+

Rows travel first, then columns of what that made, so corners arrive without a hop of their own. Sizes that do not
divide are padded at the bottom and right; padding is set to zero before every exchange, as the border of the image is
(or its outermost rows and columns are repeated there).

Bytes sent per member and exchange, r and c the bytes of a halo's rows and (extended) columns:
``r * neighbours above and below + c * neighbours left and right``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.ccl import all_gather, neighbor_pad
from refsim.parallel.padding import round_up
from refsim.parallel.sequence import TokenShards
from refsim.runtime.device import Device
from refsim.runtime.group import Group


@dataclass(frozen=True)
class ImageShards:
    """How images of (..., height, width) are cut: rows over the sp group, columns over the tp group.

    Attributes:
        whole_rows: columns are not cut, as the tp group holds channels.
    """

    rows: TokenShards
    columns: TokenShards
    whole_rows: bool

    @classmethod
    def of(cls, device: Device, height: int, width: int, *, whole_rows: bool = False) -> ImageShards:
        def cut(size: int, factor: int) -> TokenShards:
            return TokenShards(size, factor, round_up(size, factor) // factor)

        columns = 1 if whole_rows else device.groups["tp"].size
        return cls(cut(height, device.groups["sp"].size), cut(width, columns), whole_rows)

    def across(self, device: Device) -> Group:
        """Return the group that columns are cut over; this device alone where they are not."""
        group = device.groups["tp"]
        return replace(group, ranks=(device.rank,), index=0, topology=None) if self.whole_rows else group

    def scaled(self, by: int) -> ImageShards:
        """Return the cut of the same images ``by`` times as high and wide, every member keeping its part."""
        rows, columns = (TokenShards(by * s.logical_n, s.factor, by * s.local_n) for s in (self.rows, self.columns))
        return ImageShards(rows, columns, self.whole_rows)

    def real(self, device: Device) -> tuple[int, int]:
        """Return how many local rows and columns are image, not padding."""
        top, bottom = self.rows.tokens(device.groups["sp"].index)
        left, right = self.columns.tokens(self.across(device).index)
        return bottom - top, right - left


def cut_image(device: Device, x: Tensor, shards: ImageShards) -> Tensor:
    """Return this member's part (..., local height, local width) of a full image, zero-padded."""
    rows = shards.rows.cut(x, device.groups["sp"].index, dim=-2)
    return shards.columns.cut(rows, shards.across(device).index, dim=-1)


def gather_image(device: Device, x: Tensor, shards: ImageShards) -> Tensor:
    """Return the full image (..., height, width) on every member, the padding dropped."""
    x = all_gather(device, x.contiguous(), shards.across(device), dim=-1).narrow(-1, 0, shards.columns.logical_n)
    return all_gather(device, x.contiguous(), device.groups["sp"], dim=-2).narrow(-2, 0, shards.rows.logical_n)


def zero_padding(device: Device, x: Tensor, shards: ImageShards) -> Tensor:
    """Return the local part with what is no image set to zero."""
    height, width = shards.real(device)
    if (height, width) == tuple(x.shape[-2:]):
        return x
    return F.pad(x[..., :height, :width], (0, x.shape[-1] - width, 0, x.shape[-2] - height))


def exchange_halo(
    device: Device, x: Tensor, shards: ImageShards, *, by: int = 1, border: Literal["zeros", "edge"] = "zeros"
) -> Tensor:
    """Return (..., local height, local width) with ``by`` more rows and columns all around, the neighbours'.

    Args:
        by: at most the local height and width, so that a halo comes from the next member alone.
        border: what lies around the whole image: zeros, or its outermost rows and columns, repeated.
    """
    x = zero_padding(device, x, shards)
    for group, cut, dim in ((device.groups["sp"], shards.rows, -2), (shards.across(device), shards.columns, -1)):
        x = neighbor_pad(device, x, group, dim=dim, by=by)
        if border == "edge":
            x = _repeat_edges(x, cut, group.index, dim, by)
    return x


def _repeat_edges(x: Tensor, cut: TokenShards, member: int, dim: int, by: int) -> Tensor:
    """Set rows before the first of the image and behind its last one to these; ``x`` has ``by`` rows on either side."""
    first = member * cut.local_n - by
    rows = torch.arange(first, first + x.shape[dim], device=x.device).clamp(0, cut.logical_n - 1) - first
    return x.index_select(dim, rows.clamp(0, x.shape[dim] - 1))
