"""A mesh that is cut into submeshes is used through them only."""

from __future__ import annotations

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises


def parent_beside_its_submeshes(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 32, 32)
    before = t.put(x)
    first, second = t.device.create_submeshes(ttnn.MeshShape(1, 1))
    kwargs = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    raises(UserError, lambda: t.put(x), "ttnn.from_torch", "cut into submeshes")
    raises(UserError, lambda: ttnn.zeros((1, 1, 32, 32), device=t.device, **kwargs), "ttnn.zeros", "cut into submeshes")
    raises(UserError, lambda: ttnn.add(before, 1.0), "ttnn.add", "cut into submeshes")
    for device in (first, second):
        t.check(ttnn.add(ttnn.from_torch(x, device=device, **kwargs), 1.0), x + 1)
        factors = t.rand(1, 3, 5, 7)  # ttnn takes the product of all on one device only
        product = ttnn.from_torch(factors, device=device, **kwargs)
        t.check(ttnn.prod(product), factors.prod(), ulps=4)
        t.check(ttnn.prod(product, keepdim=True), factors.prod().reshape(1, 1, 1, 1), ulps=4)
    assert second.create_submesh(ttnn.MeshShape(1, 1)).shape == ttnn.MeshShape(1, 1)


CASES = collect(globals())
