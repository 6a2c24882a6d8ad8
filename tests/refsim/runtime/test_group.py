"""Groups cut from the mesh: every rank in exactly one group of a kind, and the same group seen by all its members."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.base.config import parse_parallel, valid_configs
from refsim.base.mesh import Topology, get_mesh
from tests.refsim.helpers import ALL_MESHES, groups_of

NAMES = ("cfg", "tp", "sp", "ring", "ulysses")


@st.composite
def placed(draw):
    """(mesh, config): any mesh, any factors that fit it, any split of sp into ring x ulysses that fits."""
    mesh = draw(st.sampled_from(ALL_MESHES))
    configs = [_usp(mesh, text, ring) for text in valid_configs(mesh) for ring in _divisors(text)]
    if not mesh.is_1d:
        configs += [_usp(mesh, f"sp{mesh.num_devices}", ring) for ring in mesh.shape]
        configs += [_usp(mesh, f"cfg2@{axis}_sp{mesh.num_devices // 2}", ring) for axis, ring in _halves(mesh)]
    return mesh, draw(st.sampled_from(configs))


def _halves(mesh):
    for axis in (0, 1):
        left = [size // 2 if a == axis else size for a, size in enumerate(mesh.shape)]
        if mesh.shape[axis] % 2 == 0 and min(left) > 1:
            yield from ((axis, ring) for ring in left)


def _usp(mesh, text, ring):
    return parse_parallel(text, mesh, attention="usp", ring=ring)


def _divisors(text):
    sp = next((int(token[2:]) for token in text.split("_") if token.startswith("sp")), 1)
    return [d for d in range(1, sp + 1) if sp % d == 0]


@settings(max_examples=150, deadline=None)
@given(placed())
def test_every_kind_of_group_partitions_the_ranks(case):
    mesh, config = case
    every = groups_of(mesh, config)
    for name in NAMES:
        kinds = {groups[name].ranks for groups in every}
        assert sorted(rank for ranks in kinds for rank in ranks) == list(range(mesh.num_devices))
        assert {len(ranks) for ranks in kinds} == {getattr(config, name)}
        for rank, groups in enumerate(every):
            assert groups[name].ranks[groups[name].index] == rank
            assert groups[name].size == getattr(config, name)


@settings(max_examples=150, deadline=None)
@given(placed())
def test_indices_cover_the_mesh_and_compose(case):
    """(cfg, tp, sp) indices name every device once; sp index = ring index * ulysses + ulysses index."""
    mesh, config = case
    every = groups_of(mesh, config)
    indices = {tuple(groups[name].index for name in ("cfg", "tp", "sp")) for groups in every}
    assert indices == {(c, t, s) for c in range(config.cfg) for t in range(config.tp) for s in range(config.sp)}
    for groups in every:
        assert groups["sp"].index == groups["ring"].index * config.ulysses + groups["ulysses"].index


@settings(max_examples=150, deadline=None)
@given(placed())
def test_members_of_a_group_differ_only_in_that_index(case):
    mesh, config = case
    every = groups_of(mesh, config)
    others = {
        "cfg": ("tp", "sp"),
        "tp": ("cfg", "sp"),
        "sp": ("cfg", "tp"),
        "ring": ("cfg", "tp", "ulysses"),
        "ulysses": ("cfg", "tp", "ring"),
    }
    for name, fixed in others.items():
        for groups in every:
            for other in fixed:
                assert len({every[rank][other].index for rank in groups[name].ranks}) == 1


@settings(max_examples=150, deadline=None)
@given(placed())
def test_a_group_lies_on_its_axis_with_a_topology_the_mesh_has(case):
    mesh, config = case
    for groups in groups_of(mesh, config):
        for group in groups.values():
            coords = [mesh.coord(rank) for rank in group.ranks]
            if isinstance(group.axis, int):
                assert len({coord[1 - group.axis] for coord in coords}) == 1
                assert group.num_links == mesh.links[group.axis]
                if group.topology is Topology.RING:
                    assert mesh.topology(group.axis) is Topology.RING
            if group.size <= 2:
                assert group.topology is (None if group.size == 1 else Topology.LINEAR)
            else:
                assert group.topology is not None


@pytest.mark.parametrize(
    ("mesh", "parallel", "options", "rank", "wanted"),
    [
        ("t3k", "sp2_tp4", {}, 5, {"sp": (1, 5), "tp": (4, 5, 6, 7), "ring": (1, 5), "ulysses": (5,)}),
        ("t3k", "sp4_tp2", {}, 5, {"sp": (4, 5, 6, 7), "tp": (1, 5)}),
        ("t3k", "cfg2_sp2_tp2", {}, 6, {"cfg": (4, 6), "sp": (2, 6), "tp": (6, 7)}),
        ("t3k", "cfg2_tp4", {}, 6, {"cfg": (2, 6), "sp": (6,), "tp": (4, 5, 6, 7)}),
        ("t3k", "ring2_ulysses4", {}, 6, {"sp": tuple(range(8)), "ring": (2, 6), "ulysses": (4, 5, 6, 7)}),
        ("t3k", "ring4_ulysses2", {}, 6, {"sp": (0, 4, 1, 5, 2, 6, 3, 7), "ring": (4, 5, 6, 7), "ulysses": (2, 6)}),
        ("t3k", "sp4_tp2_ring2", {}, 6, {"sp": (4, 5, 6, 7), "ring": (4, 6), "ulysses": (6, 7), "tp": (2, 6)}),
        ("t3k-1x8", "ring4_ulysses2", {}, 3, {"ring": (1, 3, 5, 7), "ulysses": (2, 3)}),
    ],
    ids=lambda value: str(value).replace(" ", "") if isinstance(value, str) else "",
)
def test_groups_of_a_rank(mesh, parallel, options, rank, wanted):
    spec = get_mesh(mesh)
    groups = groups_of(spec, parse_parallel(parallel, spec, attention="usp" if "ring" in parallel else "ring"))[rank]
    assert {name: groups[name].ranks for name in wanted} == wanted


@pytest.mark.parametrize(
    ("mesh", "parallel", "group", "topology"),
    [
        ("t3k-1x8", "sp8", "sp", Topology.RING),
        ("t3k-1x8", "cfg2_sp4", "sp", Topology.LINEAR),
        ("t3k-1x8", "cfg2_sp4", "cfg", Topology.LINEAR),
        ("t3k-1x8", "ring2_ulysses4", "ulysses", Topology.LINEAR),
        ("t3k-1x8", "ring4_ulysses2", "ring", Topology.RING),
        ("t3k", "sp2_tp4", "tp", Topology.LINEAR),
        ("bh-loudbox", "sp2_tp4", "tp", Topology.RING),
        ("bh-loudbox", "sp2_tp4", "sp", Topology.LINEAR),
        ("galaxy", "cfg2_sp4_tp4", "sp", Topology.RING),
        ("galaxy", "cfg2_sp4_tp4", "tp", Topology.LINEAR),
        ("n150", "sp1", "sp", None),
    ],
)
def test_half_an_axis_is_a_line(mesh, parallel, group, topology):
    """A run of neighbours that is not the whole axis has no wrap-around link."""
    spec = get_mesh(mesh)
    config = parse_parallel(parallel, spec, attention="usp" if "ring" in parallel else "ring")
    assert {groups[group].topology for groups in groups_of(spec, config)} == {topology}
