"""A denoising loop of tt_dit's parts, replayed from a trace of tt_dit's ``Tracer``: the test of bugs about its state.

Upstream has no small test of a ``Tracer``. Every step gets other latents and another sigma, on other buffers.
"""

from __future__ import annotations

import pytest
import torch
from models.tt_dit.layers.linear import RowParallelLinear
from models.tt_dit.parallel.manager import CCLManager
from models.tt_dit.utils.check import assert_quality
from models.tt_dit.utils.tensor import bf16_tensor
from models.tt_dit.utils.tracing import Tracer

ttnn = pytest.importorskip("ttnn")
AXIS = 1
"""Of the mesh, along which features are cut."""


def test_denoising() -> None:
    """Three steps of a linear velocity equal those of torch."""
    torch.manual_seed(0)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh_device = ttnn.open_mesh_device(ttnn.MeshShape(2, 4), trace_region_size=1 << 20)
    velocity = torch.nn.Linear(512, 512).bfloat16()
    ccl_manager = CCLManager(mesh_device, topology=ttnn.Topology.Linear)
    tt_velocity = RowParallelLinear(
        512, 512, mesh_device=mesh_device, mesh_axis=AXIS, fsdp_mesh_axis=1 - AXIS, ccl_manager=ccl_manager
    )
    tt_velocity.load_torch_state_dict(velocity.state_dict())
    tracer = Tracer(lambda latents, sigma: ttnn.add(latents, ttnn.multiply(tt_velocity(latents), sigma)),
                    device=mesh_device)  # fmt: skip
    latents = torch.randn(1, 1, 64, 512)
    tt_latents = bf16_tensor(latents, device=mesh_device, mesh_axis=AXIS, shard_dim=-1)
    for sigma in (0.5, 0.25, 0.125):
        tt_latents = ttnn.clone(tracer(tt_latents, bf16_tensor(torch.full((1, 1, 1, 1), sigma), device=mesh_device)))
        with torch.no_grad():
            latents = latents + sigma * velocity(latents.bfloat16()).float()
    dims = ttnn.ConcatMesh2dToTensor(mesh_device, dims=[0, -1], mesh_shape=tuple(mesh_device.shape))
    for replica in ttnn.to_torch(tt_latents, mesh_composer=dims):
        assert_quality(latents[0, 0], replica[0], pcc=0.9995)
    tracer.release_trace()
    ttnn.close_mesh_device(mesh_device)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
