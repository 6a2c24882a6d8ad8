"""Large tensors of one number take memory on the devices alone, and are what ttnn's own way makes of them."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import pytest
import torch

from refsim.runtime.host_memory import private_bytes
from tests.tt_impl.env import Env, collect
from tt_impl.mock.storage import constants

GIB = (1, 1, 32768, 16384)


def a_gib_of_one_number(t: Env) -> None:
    """Every device's values are one element, shared by all; a view and a copy in the dtype are, too."""
    ttnn = t.ttnn
    for make, number in ((ttnn.empty, None), (ttnn.zeros, 0.0), (ttnn.ones, 1.0)):
        for dtype in (ttnn.bfloat16, ttnn.bfloat8_b, ttnn.uint32):
            tensor = make(GIB, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=t.device)
            stored = t.shadow.store.read(tensor, make.__name__ if number is None else "").stored
            assert len(set(map(id, stored))) == 1 and set(stored[0].stride()) == {0}
            value = t.shadow.values(ttnn.reshape(tensor, (1, 2, 16384, 16384)))[-1]
            assert set(value.stride()) == {0} and (number is None or value[0, 1, 7, 5] == number)
            ttnn.deallocate(tensor)
    filled = ttnn.full(GIB, 2.5, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device)
    assert t.shadow.values(filled)[0][0, 0, -1, -1] == 2.5


def as_ttnn_makes_them(t: Env) -> None:
    """Spec, place on the devices, distribution and values are the same either way."""
    from tt_impl.mock.calls import constructors

    ttnn = t.ttnn
    for fill in (ttnn.zeros, ttnn.ones, lambda shape, **how: ttnn.full(shape, -1.5, **how)):
        for how in ({}, {"layout": ttnn.TILE_LAYOUT, "memory_config": ttnn.L1_MEMORY_CONFIG}, {"dtype": ttnn.float32}):
            _same(lambda: fill((2, 40, 48), device=t.device, **how), t)  # noqa: B023 - called at once
    out = t.empty(2, 40, 48)
    with patch.object(constructors, "LARGE", 1), patch.object(constructors, "_whole") as taken:
        assert ttnn.full_like(out, 2.0, optional_tensor=out).buffer_unique_id() == out.buffer_unique_id()
    assert not taken.called
    for layout in ("ROW_MAJOR", "TILE"):
        for dtype in ("bfloat16", "float32"):
            _likes(t, t.put(t.rand(40, 48), dtype=dtype, layout=layout), layout == "ROW_MAJOR")


def _likes(t: Env, template: Any, light: bool) -> None:
    ttnn = t.ttnn
    for like in (ttnn.zeros_like, ttnn.ones_like, lambda tensor: ttnn.full_like(tensor, 3.0)):
        _same(lambda: like(template), t, light=light)  # noqa: B023


def the_memory_of_a_host_tensor(t: Env) -> None:
    """Without its values a tensor of torch takes the same memory, cut the same way; what cannot be cut is refused."""
    from tt_impl.mock.calls import constructors
    from tt_impl.trace.intercept import intercepted

    ttnn = t.ttnn
    values = t.rand(2, 3, 64, 128)
    with intercepted(constructors.Constructors(of_host=True), nearest=True):
        for dims in ((None, None), (2, None), (0, -1), (3, 2), (None, -2)):
            in_l1 = {"dtype": ttnn.bfloat8_b, "memory_config": ttnn.L1_MEMORY_CONFIG}
            for how in ({"dtype": ttnn.bfloat16}, in_l1, {"dtype": ttnn.float32, "tile": ttnn.Tile((16, 32))}):
                cut = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=dims)
                kind = {"device": t.device, "layout": ttnn.TILE_LAYOUT, "mesh_mapper": cut} | how
                _same(lambda: ttnn.from_torch(values, **kind), t, t.n**4, "tile" not in how)  # noqa: B023 - at once
        _same(lambda: ttnn.from_torch(values, device=t.device), t, t.n**4)
        across = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(None, 0))
        assert not ttnn.to_torch(ttnn.from_torch(torch.empty(2, 3, device="meta"))).any()
        assert ttnn.from_torch(torch.empty(2, 3, dtype=torch.int32, device="meta")).dtype == ttnn.int32
        assert torch.equal(ttnn.to_torch(ttnn.from_torch(values)), values)
        free = ttnn.from_torch(values, device=t.device).buffer_address()
        with patch.object(constructors, "LARGE", t.n**4):
            with pytest.raises(RuntimeError, match="number of chunks 2 to match the mesh dimension size 4"):
                ttnn.from_torch(values, device=t.device, mesh_mapper=across)
        assert ttnn.from_torch(values, device=t.device).buffer_address() == free


def zeros_on_the_host(t: Env) -> None:
    """Without values zeros on the host take no memory, in tiles and cut, too; all else keeps its bits."""
    from tt_impl.mock.calls import constructors
    from tt_impl.trace.intercept import intercepted

    ttnn = t.ttnn
    sizes = 8192, 16384
    zeros = torch.zeros(sizes)
    cut = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(0, 1))
    with intercepted(constructors.Constructors(of_host=True), nearest=True):
        for how in ({}, {"layout": ttnn.TILE_LAYOUT}, {"mesh_mapper": cut}):
            before = private_bytes(os.getpid())
            hosts = [ttnn.from_torch(zeros, **how) for _ in range(3)]
            assert private_bytes(os.getpid()) - before < 2**30, how  # of 1.5 GiB; the heap keeps something, too
            assert not ttnn.to_torch(ttnn.get_device_tensors(hosts[-1])[-1]).any()
        for value in (torch.full((1024, 1024), -0.0), torch.eye(1024)):
            kept = ttnn.to_torch(ttnn.from_torch(value, layout=ttnn.TILE_LAYOUT))
            assert torch.equal(kept.view(torch.int32), value.view(torch.int32))


def a_large_tensor_of_torch(t: Env) -> None:
    """Where values are computed, it has all of them."""
    x = t.rand(2, 1024, 512)
    t.check(t.ttnn.from_torch(x, device=t.device, dtype=t.ttnn.bfloat16, layout=t.ttnn.TILE_LAYOUT), x)


def one_number_among_others(t: Env) -> None:
    """Two elements are one number only if they share their memory; parts are, if all share that of the first."""
    one, other = constants.constant(1.0, (1, 2), torch.float32), constants.constant(2.0, (1, 2), torch.float32)
    for value in (torch.tensor([1.0, 2.0]), torch.ones(2), torch.ones(1), torch.ones(2, 1), one[:, :1]):
        assert constants.single(value) is None, value
    for value in (one, one[..., None], one.expand(3, 2), torch.ones(1, 1).expand(1, 2)):
        assert constants.single(value).shape == () and constants.single(value) == 1
    plain = torch.tensor([[3.0, 4.0]])
    for parts in ([one, plain], [plain, one], [one, other], [one, one, other], [one, one, plain]):
        assert torch.equal(constants.joined(parts, 1), torch.cat(parts, 1))
    for parts in ([one, one.expand(3, 2)], [one.expand(4, 2)]):
        whole = constants.joined(parts, 0)
        assert whole.shape == (4, 2) and constants.single(whole) == 1


def _same(make: Any, t: Env, large: int = 1, light: bool = True) -> None:
    """Compare what is made of large tensors and of others; ``light``: the host makes nothing for the former."""
    from tt_impl.mock.calls import constructors

    threshold = constructors.LARGE
    described = []
    for least in (threshold, large):
        whole = patch.object(constructors, "_whole", wraps=constructors._whole)
        with patch.object(constructors, "LARGE", least), whole as taken:
            tensor = make()
        assert taken.called is (light and least == large), (least, large)
        place = tensor.buffer_address(), str(tensor.memory_config()), str(tensor.tensor_topology())
        described.append((tensor.spec, place, [v.flatten().tolist() for v in t.shadow.values(tensor)]))
        t.ttnn.deallocate(tensor)
    assert described[0] == described[1]


CASES = collect(globals())
