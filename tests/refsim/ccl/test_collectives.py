"""Every collective gives what torch.distributed's one-call collective gives on the same ranks."""

import pytest

from refsim.base.errors import UserError
from tests.refsim.ccl.groups import GROUPS, LINES, RINGS, members
from tests.refsim.helpers import assert_one_sentence, run

SHAPE = [8, 8, 8]  # every dim can be cut into 8
# bytes, so that what is sent at a time goes in several chunks of which the last is shorter
CHUNK_BYTES = {"all_gather": 900, "broadcast": 900, "shift": 900, "neighbor_pad": 100}
CHUNK_BYTES |= {"reduce_scatter": 100, "all_reduce": 100, "all_to_all": 100}
COLLECTIVES = list(CHUNK_BYTES)
CAN_SHIFT = [name for name in GROUPS if not name.startswith(("line4", "line8"))]


@pytest.mark.parametrize("group", GROUPS)
def test_groups_are_what_their_ids_say(group):
    topology, size = group.split("-")[0][:4], int(group[4])
    assert {(m.topology.value, m.size) for m in members(group)} == {
        ({"ring": "Ring", "line": "Linear"}[topology], size)
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("collective", "group"),
    [(c, g) for c in COLLECTIVES for g in (CAN_SHIFT if c == "shift" else GROUPS)],
)
def test_same_as_torch_distributed(collective, group, dtype, tmp_path):
    """Compared on the ranks, over all dims, roots and directions, in many chunks and in one."""
    mesh, parallel, name = GROUPS[group]
    chunks = [CHUNK_BYTES[collective], 1 << 20]
    arguments = {"collective": collective, "group": name, "dtype": dtype, "shape": SHAPE, "chunks": chunks}
    result = run("collective_case", mesh, parallel, {**arguments, "folder": str(tmp_path)})
    for found in result.values:
        assert len(found) > len(chunks)
        assert {case: said for case, said in found.items() if said != "same"} == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("group", GROUPS)
def test_sums_are_accumulated_in_the_documented_order(group, dtype):
    """Equal to the bit to plain torch additions in the order of reduce_scatter's docstring, rounded at every hop."""
    mesh, parallel, name = GROUPS[group]
    arguments = {"group": name, "dtype": dtype, "shape": SHAPE, "chunk_bytes": 100}
    values = run("reduce_order", mesh, parallel, arguments).values
    for value in values:
        assert set(value["found"].values()) == {"same"}, value["found"]
    for group_of_rank in members(group):
        assert len({values[rank]["digest"] for rank in group_of_rank.ranks}) == 1


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "neighbor_pad"])
def test_a_group_of_one_returns_its_input(collective):
    options = {
        "all_gather": {"dim": 0},
        "reduce_scatter": {"dim": 0},
        "all_to_all": {"split_dim": 0, "concat_dim": 1},
        "broadcast": {"root": 0},
    }
    arguments = {"collective": collective, "group": "sp", "dtype": "float32", "shape": [3, 5]}
    result = run("one_collective", "n150", "sp1", {**arguments, **options.get(collective, {})})
    assert result.value["is_input"]
    assert result.bytes_by_collective == {}


@pytest.mark.parametrize(
    ("mesh", "parallel", "arguments", "says"),
    [
        ("n300", "sp2", {"collective": "reduce_scatter", "dim": 1}, "dim 1 of size 5 into 2 equal slices; pad it to 6"),
        (
            "bh-qb-1x4",
            "sp4",
            {"collective": "all_to_all", "split_dim": 0, "concat_dim": 1},
            "dim 0 of size 6 into 4 equal pieces; pad it to 8",
        ),
        ("t3k", "sp4_tp2", {"collective": "shift"}, "wrap-around link that a Line of 4 lacks; use a Ring axis"),
    ],
    ids=["reduce_scatter", "all_to_all", "shift"],
)
def test_what_cannot_be_cut_or_wired_is_a_users_mistake(mesh, parallel, arguments, says):
    with pytest.raises(UserError) as caught:
        run("one_collective", mesh, parallel, {"group": "sp", "dtype": "float32", "shape": [6, 5], **arguments})
    assert_one_sentence(str(caught.value))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("collective", "options"),
    [
        ("all_gather", {"dim": 0}),
        ("reduce_scatter", {"dim": 0}),
        ("all_reduce", {}),
        ("broadcast", {"root": 1}),
        ("neighbor_pad", {"dim": 0, "by": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("group", ["ring8-t3k_1x8", "line4-t3k_axis1", "line8-tg_axis0"])
def test_neighbours_only(collective, options, group):
    """These collectives go hop by hop; a Line never uses the link it does not have."""
    mesh, parallel, name = GROUPS[group]
    arguments = {"collective": collective, "group": name, "dtype": "float32", "shape": [8, 3], **options}
    trace = run("one_collective", mesh, parallel, arguments, trace=True).trace
    groups = members(group)
    hops = {groups[e["rank"]].ranks.index(e["peer"]) - groups[e["rank"]].index for e in trace}
    n = groups[0].size
    assert {e["topology"] for e in trace} == {groups[0].topology.value}
    if group in RINGS:
        assert {hop % n for hop in hops} <= {1, n - 1}
    if group in LINES:
        assert hops <= {1, -1}
