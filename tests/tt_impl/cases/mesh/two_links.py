"""The expert ring attention, which wants a ring and exactly two links."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect


def exp_ring_joint(t: Env) -> None:
    ttnn, n = t.ttnn, 4 * 288
    x, y = t.mesh.grid
    spatial, prompt = [t.rand(1, 10, n, 64) for _ in range(3)], [t.rand(1, 10, 32, 64) for _ in range(3)]
    out, rear, _ = ttnn.transformer.exp_ring_joint_scaled_dot_product_attention(
        *(t.put(s, (None, 2)) for s in spatial), *(t.put(p) for p in prompt),
        persistent_output_buffer_k=t.empty(1, 10, n, 64), persistent_output_buffer_v=t.empty(1, 10, n, 64),
        joint_strategy="rear", logical_n=n - 10,
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(x, y), q_chunk_size=32, k_chunk_size=32, exp_approx_mode=False
        ),
        dim=2, multi_device_global_semaphore=t.semaphores(2), num_links=2, cluster_axis=1, mesh_device=t.device,
        topology=ttnn.Topology.Ring, subdevice_id=ttnn.SubDeviceId(0), num_workers_per_link=y // 2,
    )  # fmt: skip
    k, v = (torch.cat([spatial[i][:, :, : n - 10], prompt[i]], 2) for i in (1, 2))
    t.check(out, t.shards(F.scaled_dot_product_attention(spatial[0], k, v), (None, 2)))
    t.check(rear, F.scaled_dot_product_attention(prompt[0], k, v))


CASES = collect(globals())
