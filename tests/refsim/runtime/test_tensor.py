"""A tensor that knows its placement refuses what would be a wrong answer, and says which placements met."""

import pytest
import torch

from refsim.base.errors import PlacementError
from refsim.runtime.tensor import MeshTensor, Partial, Replicate, Shard
from tests.refsim.helpers import run

PARTIAL = Partial("sum")


def tensor(*shape, **placements):
    return MeshTensor(torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape), placements)


def test_a_group_that_is_not_named_is_replicated():
    x = tensor(2, 3, tp=Shard(1))
    assert x.placement("tp") == Shard(1)
    assert x.placement("sp") == Replicate()
    x.require("op", tp=Shard(1), sp=Replicate())


@pytest.mark.parametrize(
    ("placements", "wanted"),
    [
        ({"tp": PARTIAL}, {"tp": Replicate()}),
        ({"tp": Shard(1)}, {"tp": Replicate()}),
        ({"tp": Shard(0)}, {"tp": Shard(1)}),
        ({}, {"sp": Shard(0)}),
        ({"tp": Replicate()}, {"tp": PARTIAL}),
        ({"tp": Partial("sum")}, {"tp": Partial("max")}),
    ],
    ids=["partial", "shard", "other_dim", "unnamed", "not_partial", "other_reduction"],
)
def test_require_names_the_op_and_both_placements(placements, wanted):
    x = tensor(2, 2, **placements)
    (group, placement), *_ = wanted.items()
    with pytest.raises(PlacementError) as caught:
        x.require("some_op", **wanted)
    for said in ("some_op", f"{group}={placement}", f"{group}={x.placement(group)}"):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.map("gelu", torch.nn.functional.gelu),
        lambda x: x + tensor(2, 2),
        lambda x: tensor(2, 2) + x,
        lambda x: x * tensor(2, 2),
        lambda x: tensor(2, 2) * x,
        lambda x: x + x,
    ],
    ids=["map", "add", "added", "mul", "multiplied", "partial_plus_partial"],
)
def test_a_partial_sum_is_no_value(use):
    with pytest.raises(PlacementError) as caught:
        use(tensor(2, 2, tp=PARTIAL))
    assert f"tp={PARTIAL}" in str(caught.value)
    assert "full value" in str(caught.value)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (tensor(2, 4, tp=Shard(1)), tensor(2, 4, tp=Shard(1))),
        (tensor(2, 4, tp=Shard(1)), tensor(2, 1)),
        (tensor(2, 4, tp=Shard(1), sp=Shard(0)), tensor(1, 1)),
        (tensor(2, 4), tensor(2, 1)),
    ],
    ids=["equal", "sharded_dim_broadcasts", "both_dims_broadcast", "replicated"],
)
def test_add_and_mul_keep_the_layout(mine, theirs):
    for result, wanted in ((mine + theirs, mine.local + theirs.local), (mine * theirs, mine.local * theirs.local)):
        torch.testing.assert_close(result.local, wanted, rtol=0, atol=0)
        assert result.placements == mine.placements


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (tensor(2, 4, tp=Shard(1)), tensor(2, 4)),
        (tensor(2, 4), tensor(2, 4, tp=Shard(1))),
        (tensor(2, 4, tp=Shard(1)), tensor(1, 4)),
        (tensor(4, 4, tp=Shard(1)), tensor(4, 4, tp=Shard(0))),
        (tensor(2, 4, tp=Shard(1)), tensor(2, 4, sp=Shard(1))),
        (tensor(2, 3, 4, tp=Shard(2)), tensor(4)),
    ],
    ids=["full_row", "sharded_right", "other_dim_broadcasts", "other_shard", "other_group", "fewer_dims"],
)
def test_a_replicated_operand_must_broadcast_over_the_sharded_dim(mine, theirs):
    """One row for all members would be added to each member's share of the row, or not fit at all."""
    for combine in (MeshTensor.__add__, MeshTensor.__mul__):
        with pytest.raises(PlacementError) as caught:
            combine(mine, theirs)
        both = [f"{group}={mine.placement(group)} and {theirs.placement(group)}" for group in ("tp", "sp")]
        assert any(said in str(caught.value) for said in both if "R and R" not in said)


def test_with_local_keeps_what_is_not_changed():
    x = tensor(2, 4, tp=Shard(1), sp=Shard(0))
    y = x.with_local(torch.zeros(2, 8), tp=Replicate())
    assert (y.placement("tp"), y.placement("sp")) == (Replicate(), Shard(0))
    assert list(y.shape) == [2, 8]
    assert x.placement("tp") == Shard(1)


def test_map_acts_on_the_local_part():
    x = tensor(2, 4, tp=Shard(1))
    y = x.map("neg", torch.neg)
    torch.testing.assert_close(y.local, -x.local)
    assert y.placements == x.placements


def test_on_ranks_a_partial_sum_ends_the_run_with_both_names():
    from refsim.base.errors import RankFailure

    with pytest.raises(RankFailure, match="column_linear needs tp=R but was given tp=P"):
        run("wrong_placement", "n300", "tp2")
