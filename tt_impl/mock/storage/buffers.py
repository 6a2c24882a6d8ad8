"""The values of a buffer, and how tensors that share it see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tt_impl.mock.storage.padding import Padding
from tt_impl.mock.storage.views import View, seen_by, shared


@dataclass
class BufferValues:
    """What one buffer holds: a value by device, in the shape it was last written in.

    ``padding`` is what fills its tiles up: most operations leave there what their arithmetic makes of their inputs'
    padding, which :mod:`tt_impl.mock.rules.tile_padding` knows of some.
    """

    view: View
    values: dict[int, torch.Tensor]
    padding: Padding = field(default_factory=Padding)
    origin: Any = None
    """The call that wrote them, see :mod:`tt_impl.mock.calls.again`."""

    def seen_by(self, view: View, ranks: Sequence[int]) -> list[torch.Tensor] | None:
        """Return the values of some devices as ``view`` reads them; None if it reads padding that nobody knows."""
        values = [self.values[rank] for rank in ranks]
        if view == self.view:
            return values
        padding = self.padding.single(self.view)
        seen = shared(lambda value: seen_by(value, self.view, view, padding), values)
        return None if any(value is None for value in seen) else seen


@dataclass(frozen=True)
class Window:
    """A tensor that is a part of another one's memory: ``length`` rows of ``dim``, from ``start`` on."""

    whole: View
    dim: int
    start: int
    length: int

    def cut(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return this part of every device's value; devices that share one go on sharing it."""
        return shared(lambda value: value.narrow(self.dim, self.start, self.length), values)

    def pasted(self, former: BufferValues, part: BufferValues) -> BufferValues:
        """Return what the whole buffer holds after this part of it was written."""
        ranks = list(part.values)
        whole = dict(zip(ranks, former.seen_by(self.whole, ranks) or [], strict=True))
        for rank in ranks:
            whole[rank] = whole[rank].clone()
            whole[rank].narrow(self.dim, self.start, self.length).copy_(part.values[rank])
        return BufferValues(self.whole, whole)
