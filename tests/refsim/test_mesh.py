"""The named meshes: what they are, and which topology a collective along an axis may assume."""

import pytest

from refsim.errors import UserError
from refsim.mesh import MESHES, MeshSpec, Topology, get_mesh
from tests.refsim.helpers import ALL_MESHES, assert_one_sentence

WORMHOLE, BLACKHOLE = "wormhole_b0", "blackhole"
LINE, RING = Topology.LINEAR, Topology.RING

# name, arch, shape, topology of axis 0 and of axis 1
TABLE = [
    ("n150", WORMHOLE, (1, 1), None, None),
    ("n300", WORMHOLE, (1, 2), None, LINE),
    ("t3k", WORMHOLE, (2, 4), LINE, LINE),
    ("t3k-1x8", WORMHOLE, (1, 8), None, RING),
    ("quietbox", WORMHOLE, (2, 4), LINE, LINE),
    ("tg", WORMHOLE, (8, 4), LINE, LINE),
    ("galaxy", WORMHOLE, (4, 8), RING, RING),
    ("bh-p150", BLACKHOLE, (1, 1), None, None),
    ("bh-p300", BLACKHOLE, (1, 2), None, LINE),
    ("bh-qb", BLACKHOLE, (2, 2), LINE, LINE),
    ("bh-qb-1x4", BLACKHOLE, (1, 4), None, RING),
    ("bh-loudbox", BLACKHOLE, (2, 4), LINE, RING),
    ("bh-galaxy", BLACKHOLE, (4, 8), RING, RING),
]


def test_table_is_complete():
    assert [row[0] for row in TABLE] == list(MESHES)


@pytest.mark.parametrize(("name", "arch", "shape", "rows", "columns"), TABLE, ids=[row[0] for row in TABLE])
def test_named_mesh(name, arch, shape, rows, columns):
    mesh = get_mesh(name)
    assert (mesh.name, mesh.arch, mesh.shape) == (name, arch, shape)
    assert mesh.num_devices == shape[0] * shape[1]
    assert (mesh.topology(0), mesh.topology(1)) == (rows, columns)


@pytest.mark.parametrize(
    ("shape", "torus", "axis", "wanted"),
    [
        ((1, 1), (True, True), 1, None),
        ((4, 1), (False, True), 1, None),
        ((1, 2), (False, True), 1, LINE),
        ((2, 8), (True, False), 0, LINE),
        ((1, 3), (False, False), 1, RING),
        ((8, 1), (False, False), 0, RING),
        ((4, 4), (False, True), 0, LINE),
        ((4, 4), (False, True), 1, RING),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_topology_rule(shape, torus, axis, wanted):
    """One device: none. Two: a line. A 1-D mesh: a ring. An axis of a 2-D mesh: a line unless it is a torus."""
    assert MeshSpec("some", "some", WORMHOLE, shape, (1, 1), torus).topology(axis) is wanted


@pytest.mark.parametrize("mesh", ALL_MESHES, ids=lambda mesh: mesh.name)
def test_only_axes_with_neighbours_have_links(mesh):
    assert [links > 0 for links in mesh.links] == [size > 1 for size in mesh.shape]


@pytest.mark.parametrize("mesh", ALL_MESHES, ids=lambda mesh: mesh.name)
def test_ranks_and_coordinates_are_inverse_and_row_major(mesh):
    coords = [mesh.coord(rank) for rank in range(mesh.num_devices)]
    assert coords == [(row, column) for row in range(mesh.shape[0]) for column in range(mesh.shape[1])]
    assert [mesh.rank(*coord) for coord in coords] == list(range(mesh.num_devices))


def test_a_mesh_is_its_own_name():
    mesh = MeshSpec("mine", "mine", WORMHOLE, (3, 5), (1, 1))
    assert get_mesh(mesh) is mesh


def test_unknown_mesh_lists_the_names():
    with pytest.raises(UserError) as caught:
        get_mesh("t4k")
    assert_one_sentence(str(caught.value))
    assert caught.value.exit_code == 2
    assert "'t4k'" in str(caught.value)
    assert all(name in str(caught.value) for name in MESHES)


@pytest.mark.parametrize("shape", [(0, 4), (2, -1), (8,), (2, 4.0), (True, 2)])
def test_a_mesh_has_devices(shape):
    with pytest.raises(UserError, match=r"mesh mine has shape .*; give \(rows, columns\), both at least 1"):
        MeshSpec("mine", "mine", "blackhole", shape, (1, 1))
