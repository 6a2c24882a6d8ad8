"""Attention handed a wrongly cut tensor says so, with its name and both placements, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from refsim.base.errors import PlacementError
from refsim.base.options import RunOptions
from refsim.layers.attention import local_attention
from refsim.layers.grouped_attention import grouped_attention
from refsim.parallel.ring import ring_attention
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.parallel.tensor import concat_heads, split_heads
from refsim.parallel.ulysses import ulysses
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Partial, Replicate, Shard

TOKENS = TokenShards(12, 4, 3)
LAID_OUT = {"tp": Shard(1), "sp": Shard(2)}
HEADS_OVER_ULYSSES = {"tp": Shard(1), "ring": Shard(2), "ulysses": Shard(1)}
WHOLE = {"tp": Shard(1)}


@pytest.fixture(scope="module")
def device() -> Device:
    """Rank 0 of a mesh with every kind of group of two, without anybody to send to."""
    return Device(RunOptions.of(mesh="t3k", parallel="sp4_tp2", attention="usp", ring=2, ulysses=2))


def x(placements: dict, *shape: int) -> MeshTensor:
    return MeshTensor(torch.zeros(*(shape or (1, 2, 3, 4))), placements)


def qkv(right: dict, wrong: int | None = None, placements: dict | None = None) -> tuple[MeshTensor, ...]:
    """q, k and v laid out right, but for number ``wrong``."""
    return tuple(x(placements if i == wrong else right) for i in range(3))


def joint(device, spatial, prompt=None, split=False):
    return joint_attention(device, spatial, prompt, tokens=TOKENS, prompt_tokens=TOKENS if split else None)


def inside(device, use: Callable):
    with ulysses(device, 2) as exchange:
        return use(exchange)


def ring(device, spatial, rear=None):
    return ring_attention(device, spatial, rear, valid=lambda shard: [(0, 3)])


ENTRIES: dict[str, tuple[Callable, str]] = {
    "joint_q_whole_heads": (
        lambda d: joint(d, qkv(LAID_OUT, 0, {"sp": Shard(2)})),
        "joint_attention's q needs tp=S(1) but was given tp=R",
    ),
    "joint_k_whole_tokens": (
        lambda d: joint(d, qkv(LAID_OUT, 1, WHOLE)),
        "joint_attention's k needs sp=S(2) but was given sp=R",
    ),
    "joint_v_other_dim": (
        lambda d: joint(d, qkv(LAID_OUT, 2, {"tp": Shard(1), "sp": Shard(1)})),
        "joint_attention's v needs sp=S(2) but was given sp=S(1)",
    ),
    "joint_exchanged_already": (
        lambda d: joint(d, qkv(HEADS_OVER_ULYSSES)),
        "joint_attention's q needs sp=S(2) but was given sp=(ring=S(2), ulysses=S(1))",
    ),
    "joint_prompt_cut": (
        lambda d: joint(d, qkv(LAID_OUT), qkv(WHOLE, 1, LAID_OUT)),
        "joint_attention's prompt k needs sp=R but was given sp=S(2)",
    ),
    "joint_prompt_not_cut": (
        lambda d: joint(d, qkv(LAID_OUT), qkv(WHOLE), split=True),
        "joint_attention's prompt q needs sp=S(2) but was given sp=R",
    ),
    "joint_prompt_partial": (
        lambda d: joint(d, qkv(LAID_OUT), qkv(WHOLE, 2, {"tp": Partial("sum")})),
        "joint_attention's prompt v needs tp=S(1) but was given tp=P(sum)",
    ),
    "ulysses_whole_tokens": (
        lambda d: inside(d, lambda exchange: exchange.to_heads(qkv(LAID_OUT, 2, WHOLE))),
        "ulysses' v needs ulysses=S(2) but was given ulysses=R",
    ),
    "ulysses_prompt_cut": (
        lambda d: inside(d, lambda exchange: exchange.take_heads(qkv(WHOLE, 0, LAID_OUT))),
        "ulysses' prompt q needs ulysses=R but was given ulysses=S(2)",
    ),
    "ulysses_back_twice": (
        lambda d: inside(d, lambda exchange: exchange.to_tokens(x(LAID_OUT))),
        "ulysses' answer needs ulysses=S(1) but was given ulysses=S(2)",
    ),
    "ulysses_prompt_back_twice": (
        lambda d: inside(d, lambda exchange: exchange.gather_heads(x(WHOLE))),
        "ulysses' answer for the prompt needs ulysses=S(1) but was given ulysses=R",
    ),
    "ring_not_exchanged": (
        lambda d: ring(d, qkv(LAID_OUT)),
        "ring_attention's q needs ulysses=S(1) but was given ulysses=S(2)",
    ),
    "ring_whole_tokens": (
        lambda d: ring(d, qkv(HEADS_OVER_ULYSSES, 1, {"tp": Shard(1), "ulysses": Shard(1)})),
        "ring_attention's k needs ring=S(2) but was given ring=R",
    ),
    "ring_rear_cut": (
        lambda d: ring(d, qkv(HEADS_OVER_ULYSSES), qkv(HEADS_OVER_ULYSSES)),
        "ring_attention's rear q needs ring=R but was given ring=S(2)",
    ),
    "cut_twice": (
        lambda d: cut_tokens(d, x({"sp": Shard(1)}), TOKENS, dim=1),
        "cut_tokens needs sp=R but was given sp=S(1)",
    ),
    "gather_whole": (
        lambda d: gather_tokens(d, x({}), TOKENS, dim=1),
        "gather_tokens needs sp=S(1) but was given sp=R",
    ),
    "gather_other_dim": (
        lambda d: gather_tokens(d, x(LAID_OUT), TOKENS, dim=1),
        "gather_tokens needs sp=S(1) but was given sp=S(2)",
    ),
    "local_whole_heads": (
        lambda d: local_attention(d, qkv(WHOLE, 1, {})),
        "local_attention's k needs tp=S(1) but was given tp=R",
    ),
    "local_cut_tokens": (
        lambda d: local_attention(d, qkv(WHOLE, 0, LAID_OUT)),
        "local_attention's q needs sp=R but was given sp=S(2)",
    ),
    "grouped_mixed": (
        lambda d: grouped_attention(d, *qkv(WHOLE, 2, {}), causal=True),
        "grouped_attention's v needs tp=S(1) but was given tp=R",
    ),
    "heads_of_cut_features": (
        lambda d: concat_heads(x({"tp": Shard(3)})),
        "concat_heads needs dim 3 whole but was given tp=S(3)",
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_wrong_placement_is_named_at_every_entry(name, device):
    use, sentence = ENTRIES[name]
    with pytest.raises(PlacementError) as caught:
        use(device)
    assert str(caught.value) == sentence
    assert device.trace.sent == {}


def test_heads_of_features_and_back():
    whole = MeshTensor(torch.arange(24.0).view(1, 3, 8), {"tp": Shard(2), "sp": Shard(1)})
    heads = split_heads(whole, 4)
    assert list(heads.shape) == [1, 2, 3, 4]
    assert (heads.placement("tp"), heads.placement("sp")) == (Shard(1), Shard(2))
    again = concat_heads(heads)
    assert torch.equal(again.local, whole.local)
    assert again.placements == whole.placements


def test_a_group_and_its_parts_say_the_same():
    tokens = x({"sp": Shard(2)})
    assert (tokens.placement("ring"), tokens.placement("ulysses")) == (Shard(2), Shard(2))
    heads = tokens.with_local(tokens.local, ulysses=Shard(1))
    assert (heads.placement("ring"), heads.placement("ulysses")) == (Shard(2), Shard(1))
    assert heads.placement("sp") not in (Shard(1), Shard(2), Replicate())
    assert heads.with_local(heads.local, ulysses=Shard(2)).placement("sp") == Shard(2)
    assert heads.with_local(heads.local, sp=Replicate()).placement("ring") == Replicate()


@pytest.mark.parametrize("tensor", [x({}), x({"tp": Replicate()})], ids=["unnamed", "named"])
def test_one_device_needs_no_cut(tensor):
    serial = Device(RunOptions.of(mesh="n150"))
    out, prompt_out, lses = joint_attention(serial, (tensor,) * 3, None, tokens=TokenShards(3, 1, 3), with_lse=True)
    assert list(out.shape) == [1, 2, 3, 4]
    assert prompt_out is None
    assert list(lses[0].shape) == [1, 2, 3, 1]
