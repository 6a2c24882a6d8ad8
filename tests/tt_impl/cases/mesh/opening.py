"""What a freshly opened mesh must be able to do: compute, and communicate with all its links along every axis."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect


def add(t: Env) -> None:
    rows, columns = t.shape
    x, y = (t.rand(1, 1, 32 * rows, 32 * columns) for _ in range(2))
    out = t.ttnn.add(t.put(x, (2, 3)), t.put(y, (2, 3)))
    assert t.whole(out, (2, 3)).equal((x + y).bfloat16().float())


def whole_grid(t: Env) -> None:
    """Every core of the grid takes programs."""
    x, w = t.rand(1, 1, 64, 64), t.rand(64, 64, scale=0.1)
    columns, rows = t.mesh.grid
    out = t.ttnn.linear(t.put(x), t.put(w), activation="gelu", core_grid=t.ttnn.CoreGrid(x=columns, y=rows))
    t.check(out, F.gelu(x @ w))


def all_links(t: Env) -> None:
    ttnn = t.ttnn
    for axis in (0, 1):
        topology = t.mesh.spec.topology(axis)
        if topology is None:
            continue
        dims = (3, None) if axis == 0 else (None, 3)
        x, pair, barrier = t.rand(1, 1, 32, 32 * t.shape[axis]), t.semaphores(2), t.semaphores(1)[0]
        out = ttnn.experimental.all_gather_async(
            t.put(x, dims), None, 3, pair, num_links=t.mesh.spec.links[axis], cluster_axis=axis,
            topology=getattr(ttnn.Topology, topology.value), barrier_semaphore=barrier,
        )  # fmt: skip
        t.check(out, x)
        if min(t.shape) > 1:
            assert not torch.equal(x[..., :32], x[..., 32:64])


CASES = collect(globals())
