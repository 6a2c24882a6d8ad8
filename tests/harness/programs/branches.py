"""Programs on two submeshes of a 2x4 mesh, as classifier-free guidance uses them; see ``mistakes``."""

from __future__ import annotations

from typing import Any

from tests.tt_impl.env import Env


def _half(t: Env, device: Any) -> Any:
    ttnn = t.ttnn
    mapper = ttnn.ShardTensor2dMesh(device, mesh_shape=(2, 2), dims=(2, 3))
    layout = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT}
    return ttnn.from_torch(t.rand(1, 1, 64, 128), device=device, mesh_mapper=mapper, **layout)


def branches(t: Env, wrong: bool) -> None:
    """One branch sums over the rows, the other over the columns."""
    ttnn = t.ttnn
    halves = t.device.get_submeshes() or t.device.create_submeshes(ttnn.MeshShape(2, 2))
    for number, half in enumerate(halves):
        x = ttnn.all_gather(_half(t, half), 3, cluster_axis=1, topology=t.linear)
        axis = 0 if wrong and number == 0 else 1
        y = ttnn.all_reduce(x, cluster_axis=axis, topology=t.linear)  # here
        ttnn.to_torch(ttnn.get_device_tensors(y)[0])


EXPECTED = {"branches": ("submeshes-differ", "ttnn.all_reduce")}
