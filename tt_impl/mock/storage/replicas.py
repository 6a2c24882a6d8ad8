"""Whether devices that should hold the same values do."""

from __future__ import annotations

import torch
import ttnn

from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.values import ProgramValues, Shards


def placements_of(tensor: ttnn.Tensor) -> tuple[int | None, ...]:
    """Return per axis of the distribution that ttnn knows of the dim that is cut along it, None for replicas."""
    return tuple(getattr(placement, "dim", None) for placement in tensor.tensor_topology().placements())


def cut_axes(tensor: ttnn.Tensor) -> tuple[int, ...]:
    """Return the axes along which ttnn's topology of ``tensor`` cuts it; a distribution over the mesh is along both."""
    placements = placements_of(tensor)
    per_axis = placements * 2 if len(placements) == 1 else placements
    return tuple(axis for axis, dim in enumerate(per_axis) if dim is not None)


def uneven_axes(shadow: ProgramValues, tensor: ttnn.Tensor) -> tuple[int, ...]:
    """Find axes that ttnn's topology of ``tensor`` calls replicated although devices along them hold other values.

    A distribution over the mesh as a whole stands for both axes. What nobody knows the values of has no such axes.
    """
    placements = placements_of(tensor)
    if None not in placements:
        return ()
    try:
        shards = shadow.store.read(tensor, "replicas")
        return tuple(axis for axis in _replicated(placements, shards) if not _equal_along(shards, axis))
    except ShadowError:
        return ()


def _replicated(placements: tuple[int | None, ...], shards: Shards) -> list[int]:
    rows, columns = shards.mesh_shape
    if len(shards) != rows * columns or len(shards) == 1:
        return []
    per_axis = placements * 2 if len(placements) == 1 else placements
    return [axis for axis, dim in enumerate(per_axis) if dim is None]


def _equal_along(shards: Shards, axis: int) -> bool:
    pairs = ((first, other) for first, *others in shards.groups(axis) for other in others)
    return all(shards.stored[a] is shards.stored[b] or _same(shards[a], shards[b]) for a, b in pairs)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors hold the same numbers; what is no number equals only what is none either."""
    return bool(((one == other) | ((one != one) & (other != other))).all())
