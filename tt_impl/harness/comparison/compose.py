"""What the parts of a tensor on a mesh may be of a whole one: every way to put them together that gives its shape.

    per mesh axis   the same on every device   |  a piece of a dim   |  a summand
                    (taken once)                  (joined)              (added up)

Which one the program means is not known, so all that fit are offered, each with words for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

SAME = "same"
SUM = "sum"


@dataclass(frozen=True)
class Whole:
    """``value``: flat, in the order of the wanted tensor's elements; ``how``: how it was put together."""

    value: torch.Tensor
    how: str


def wholes(parts: list[torch.Tensor], mesh: tuple[int, ...], wanted: torch.Size) -> Iterator[Whole]:
    """Every whole tensor of ``wanted``'s shape that ``parts`` may be the parts of.

    Args:
        parts: one per device, row-major.
        mesh: its shape; ``parts`` on another number of devices count as one row.
        wanted: shape of the torch tensor; dims of one element do not matter, rows of channels-last pictures and heads
            before or behind the sequence are found too.
    """
    rows, columns = mesh if len(mesh) == 2 and math.prod(mesh) == len(parts) else (1, len(parts))
    count = math.prod(wanted)
    size = parts[0].numel()
    if not size:
        return
    dims = parts[0].dim()
    for first, second in itertools.product(_ways(rows, dims), _ways(columns, dims)):
        pieces = (rows if isinstance(first, int) else 1) * (columns if isinstance(second, int) else 1)
        if size * pieces != count:
            continue
        whole = _join([_join(parts[r * columns : (r + 1) * columns], second) for r in range(rows)], first)
        for flat, note in _ordered(whole, wanted):
            how = ", ".join(text for text in (_words(first, 0), _words(second, 1), note) if text)
            yield Whole(flat, how or "whole on each")


def _ways(devices: int, dims: int) -> list[str | int]:
    return [SAME] if devices == 1 else [SAME, *range(dims), SUM]


def _join(parts: list[torch.Tensor], way: str | int) -> torch.Tensor:
    if way == SAME:
        return parts[0]
    return sum(parts[1:], parts[0]) if way == SUM else torch.cat(parts, dim=int(way))


def _words(way: str | int, axis: int) -> str:
    if way == SAME:
        return ""
    return f"summed over axis {axis}" if way == SUM else f"dim {way} over axis {axis}"


def _ordered(whole: torch.Tensor, wanted: torch.Size) -> Iterator[tuple[torch.Tensor, str]]:
    """``whole`` in the order of elements of ``wanted``; as it is if their dims agree, apart from those of one."""
    have = [n for n in whole.shape if n > 1]
    want = [n for n in wanted if n > 1]
    if have == want:
        yield whole.reshape(-1), ""
        return
    if len(wanted) == 4 and have == [n for n in (wanted[0], wanted[2], wanted[3], wanted[1]) if n > 1]:
        yield whole.reshape(wanted[0], wanted[2], wanted[3], wanted[1]).permute(0, 3, 1, 2).reshape(-1), "NHWC"
        return
    if whole.dim() == 4 and len(wanted) == 3 and whole.shape[2] == wanted[1] and whole.shape[0] == wanted[0]:
        if whole.shape[1] * whole.shape[3] == wanted[2]:
            yield whole.permute(0, 2, 1, 3).reshape(-1), "heads joined"
            return
    if len(wanted) == 4 and wanted[0] * wanted[2] * wanted[3] == math.prod(whole.shape[:-1]) > 1:
        picture = whole.reshape(wanted[0], wanted[2], wanted[3], -1)
        yield picture.permute(0, 3, 1, 2).reshape(-1), "NHWC rows"
    yield whole.reshape(-1), "reshaped"
