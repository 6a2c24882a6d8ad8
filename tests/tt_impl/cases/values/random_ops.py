"""Random operations: the documented range and distribution, the same numbers for the same seed, counted as emulated."""

from __future__ import annotations

from itertools import combinations

import torch

from tests.tt_impl.env import Env, collect

SHAPE = (1, 1, 128, 128)


def seeded(t: Env) -> None:
    """A seed gives the same numbers again, no seed gives others; replicas have the same ones."""
    ttnn = t.ttnn
    first, again, other = (t.shadow.values(ttnn.rand(SHAPE, t.device, seed=seed)) for seed in (7, 7, 8))
    assert first[0].equal(again[0]) and not first[0].equal(other[0])
    assert all(value.equal(first[0]) for value in first)
    for none in ({}, {"seed": 0}):
        unseeded = [t.shadow.values(ttnn.rand(SHAPE, t.device, **none))[0] for _ in range(2)]
        assert not unseeded[0].equal(unseeded[1])
    assert t.shadow.emulated["ttnn.rand"] == 7


def ranges(t: Env) -> None:
    ttnn = t.ttnn
    for dtype in (ttnn.bfloat16, ttnn.float32):
        value = t.shadow.values(ttnn.rand(SHAPE, t.device, dtype=dtype, low=-2.0, high=3.0, seed=1))[0]
        assert -2.0 <= value.min() and value.max() < 3.0
        assert abs(value.mean() - 0.5) < 0.1 and abs(value.var() - 25 / 12) < 0.2
    whole = ttnn.rand(SHAPE, t.device, dtype=ttnn.uint32, low=3, high=7, seed=1)
    assert t.shadow.values(whole)[0].unique().tolist() == [3, 4, 5, 6]
    normal = t.shadow.values(ttnn.randn(SHAPE, t.device, seed=1))[0]
    assert abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05
    target = t.put(torch.zeros(SHAPE))
    ttnn.uniform(target, 1.0, 2.0, 5)
    value = t.shadow.values(target)[0]
    assert 1.0 <= value.min() and value.max() < 2.0 and value.std() > 0.2
    for value in (ttnn.rand(SHAPE, t.device, seed=1), ttnn.uniform(target)):  # by default
        value = t.shadow.values(value)[0]
        assert 0.0 <= value.min() < 0.01 and 0.99 < value.max() < 1.0


def sharded(t: Env) -> None:
    """Cut over the mesh, every device has numbers of its own."""
    ttnn = t.ttnn
    mapper = ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(3)])
    out = ttnn.rand((1, 1, 32, 32 * t.shape[1]), t.device, seed=3, mesh_mapper=mapper)
    values = t.shadow.values(out)
    for one, other in combinations(range(t.n), 2):
        assert values[one].equal(values[other]) is (one % t.shape[1] == other % t.shape[1]), (one, other)
    rows = ttnn.MeshMapperConfig([ttnn.PlacementShard(2), ttnn.PlacementReplicate()])
    values = t.shadow.values(ttnn.rand((1, 1, 32 * t.shape[0], 32), t.device, seed=3, mesh_mapper=rows))
    for one, other in combinations(range(t.n), 2):
        assert values[one].equal(values[other]) is (one // t.shape[1] == other // t.shape[1]), (one, other)
    for row in range(t.shape[0]):  # its one core of each device counts on from that of the device before
        alone = ttnn.rand((1, 1, 32, 32), t.device, seed=3 + row * t.shape[1])
        assert values[row * t.shape[1]].equal(t.shadow.values(alone)[0])
    flat = ttnn.MeshMapperConfig([ttnn.PlacementShard(3)], ttnn.MeshShape([t.n]))
    values = t.shadow.values(ttnn.rand((1, 1, 32, 32 * t.n), t.device, seed=3, mesh_mapper=flat))
    assert all(not one.equal(other) for one, other in combinations(values, 2))


def bernoulli(t: Env) -> None:
    chance = torch.full(SHAPE, 0.25)
    chance[..., :64] = 1.0
    drawn = t.shadow.values(t.ttnn.bernoulli(t.put(chance), 3, dtype=t.ttnn.float32))[0]
    assert drawn[..., :64].eq(1).all() and set(drawn.unique().tolist()) == {0.0, 1.0}
    assert abs(drawn[..., 64:].mean() - 0.25) < 0.03


def dropout(t: Env) -> None:
    x = t.rand(*SHAPE).abs() + 1
    x = x.bfloat16().float()
    out = t.ttnn.experimental.dropout(t.put(x), probability=0.25, scale=2.0, seed=9)
    values = t.shadow.values(out)
    kept = values[0] != 0
    assert abs(kept.float().mean() - 0.75) < 0.03
    assert values[0][kept].equal((x * 2)[kept])
    assert all(not one.equal(other) for one, other in combinations(values, 2))
    how = {"probability": 0.25, "scale": 2.0}
    same = t.shadow.values(t.ttnn.experimental.dropout(t.put(x), **how, seed=9, use_per_device_seed=False))
    assert all(value.equal(values[0]) for value in same)
    unseeded = [t.shadow.values(t.ttnn.experimental.dropout(t.put(x), **how, seed=0))[0] for _ in range(2)]
    assert not unseeded[0].equal(unseeded[1])


CASES = collect(globals())
