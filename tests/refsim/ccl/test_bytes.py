"""Bytes that every rank sends, against the closed formulas of the docstrings."""

import pytest

from refsim.base.mesh import Topology
from tests.refsim.ccl.groups import GROUPS, members
from tests.refsim.helpers import passing_on_bytes, run, sent

SHAPE, ELEMENTS = [8, 6, 5], 240
SIZES = {"float32": 4, "bfloat16": 2}


def sent_by_all(collective, group, dtype="float32", shape=SHAPE, **options) -> list[int]:
    """Bytes per rank; checks that nothing but this collective over this group was sent."""
    mesh, parallel, name = GROUPS[group]
    arguments = {"collective": collective, "group": name, "dtype": dtype, "shape": shape, **options}
    result = run("one_collective", mesh, parallel, arguments)
    counted = [sent(of_rank, collective, name) for of_rank in result.bytes_per_rank]
    assert counted == [sum(of_rank.values()) for of_rank in result.bytes_per_rank]
    assert sum(counted) == sum(result.bytes_by_collective.values())
    return counted


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("group", GROUPS)
def test_all_gather(group, dtype):
    """Ring: (n-1) B. Line: ((i+1) [i < n-1] + (n-i) [i > 0]) B."""
    size = ELEMENTS * SIZES[dtype]
    wanted = [passing_on_bytes(m, size) for m in members(group)]
    assert sent_by_all("all_gather", group, dtype, dim=1, chunk_bytes=100) == wanted


def test_all_gather_formulas_by_hand():
    """What the formula means, written out for four members of 10 bytes each."""
    ring, line = members("ring4-bh_loudbox_axis1")[:4], members("line4-t3k_axis1")[:4]
    assert [passing_on_bytes(m, 10) for m in ring] == [30, 30, 30, 30]
    assert [passing_on_bytes(m, 10) for m in line] == [10, 50, 50, 10]


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("group", GROUPS)
def test_reduce_scatter(group, dtype):
    """(n-1)/n B, on a Ring and on a Line."""
    size = ELEMENTS * SIZES[dtype]
    wanted = [(m.size - 1) * size // m.size for m in members(group)]
    assert sent_by_all("reduce_scatter", group, dtype, dim=0, chunk_bytes=100) == wanted


@pytest.mark.parametrize("shape", [SHAPE, [7, 7, 5]], ids=["divides", "padded"])
@pytest.mark.parametrize("group", GROUPS)
def test_all_reduce(group, shape):
    """Padded to n equal slices: (n-1)/n B of reduce_scatter plus all_gather of B/n; on a Ring 2 (n-1)/n B."""
    wanted = []
    for m in members(group):
        slice_bytes = -(-shape[0] * shape[1] * shape[2] // m.size) * 4
        wanted.append((m.size - 1) * slice_bytes + passing_on_bytes(m, slice_bytes))
        if m.topology is Topology.RING:
            assert wanted[-1] == 2 * (m.size - 1) * slice_bytes
    assert sent_by_all("all_reduce", group, shape=shape) == wanted


@pytest.mark.parametrize("group", GROUPS)
def test_all_to_all(group):
    """(n-1)/n B, on a Ring and on a Line."""
    wanted = [(m.size - 1) * ELEMENTS * 4 // m.size for m in members(group)]
    assert sent_by_all("all_to_all", group, split_dim=0, concat_dim=2) == wanted


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("group", GROUPS)
def test_broadcast(group, root):
    """B per arm from the root, B from the middle of an arm, nothing from its end; (n-1) B over the group."""
    size = ELEMENTS * 4
    wanted = []
    for m in members(group):
        left, right = (m.size - 1 - m.size // 2, m.size // 2) if m.topology is Topology.RING else (root, None)
        right = m.size - 1 - root if right is None else right
        distance = (m.index - root) % m.size if m.topology is Topology.RING else m.index - root
        distance -= m.size if distance > right else 0
        if distance == 0:
            wanted.append(size * ((left > 0) + (right > 0)))
        else:
            wanted.append(size * (distance not in (right, -left)))
    counted = sent_by_all("broadcast", group, root=root, chunk_bytes=100)
    assert counted == wanted
    groups = {m.ranks: m for m in members(group)}
    for ranks, m in groups.items():
        assert sum(counted[rank] for rank in ranks) == (m.size - 1) * size


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("group", ["ring8-t3k_1x8", "ring4-bh_loudbox_axis1", "line2-n300"])
def test_shift(group, by):
    assert sent_by_all("shift", group, by=by) == [ELEMENTS * 4] * len(members(group))


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("group", GROUPS)
def test_neighbor_pad(group, by):
    """``by`` rows to each neighbour; the ends never meet, also on a Ring."""
    wanted = [((m.index > 0) + (m.index + 1 < m.size)) * by * 8 * 5 * 4 for m in members(group)]
    assert sent_by_all("neighbor_pad", group, dim=1, by=by, chunk_bytes=100) == wanted
