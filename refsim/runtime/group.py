"""Groups: the ordered ranks that a collective runs over, cut from the mesh by a parallel configuration."""

from __future__ import annotations

from dataclasses import dataclass

from refsim.config import DiTParallelConfig
from refsim.mesh import MeshSpec, Topology


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


def parallel_groups(mesh: MeshSpec, config: DiTParallelConfig, rank: int) -> dict[str, Group]:
    """The groups ``cfg``, ``tp``, ``sp``, ``ring``, ``ulysses`` that ``rank`` belongs to.

    With submesh coordinates (a, b) inside its cfg group, a rank's sp index is its coordinate on the sp axis, or
    ``ring_coordinate * ulysses + ulysses_coordinate`` where sp covers both axes. Its ring peers share the ulysses
    index and the other way round.
    """
    cfg_axis = config.cfg_parallel.mesh_axis
    cut = mesh.shape[cfg_axis] // config.cfg
    coord = list(mesh.coord(rank))
    cfg_index, coord[cfg_axis] = divmod(coord[cfg_axis], cut)
    sub_shape = list(mesh.shape)
    sub_shape[cfg_axis] = cut

    def ranks_along(axis: int, cfg_idx: int | None = None, moving: int | None = None) -> list[int]:
        """Ranks met when the submesh coordinate on ``axis`` moves; the rest as given."""
        found = []
        for i in range(sub_shape[axis]):
            c = list(coord)
            c[axis] = i
            if moving is not None:
                c[1 - axis] = moving
            c[cfg_axis] += (cfg_index if cfg_idx is None else cfg_idx) * cut
            found.append(mesh.rank(*c))
        return found

    def make(name: str, axis: int | tuple[int, int], ranks: list[int], topology: Topology | None) -> Group:
        links = min(mesh.links) if isinstance(axis, tuple) else mesh.links[axis]
        return Group(name, axis, tuple(ranks), ranks.index(rank), topology, links)

    def topology_of(axis: int, size: int, spans_axis: bool) -> Topology | None:
        if size == 1:
            return None
        whole = mesh.topology(axis) if spans_axis and sub_shape[axis] == mesh.shape[axis] else Topology.LINEAR
        return Topology.LINEAR if size == 2 else whole

    cfg_ranks = []
    for i in range(config.cfg):
        c = list(coord)
        c[cfg_axis] += i * cut
        cfg_ranks.append(mesh.rank(*c))
    groups = {"cfg": make("cfg", cfg_axis, cfg_ranks, topology_of(cfg_axis, config.cfg, False))}

    tp_axis = config.tensor_parallel.mesh_axis
    tp_ranks = ranks_along(tp_axis) if config.tp > 1 else [rank]
    groups["tp"] = make("tp", tp_axis, tp_ranks, topology_of(tp_axis, config.tp, True))

    sp_axis, ring, ulysses = config.sequence_parallel.mesh_axis, config.ring, config.ulysses
    ring_axis, ulysses_axis = config.ring_parallel.mesh_axis, config.ulysses_parallel.mesh_axis
    if isinstance(sp_axis, tuple):
        sp_ranks = [r for i in range(ring) for r in ranks_along(ulysses_axis, moving=i)]
        sp_topology = None
    else:
        sp_ranks = ranks_along(sp_axis) if config.sp > 1 else [rank]
        sp_topology = topology_of(sp_axis, config.sp, True)
    groups["sp"] = make("sp", sp_axis, sp_ranks, sp_topology or (Topology.LINEAR if config.sp > 1 else None))

    ring_index, ulysses_index = divmod(sp_ranks.index(rank), ulysses)
    ring_ranks = sp_ranks[ulysses_index::ulysses]
    ulysses_ranks = sp_ranks[ring_index * ulysses : (ring_index + 1) * ulysses]
    groups["ring"] = make("ring", ring_axis, ring_ranks, topology_of(ring_axis, ring, True))
    ulysses_whole = isinstance(sp_axis, tuple) or ring == 1
    groups["ulysses"] = make("ulysses", ulysses_axis, ulysses_ranks, topology_of(ulysses_axis, ulysses, ulysses_whole))
    return groups
