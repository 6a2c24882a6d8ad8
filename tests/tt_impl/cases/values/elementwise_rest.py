"""Elementwise operations that no range of numbers describes: special values, pairs, halves, bits; and channels."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect

INF, NAN = float("inf"), float("nan")


def limits_that_cross(t: Env) -> None:
    """A negative limit of relu_max leaves zeros; an epsilon over a half is the upper bound of logit."""
    x = t.rand(1, 1, 32, 64)
    t.check(t.ttnn.relu_max(t.put(x), -5.0), torch.zeros_like(x))
    p = torch.linspace(-0.5, 1.5, 2048).reshape(1, 1, 32, 64).bfloat16().float()
    t.check(t.ttnn.logit(t.put(p), eps=0.75), torch.logit(p.clamp(0.25, 0.75).bfloat16()).float())


def special_values(t: Env) -> None:
    ttnn = t.ttnn
    values = [1.0, -2.0, 0.0, INF, -INF, NAN, 3e38, -1e-3]
    x = t.put(torch.tensor(values).repeat(32, 4), dtype="float32")
    for name, wanted in {
        "isfinite": [1, 1, 1, 0, 0, 0, 1, 1],
        "isinf": [0, 0, 0, 1, 1, 0, 0, 0],
        "isposinf": [0, 0, 0, 1, 0, 0, 0, 0],
        "isneginf": [0, 0, 0, 0, 1, 0, 0, 0],
        "isnan": [0, 0, 0, 0, 0, 1, 0, 0],
        "signbit": [0, 1, 0, 0, 1, 0, 0, 1],
        "eqz": [0, 0, 1, 0, 0, 0, 0, 0],
    }.items():
        t.check(getattr(ttnn, name)(x), torch.tensor(wanted).float().repeat(32, 4))
    y = t.put(torch.tensor([0.0, 2.0, -3.0, 0.0]).repeat(32, 8))
    ttnn.logical_not_(y)
    t.check(y, torch.tensor([1.0, 0.0, 0.0, 1.0]).repeat(32, 8))


def bits(t: Env) -> None:
    x = torch.tensor([0, 1, -1, 2**30, -(2**31), 77], dtype=torch.int32).repeat(32, 8)
    t.check(t.ttnn.bitwise_not(t.put(x, dtype="int32")), -x.long() - 1)


def pairs_and_halves(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 32, 128)
    turned = torch.view_as_real(torch.view_as_complex(x.reshape(1, 1, 32, 64, 2)) * 1j).reshape(x.shape)
    t.check(ttnn.alt_complex_rotate90(t.put(x)), turned)
    value, gate = x[..., :64], x[..., 64:]
    t.check(ttnn.glu(t.put(x), -1), value / (1 + (-gate).exp()))
    t.check(ttnn.reglu(t.put(x), 3), value * gate.clamp(min=0))


def channels(t: Env) -> None:
    """Channels before pixels and after them, sharded as a convolution has them; what pads a row is not compared."""
    ttnn, x = t.ttnn, t.rand(1, 1, 3, 256)
    width = ttnn.create_sharded_memory_config(
        [1, 1, 3, 256], ttnn.CoreGrid(x=4, y=1), ttnn.ShardStrategy.WIDTH, ttnn.ShardOrientation.ROW_MAJOR
    )
    rows = ttnn.to_memory_config(t.put(x, layout="ROW_MAJOR"), width)
    for value in t.shadow.values(ttnn.experimental.convert_to_hwc(rows)):
        assert torch.equal(value[..., :3], x.transpose(2, 3))
        assert value[..., 3:].isnan().all()
    y = t.rand(1, 1, 256, 32)
    height = ttnn.create_sharded_memory_config(
        [1, 1, 256, 32], ttnn.CoreGrid(x=4, y=1), ttnn.ShardStrategy.HEIGHT, ttnn.ShardOrientation.ROW_MAJOR
    )
    t.check(ttnn.experimental.convert_to_chw(ttnn.to_memory_config(t.put(y), height)), y.transpose(2, 3))


def membership(t: Env) -> None:
    """All bits are set where an element is found."""
    ttnn = t.ttnn
    elements, among = torch.randint(0, 9, (64,), generator=t.random), [2, 3, 5, 7]
    on = [t.put(v.int(), dtype="int32", layout="ROW_MAJOR") for v in (elements, torch.tensor(among))]
    found = torch.tensor([2**32 - 1 if e in among else 0 for e in elements.tolist()])
    t.check(ttnn.experimental.isin(*on), found)
    t.check(ttnn.experimental.isin(*on, invert=True), 2**32 - 1 - found)


def by_places(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(10, 5, 64)
    rows, places = t.put(x, layout="ROW_MAJOR"), torch.tensor([4, 0, 3, 3])
    index = t.put(places.int(), dtype="int32", layout="ROW_MAJOR")
    t.check(ttnn.moreh_getitem(rows, [index], [1]), _taken(x, places, 1))
    few = t.put(torch.tensor([1, 4], dtype=torch.int32), dtype="uint32", layout="ROW_MAJOR")
    filled = x.clone()
    filled[1], filled[4] = 9.0, 9.0
    t.check(ttnn.index_fill_new(rows, 0, few, 9.0), filled)
    y = t.rand(1, 1, 64, 64)
    height = ttnn.create_sharded_memory_config(
        [1, 1, 32, 64], ttnn.CoreGrid(x=1, y=1), ttnn.ShardStrategy.HEIGHT, ttnn.ShardOrientation.ROW_MAJOR
    )
    part = ttnn.experimental.padded_slice(
        t.put(y, layout="ROW_MAJOR"), [0, 0, 16, 0], [1, 1, 48, 64], [1, 1, 1, 1], memory_config=height
    )
    t.check(part, y[:, :, 16:48])


def _taken(x: Tensor, places: Tensor, dim: int) -> Tensor:
    return torch.cat([x.narrow(dim, place, 1) for place in places.tolist()], dim)


CASES = collect(globals())
