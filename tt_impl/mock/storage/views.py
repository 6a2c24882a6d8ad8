"""What lies where in a buffer, so that one buffer can be read by views of several shapes.

A tensor in tile layout is filled up to whole tiles, which lie one after the other; a row-major one is flat. A view
has another shape, of the same elements in the same memory: most views are a plain reshape, the others go through
the order in memory. What fills tiles up is one number per buffer, or unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tt_impl.mock.storage.constants import single
from tt_impl.mock.storage.errors import ShadowError


@dataclass(frozen=True)
class View:
    """Shape of a tensor, the shape that its memory has room for, and the tile it is cut into (None: row-major)."""

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    tile: tuple[int, int] | None

    def is_reshape_of(self, other: View) -> bool:
        """Tell whether both see the same elements in the same order."""
        if math.prod(self.shape) != math.prod(other.shape):
            return False
        if 0 in self.shape:
            return True
        whole = self.shape == self.padded and other.shape == other.padded
        if self.tile is None:
            return whole
        same = slice(-1 if whole else -2, None)
        return self.shape[same] == other.shape[same] and self.padded[same] == other.padded[same]

    @property
    def room(self) -> int:
        """How many elements its memory has room for."""
        return math.prod(self.rows()[1])

    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return shape and padded shape with at least two dims, as memory has them."""
        rank = max(2, len(self.shape), len(self.padded))
        shape, padded = ((1,) * (rank - len(sizes)) + sizes for sizes in (self.shape, self.padded))
        if self.tile is not None:
            height, width = self.tile
            padded = (*padded[:-2], -(-padded[-2] // height) * height, -(-padded[-1] // width) * width)
        return shape, padded


def shared(function: Callable[[torch.Tensor], Any], values: Iterable[torch.Tensor]) -> list[Any]:
    """Return ``function`` of every value, computed once for values that are one object."""
    values = list(values)
    known = {id(value): value for value in values}
    results = {key: function(value) for key, value in known.items()}
    return [results[id(value)] for value in values]


def one_of(value: torch.Tensor, known: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the tensor of ``known`` that has the bits of ``value``, zeros' signs too; ``value`` if there is none."""
    return next((other for other in known if _same_bits(value, other)), value)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b or a.dtype != b.dtype or a.shape != b.shape:
        return a is b
    return torch.equal(bits_of(a), bits_of(b))


def bits_of(value: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers of the same bits."""
    return value.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.itemsize])


def seen_by(value: torch.Tensor, written: View, view: View, padding: float | None) -> torch.Tensor | None:
    """Read ``value``, written in the shape of ``written``, as ``view`` does; None if that reads unknown padding."""
    if view.is_reshape_of(written):
        return value.reshape(view.shape)
    if (one := single(value)) is not None and padding == float(one) and written.room == view.room:
        return one.expand(view.shape)
    if padding is None:
        unknown = _reread(torch.zeros(written.shape, dtype=torch.bool), written, view, True)
        if bool(unknown.any()):
            return None
    return _reread(value, written, view, padding or 0)


def _reread(value: torch.Tensor, written: View, view: View, padding: float | bool) -> torch.Tensor:
    """Read ``value`` in another shape by way of its order in memory."""
    shape, padded = written.rows()
    sides = [side for have, want in zip(shape[::-1], padded[::-1], strict=True) for side in (0, want - have)]
    memory = _in_order(F.pad(value.reshape(shape), sides, value=padding), written.tile)
    shape, padded = view.rows()
    if memory.numel() != math.prod(padded):
        raise ShadowError(
            f"a tensor of shape {view.shape} sees a part of a buffer of shape {written.shape}, but nothing told which."
        )
    whole = _from_order(memory, padded, view.tile)
    return whole[tuple(slice(size) for size in shape)].reshape(view.shape)


def _in_order(value: torch.Tensor, tile: tuple[int, int] | None) -> torch.Tensor:
    if tile is None:
        return value.reshape(-1)
    height, width = tile
    tiles = value.reshape(-1, value.shape[-2] // height, height, value.shape[-1] // width, width)
    return tiles.transpose(2, 3).reshape(-1)


def _from_order(memory: torch.Tensor, padded: tuple[int, ...], tile: tuple[int, int] | None) -> torch.Tensor:
    if tile is None:
        return memory.reshape(padded)
    height, width = tile
    tiles = memory.reshape(-1, padded[-2] // height, padded[-1] // width, height, width)
    return tiles.transpose(2, 3).reshape(padded)
