"""The named meshes: what they are, and which topology a collective along an axis may assume."""

import json

import pytest

from refsim.api import attention_result
from refsim.base.errors import UserError
from refsim.base.mesh import MESHES, MeshSpec, Topology, get_mesh
from refsim.base.options import RunOptions
from tests.refsim.helpers import (
    ALL_MESHES,
    TIMEOUT_S,
    assert_matches,
    assert_one_sentence,
    attention_inputs,
    real_rows,
    serial_attention,
)

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


# A mesh of one's own ------------------------------------------------------------------------------------------------


def mesh_file(folder, text, name="my_mesh.json"):
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return str(path)


def test_a_file_needs_a_shape_alone(tmp_path):
    mesh = get_mesh(mesh_file(tmp_path, {"shape": [1, 6]}))
    assert mesh == MeshSpec("my_mesh", "a mesh of one's own", WORMHOLE, (1, 6), (0, 1))
    assert mesh.topology(1) is RING


def test_a_file_says_all_that_a_mesh_is(tmp_path):
    said = {"name": "four-galaxies", "system": "4 x Galaxy", "arch": BLACKHOLE, "shape": [8, 16], "links": [4, 2]}
    mesh = get_mesh(mesh_file(tmp_path, said | {"torus": [True, False]}))
    assert mesh == MeshSpec("four-galaxies", "4 x Galaxy", BLACKHOLE, (8, 16), (4, 2), (True, False))
    assert (mesh.num_devices, mesh.topology(0), mesh.topology(1)) == (128, RING, LINE)
    assert RunOptions.of(mesh=mesh, parallel="sp8_tp16").mesh == mesh


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({}, "lacks shape; it must be a list of 2, each a whole number from 1 to 1024"),
        ({"shape": 8}, "has shape = 8; it must be a list of 2"),
        ({"shape": [0, 4]}, r"has shape = \[0, 4\]; it must be a list of 2"),
        ({"shape": [2, 4.0]}, "each a whole number"),
        ({"shape": [64, 32]}, "has 64 x 32 devices; 1024 is the most"),
        ({"shape": [2, 4], "arch": "grayskull"}, "must be wormhole_b0 or blackhole"),
        ({"shape": [2, 4], "link": [1, 1]}, "key 'link', which no mesh has; it takes shape, name"),
        ({"shape": [2, 4], "links": [1, 0]}, r"0 links on axis 1 of 4 device\(s\); give it at least 1 link"),
        ({"shape": [1, 4], "links": [1, 1]}, r"1 links on axis 0 of 1 device\(s\); give it 0 links"),
        ({"shape": [2, 4], "torus": [1, 0]}, "each true or false"),
        ({"shape": [2, 4], "name": "a b/c"}, "letters, digits"),
        ({"shape": [2, 4], "name": "galaxy"}, "takes the name of another mesh, galaxy"),
        ([2, 4], "does not hold a JSON object"),
        ("{", "is not valid JSON"),
        (None, "does not exist; `refsim meshes` lists"),
    ],
    ids=str,
)
def test_a_file_of_no_mesh_is_refused_in_one_sentence(tmp_path, said, sentence):
    path = str(tmp_path / "my_mesh.json") if said is None else mesh_file(tmp_path, said)
    with pytest.raises(UserError, match=sentence) as caught:
        get_mesh(path)
    assert_one_sentence(str(caught.value))


def test_a_scheme_runs_on_a_mesh_of_ones_own(tmp_path):
    tensors = attention_inputs(heads=4, n=96, prompt=5)
    path = mesh_file(tmp_path, {"shape": [3, 2], "torus": [True, False]})
    result = attention_result(tensors, mesh=path, scheme="ring", math="reference", timeout_s=TIMEOUT_S)
    assert_matches(real_rows(result.tensors, 96, 96), serial_attention(tensors))
    assert len(result.values) == 6
