"""Delays reorder only what does not depend on each other, and the same seed gives the same order."""

from refsim.runtime.delays import Delays
from refsim.runtime.group import Group


def lanes() -> list[list]:
    return [[lambda lane=lane, i=i: (lane, i) for i in range(3)] for lane in "kv"] + [[]]


def test_without_a_seed_everything_keeps_its_order():
    plain = Delays(rank=1)
    assert plain.shuffle(range(8)) == list(range(8))
    assert plain.interleave(lanes()) == [(lane, i) for lane in "kv" for i in range(3)]
    assert plain.agreed("qkv", group(0)) == ["q", "k", "v"]


def test_lanes_are_mixed_and_each_keeps_its_order():
    seen = set()
    for seed in range(40):
        mixed = Delays(0, seed).interleave(lanes())
        assert [i for lane, i in mixed if lane == "k"] == [i for lane, i in mixed if lane == "v"] == [0, 1, 2]
        seen.add("".join(lane for lane, _ in mixed))
    assert len(seen) > 10


def test_ranks_draw_their_own_orders_and_members_agree_where_they_must():
    own = {tuple(Delays(rank, 7).shuffle(range(6))) for rank in range(8)}
    assert len(own) == 8
    members = [Delays(rank, 7) for rank in range(4)]
    drawn = []
    for _ in range(6):
        orders = {tuple(member.agreed("qkv", group(rank))) for rank, member in enumerate(members)}
        assert len(orders) == 1
        drawn += orders
    assert len(set(drawn)) > 1


def test_a_seed_repeats():
    for seed in range(3):
        assert Delays(2, seed).shuffle(range(9)) == Delays(2, seed).shuffle(range(9))
    assert Delays(2, 0).shuffle(range(9)) != Delays(2, 1).shuffle(range(9))


def group(index: int) -> Group:
    return Group("sp", 1, (0, 1, 2, 3), index, None, 1)
