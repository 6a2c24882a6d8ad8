"""A tensor that says how it is laid out over the groups of the mesh.

Legend of the suffixes used in this package: B batch, N image (spatial) tokens, L text (prompt) tokens, D features,
H heads, E head features, F hidden features of the feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from refsim.base.errors import PlacementError
from refsim.runtime.group import Group
from refsim.runtime.kernels import kernel

PARTS = {"sp": ("ring", "ulysses")}
"""A group whose members are those of two others: cut over sp is cut over ring and ulysses."""


@dataclass(frozen=True)
class Replicate:
    """Every member has the whole tensor."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True)
class Shard:
    """Every member has its share of dimension ``dim``, counted from the front."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True)
class Partial:
    """Every member has a term; nothing but a reducing collective may take it."""

    reduce_op: str = "sum"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


@dataclass(frozen=True)
class ByPart:
    """The two parts of a group lay the tensor out differently: after Ulysses, heads over one and tokens over the other.

    This is the placement over the whole group, which nothing can ask for; it is for the sentence of an error.
    """

    parts: tuple[tuple[str, Placement], ...]

    def __str__(self) -> str:
        return f"({', '.join(f'{group}={placement}' for group, placement in self.parts)})"


Placement = Replicate | Shard | Partial | ByPart


def shards(groups: Mapping[str, Group], **dims: int) -> dict[str, Placement]:
    """Return ``Shard(dim)`` for each named group; a group of one cuts nothing and is left out."""
    return {name: Shard(dim) for name, dim in dims.items() if groups[name].size > 1}


@dataclass(frozen=True)
class MeshTensor:
    """The local part of a tensor and its placement per group; a group that is not named is ``Replicate()``.

    Placements mean what those of ``torch.distributed.tensor`` mean, whose import costs most of a second.
    """

    local: Tensor
    placements: dict[str, Placement] = field(default_factory=dict)

    def placement(self, group: str) -> Placement:
        """Return the layout over ``group``: its own, or that of the group it is part of, or of its parts."""
        if group in self.placements:
            return self.placements[group]
        for whole, parts in PARTS.items():
            if group in parts:
                return self.placements.get(whole, Replicate())
            if group == whole:
                placements = tuple((part, self.placement(part)) for part in parts)
                return placements[0][1] if len({placement for _, placement in placements}) == 1 else ByPart(placements)
        return Replicate()

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
        if not changed:
            return MeshTensor(local, self.placements)
        placements = dict(self.placements)
        for whole, parts in PARTS.items():
            if whole in changed:
                placements = {group: placement for group, placement in placements.items() if group not in parts}
            elif whole in placements and changed.keys() & set(parts):
                # what is said of one part stays true of the other
                placements |= dict.fromkeys(parts, placements.pop(whole))
        return MeshTensor(local, {**placements, **changed})

    def moved(self, op: str, local: Tensor, dims: dict[int, int]) -> MeshTensor:
        """Return the same layout around a tensor whose dims have moved: dim ``d`` of this is ``dims[d]`` of ``local``.

        Raises:
            PlacementError: a dim that is cut is not among them.
        """
        placements: dict[str, Placement] = {}
        for group, placement in self.placements.items():
            if isinstance(placement, Shard):
                if placement.dim not in dims:
                    raise PlacementError(f"{op} needs dim {placement.dim} whole but was given {group}={placement}")
                placement = Shard(dims[placement.dim])
            placements[group] = placement
        return MeshTensor(local, placements)

    def map(self, op: str, fn: Callable[[Tensor], Tensor]) -> MeshTensor:
        """Apply an element-wise function to the local part."""
        self.require_no_partial(op)
        return self.with_local(fn(self.local))

    def __add__(self, other: MeshTensor) -> MeshTensor:
        return self._combine("add", other, add)

    def __mul__(self, other: MeshTensor) -> MeshTensor:
        return self._combine("mul", other, mul)

    def _combine(self, op: str, other: MeshTensor, fn: Callable[[Tensor, Tensor], Tensor]) -> MeshTensor:
        for side in (self, other):
            side.require_no_partial(op)
        for group in self.placements.keys() | other.placements.keys():
            mine = self.placement(group)
            theirs = other.placement(group)
            broadcast = (  # one row or feature of ``other``, which every member has, for all of a cut dim
                isinstance(mine, Shard)
                and isinstance(theirs, Replicate)
                and other.local.ndim == self.local.ndim
                and other.local.shape[mine.dim] == 1
            )
            if mine != theirs and not broadcast:
                raise PlacementError(f"{op} needs equal placements but was given {group}={mine} and {theirs}")
        return self.with_local(fn(self.local, other.local))


@kernel("add")
def add(x: Tensor, y: Tensor | float) -> Tensor:
    """Add local tensors in an op of the device."""
    return x + y


@kernel("mul")
def mul(x: Tensor, y: Tensor | float) -> Tensor:
    """Multiply local tensors in an op of the device."""
    return x * y
