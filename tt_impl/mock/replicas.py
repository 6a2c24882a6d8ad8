"""Whether devices that should hold the same values do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import ttnn

from tt_impl.mock.values import ShadowError, Shards

if TYPE_CHECKING:
    from tt_impl.mock.shadow import Shadow


def uneven_axes(shadow: Shadow, tensor: ttnn.Tensor, placements: Sequence[int | None]) -> tuple[int, ...]:
    """Axes that ttnn's topology of ``tensor`` calls replicated although devices along them hold other values.

    ``placements`` has the dim that is cut per axis, None for replicas; one entry for a whole mesh stands for all its
    axes. A tensor whose values nobody knows has no such axes.
    """
    try:
        shards = shadow.store.read(tensor, "replicas")
    except ShadowError:
        return ()
    rows, columns = shards.mesh_shape
    if len(shards) != rows * columns or len(shards) == 1:
        return ()
    if len(placements) == 1:
        placements = tuple(placements) * 2
    return tuple(axis for axis, dim in enumerate(placements) if dim is None and not _equal_along(shards, axis))


def _equal_along(shards: Shards, axis: int) -> bool:
    for first, *others in shards.groups(axis):
        for other in others:
            if shards.key(first) != shards.key(other) and not torch.equal(
                shards[first].nan_to_num(), shards[other].nan_to_num()
            ):
                return False
    return True
