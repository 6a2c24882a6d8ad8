"""Groups: the ordered ranks that a collective runs over, cut from the mesh by a parallel configuration."""

from __future__ import annotations

from dataclasses import dataclass

from refsim.base.config import DiTParallelConfig
from refsim.base.errors import InvariantError
from refsim.base.mesh import MeshSpec, Topology


@dataclass(frozen=True)
class Group:
    """One rank's view of a group.

    Attributes:
        name: ``cfg``, ``tp``, ``sp``, ``ring`` or ``ulysses``.
        axis: mesh axis (``cluster_axis``) the group lies on; both axes for a USP group over the whole submesh.
        ranks: global ranks in shard order.
        index: this rank's place in ``ranks``, which is also its shard index.
        topology: None for a group of one.
        num_links: Ethernet links per hop.
    """

    name: str
    axis: int | tuple[int, int]
    ranks: tuple[int, ...]
    index: int
    topology: Topology | None
    num_links: int

    @property
    def size(self) -> int:
        return len(self.ranks)


class _Submesh:
    """Coordinates of one rank inside its cfg group, the part of the mesh that is left when ``cfg`` has cut one axis."""

    def __init__(self, mesh: MeshSpec, config: DiTParallelConfig, rank: int) -> None:
        self.mesh = mesh
        self.config = config
        self.rank = rank
        self.cfg_axis = _one_axis(config.cfg_parallel.mesh_axis)
        self._cut = mesh.shape[self.cfg_axis] // config.cfg
        self._coord = list(mesh.coord(rank))
        self._cfg_index, self._coord[self.cfg_axis] = divmod(self._coord[self.cfg_axis], self._cut)
        self._shape = list(mesh.shape)
        self._shape[self.cfg_axis] = self._cut

    def across_cfg(self) -> list[int]:
        """Return the ranks with this rank's submesh coordinates, one per cfg group."""
        return [self._rank_at(self._coord, cfg_index) for cfg_index in range(self.config.cfg)]

    def along(self, axis: int, other: int | None = None) -> list[int]:
        """Return the ranks met along ``axis``; the coordinate on the other axis is this rank's own, or ``other``."""
        ranks = []
        for i in range(self._shape[axis]):
            coord = list(self._coord)
            coord[axis] = i
            if other is not None:
                coord[1 - axis] = other
            ranks.append(self._rank_at(coord, self._cfg_index))
        return ranks

    def _rank_at(self, coord: list[int], cfg_index: int) -> int:
        row, column = (c + cfg_index * self._cut * (axis == self.cfg_axis) for axis, c in enumerate(coord))
        return self.mesh.rank(row, column)

    def topology(self, axis: int, size: int, spans_axis: bool) -> Topology | None:
        """Return the topology of ``size`` members on ``axis``: the mesh's if they span the whole axis, else Linear."""
        if size == 1:
            return None
        whole = self.mesh.topology(axis) if spans_axis and self._shape[axis] == self.mesh.shape[axis] else None
        return Topology.LINEAR if size == 2 or whole is None else whole

    def group(self, name: str, axis: int | tuple[int, int], ranks: list[int], topology: Topology | None) -> Group:
        links = min(self.mesh.links) if isinstance(axis, tuple) else self.mesh.links[axis]
        return Group(name, axis, tuple(ranks), ranks.index(self.rank), topology, links)


def parallel_groups(mesh: MeshSpec, config: DiTParallelConfig, rank: int) -> dict[str, Group]:
    """Return the groups ``cfg``, ``tp``, ``sp``, ``ring`` and ``ulysses`` that ``rank`` belongs to, by name.

    With submesh coordinates (a, b) inside its cfg group, a rank's sp index is its coordinate on the sp axis, or
    ``ring_coordinate * ulysses + ulysses_coordinate`` where sp covers both axes. Its ring peers share the ulysses
    index and the other way round.
    """
    sub = _Submesh(mesh, config, rank)
    ring = config.ring
    ulysses = config.ulysses
    sp_axis = config.sequence_parallel.mesh_axis
    tp_axis = _one_axis(config.tensor_parallel.mesh_axis)
    ring_axis = _one_axis(config.ring_parallel.mesh_axis)
    ulysses_axis = _one_axis(config.ulysses_parallel.mesh_axis)
    tp_ranks = sub.along(tp_axis) if config.tp > 1 else [rank]
    if isinstance(sp_axis, tuple):
        sp_ranks = [r for i in range(ring) for r in sub.along(ulysses_axis, other=i)]
        sp_topology: Topology | None = Topology.LINEAR
    else:
        sp_ranks = sub.along(sp_axis) if config.sp > 1 else [rank]
        sp_topology = sub.topology(sp_axis, config.sp, True)
    ring_index, ulysses_index = divmod(sp_ranks.index(rank), ulysses)
    ring_ranks = sp_ranks[ulysses_index::ulysses]
    ulysses_ranks = sp_ranks[ring_index * ulysses : (ring_index + 1) * ulysses]
    ulysses_spans_axis = isinstance(sp_axis, tuple) or ring == 1
    groups = (
        sub.group("cfg", sub.cfg_axis, sub.across_cfg(), sub.topology(sub.cfg_axis, config.cfg, False)),
        sub.group("tp", tp_axis, tp_ranks, sub.topology(tp_axis, config.tp, True)),
        sub.group("sp", sp_axis, sp_ranks, sp_topology),
        sub.group("ring", ring_axis, ring_ranks, sub.topology(ring_axis, ring, True)),
        sub.group("ulysses", ulysses_axis, ulysses_ranks, sub.topology(ulysses_axis, ulysses, ulysses_spans_axis)),
    )
    return {group.name: group for group in groups}


def _one_axis(axis: int | tuple[int, int]) -> int:
    """Return ``axis`` of a factor that cannot cover both axes of the submesh (only sp can)."""
    if isinstance(axis, tuple):
        raise InvariantError(f"only sp may cover both mesh axes, but another factor lies on {axis}")
    return axis
