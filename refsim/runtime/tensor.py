"""A tensor that says how it is laid out over the groups of the mesh.

Legend of the suffixes used in this package: B batch, N image (spatial) tokens, L text (prompt) tokens, D features,
H heads, E head features, F hidden features of the feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from refsim.errors import PlacementError

__all__ = ["MeshTensor", "Partial", "Placement", "Replicate", "Shard"]


@dataclass(frozen=True)
class MeshTensor:
    """The local part of a tensor and its placement per group; a group that is not named is ``Replicate()``.

    Placements are those of ``torch.distributed.tensor``. ``Partial("sum")`` holds a term of a sum that is still to
    be reduced: nothing but a reducing collective may take it.
    """

    local: Tensor
    placements: dict[str, Placement] = field(default_factory=dict)

    def placement(self, group: str) -> Placement:
        return self.placements.get(group, Replicate())

    @property
    def shape(self) -> torch.Size:
        return self.local.shape

    def require(self, op: str, **wanted: Placement) -> None:
        """Raise ``PlacementError`` unless this tensor is laid out as ``op`` needs it."""
        for group, placement in wanted.items():
            if self.placement(group) != placement:
                raise PlacementError(f"{op} needs {group}={placement} but was given {group}={self.placement(group)}")

    def require_no_partial(self, op: str) -> None:
        for group, placement in self.placements.items():
            if isinstance(placement, Partial):
                raise PlacementError(
                    f"{op} needs a full value but was given {group}={placement}; reduce it over {group} first"
                )

    def with_local(self, local: Tensor, **changed: Placement) -> MeshTensor:
        """Return a tensor of the same layout (but for ``changed``) around another local part."""
        return MeshTensor(local, {**self.placements, **changed})

    def map(self, op: str, fn: Callable[[Tensor], Tensor]) -> MeshTensor:
        """Apply an element-wise function to the local part."""
        self.require_no_partial(op)
        return self.with_local(fn(self.local))

    def __add__(self, other: MeshTensor) -> MeshTensor:
        return self._combine("add", other, self.local.add)

    def __mul__(self, other: MeshTensor) -> MeshTensor:
        return self._combine("mul", other, self.local.mul)

    def _combine(self, op: str, other: MeshTensor, fn: Callable[[Tensor], Tensor]) -> MeshTensor:
        for side in (self, other):
            side.require_no_partial(op)
        for group in self.placements.keys() | other.placements.keys():
            mine, theirs = self.placement(group), other.placement(group)
            broadcast = isinstance(mine, Shard) and isinstance(theirs, Replicate)
            broadcast = broadcast and other.local.ndim == self.local.ndim and other.local.shape[mine.dim] == 1
            if mine != theirs and not broadcast:
                raise PlacementError(f"{op} needs equal placements but was given {group}={mine} and {theirs}")
        return self.with_local(fn(other.local))
