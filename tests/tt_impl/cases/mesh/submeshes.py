"""A mesh that is cut into submeshes is used through them only; some calls take one device only."""

from __future__ import annotations

from typing import Any

import torch

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
        _sliced(t, device)
    assert second.create_submesh(ttnn.MeshShape(1, 1)).shape == ttnn.MeshShape(1, 1)


def _sliced(t: Env, device: Any) -> None:
    """Cut by limits that ttnn reads to the host first: of rows, and with steps."""
    ttnn, x = t.ttnn, t.rand(1, 2, 64, 64)
    tiles, rows = (ttnn.from_torch(x, ttnn.bfloat16, device=device, layout=kind) for kind in (ttnn.TILE_LAYOUT, None))
    first, end = (
        ttnn.from_torch(torch.tensor(places), ttnn.uint32, device=device) for places in ([0, 1, 32, 0], [1, 2, 64, 64])
    )
    steps = [1, 1, 3, 1]
    t.check(ttnn.slice(rows, first, end), x[:, 1:, 32:])
    t.check(ttnn.slice(input_tensor=rows, starts=first, ends=end, slice_step=steps), x[:, 1:, 32::3])
    t.check(ttnn.slice(tiles, first, end, steps), x[:, 1:, 32::3])
    t.check(ttnn.slice(tiles, first, ttnn.from_device(end), steps), x[:, 1:, 32::3])
    trace = ttnn.begin_trace_capture(device, cq_id=0)
    raises(UserError, lambda: ttnn.slice(rows, first, end), "while a trace is captured")
    ttnn.end_trace_capture(device, trace, cq_id=0)


CASES = collect(globals())
