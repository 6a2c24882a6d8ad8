"""Properties of what wants a ring of two links or a Blackhole: products summed and cut, expert ring attention, caps."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import agree, drawn, each, held, spread

SOME = st.booleans()
ACTIVATIONS = {
    None: lambda x: x,
    "GELU": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "SILU": lambda x: x / (1 + torch.exp(-x)),
}


def _sums(x: Tensor, w: Tensor) -> Tensor:
    return (x.double() @ w.double()).float()


@drawn(6, biased=SOME, name=st.sampled_from(list(ACTIVATIONS)), scalar=st.sampled_from([None, 0.5, -2.0]))
def products_cut(t: Env, biased: bool, name: str | None, scalar: float | None) -> None:
    """The sum of all products as they were stored, cut over the ring; residual and gate are of the part."""
    ttnn, n = t.ttnn, t.n
    (x, xs), (w, ws), (b, bs) = spread(t, 1, 1, 256, 128), spread(t, 128, 256 * n, scale=0.1), spread(t, 1, 256 * n)
    (r, rs), (g, gs) = spread(t, 1, 1, 256, 256), spread(t, 1, 1, 1, 256)
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(4, 4),
    )  # fmt: skip
    terms: dict[str, Any] = {}
    if scalar is not None:
        terms = dict(fused_ternary_scalar=scalar, addcmul_input_tensor1=r, addcmul_input_tensor2=g)
    product, out = ttnn.experimental.minimal_matmul_strided_reduce_scatter_async(
        x, w, 3, t.semaphores(3), ttnn.CoreCoord(0, 4), num_links=1, topology=ttnn.Topology.Ring, cluster_axis=1,
        compute_kernel_config=ttnn.init_device_compute_kernel_config(t.device.arch(), fp32_dest_acc_en=True),
        bias=b if biased else None, config=config, barrier_semaphore=t.semaphores(1)[0],
        fused_activation=None if name is None else ttnn.UnaryWithParam(getattr(ttnn.UnaryOpType, name)), **terms,
    )  # fmt: skip
    products = each(lambda x, w, b: ACTIVATIONS[name](_sums(x, w) + (b.flatten() if biased else 0.0)), xs, ws, bs)
    t.check(product, products, ulps=2)
    parts = sum(t.shadow.values(product)).chunk(n, 3)
    wanted = [p if scalar is None else rs[i] + scalar * p * gs[i] for i, p in enumerate(parts)]
    t.check(out, wanted, ulps=2)


@drawn(4, rows=st.sampled_from([128, 64]), name=st.sampled_from([None, "relu"]))
def products_cut_by_buffers(t: Env, rows: int, name: str | None) -> None:
    """The caller's buffer holds the part then, and that between what nobody may read."""
    ttnn, n = t.ttnn, t.n
    (x, xs), (w, ws) = spread(t, 1, 1, rows, 128), spread(t, 1, 1, 128, 256 * n, scale=0.1)
    config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(4, 2), in0_block_w=2, out_subblock_h=1, out_subblock_w=2,
        per_core_M=rows // 64, per_core_N=8, transpose_mcast=False, fused_activation=None,
    )  # fmt: skip
    between, buffer = t.empty(1, 1, rows, 256 * n, fill=0.0), t.empty(1, 1, rows, 256)
    product, out = ttnn.experimental.matmul_reduce_scatter_async(
        x, w, between, buffer, 3, t.semaphores(3), ttnn.CoreCoord(0, 4), barrier_semaphore=t.semaphores(1)[0],
        num_links=1, topology=ttnn.Topology.Ring, program_config=config, activation=name,
    )  # fmt: skip
    products = each(lambda x, w: _sums(x, w).clamp(min=0) if name else _sums(x, w), xs, ws)
    t.check(product, products, ulps=2)
    parts = sum(t.shadow.values(product)).chunk(n, 3)
    t.check(out, parts, ulps=2)
    t.check(buffer, parts, ulps=2)
    assert all(value.isnan().all() for value in t.shadow.values(between))


@drawn(2, hidden=st.sampled_from([0, 10]), scale=st.sampled_from([None, 0.2]))
def expert_rings(t: Env, hidden: int, scale: float | None) -> None:
    """Tokens cut over the ring, the prompt everywhere; the last tokens may be padding."""
    ttnn, heads, n = t.ttnn, 10, 4 * 288
    x, y = t.mesh.grid
    spatial, prompt = ([t.rand(1, heads, rows, 64) for _ in range(3)] for rows in (n, 32))
    how = {} if scale is None else dict(scale=scale)
    out, rear, _ = ttnn.transformer.exp_ring_joint_scaled_dot_product_attention(
        *(t.put(s, (None, 2)) for s in spatial), *(t.put(p) for p in prompt),
        persistent_output_buffer_k=t.empty(1, heads, n, 64), persistent_output_buffer_v=t.empty(1, heads, n, 64),
        joint_strategy="rear", logical_n=n - hidden,
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(x, y), q_chunk_size=32, k_chunk_size=32, exp_approx_mode=False
        ),
        dim=2, multi_device_global_semaphore=t.semaphores(2), num_links=2, cluster_axis=1, mesh_device=t.device,
        topology=ttnn.Topology.Ring, subdevice_id=ttnn.SubDeviceId(0), num_workers_per_link=y // 2, **how,
    )  # fmt: skip
    k, v = (torch.cat([spatial[i][:, :, : n - hidden], prompt[i]], 2) for i in (1, 2))
    weights = torch.softmax(torch.cat([spatial[0], prompt[0]], 2) @ k.mT * (scale or 64**-0.5), -1)
    t.check(out, t.shards((weights @ v)[:, :, :n], (None, 2)), ulps=2)
    t.check(rear, (weights @ v)[:, :, n:], ulps=2)


@drawn(4, shape=st.sampled_from([(1, 1, 32, 64), (33, 50)]), limits=st.sampled_from([(0.5, 2.0), (7.0, 3.0)]))
def soft_caps(t: Env, shape: tuple, limits: tuple) -> None:
    """A bound that is never reached, alone and on both sides of a gate."""
    (gate, _), (up, _) = spread(t, *shape, scale=4.0), spread(t, *shape, scale=4.0)

    def capped(x: Tensor, limit: float) -> Tensor:
        return limit * (2 / (1 + (-2 * x / limit).exp()) - 1)

    def gated(g: Tensor, u: Tensor) -> Tensor:
        return capped(g, limits[0]) / (1 + (-g).exp()) * capped(u, limits[1])

    agree(t, t.ttnn.softcap(gate, limits[0]), [capped(g, limits[0]) for g in held(t, gate)])
    agree(t, t.ttnn.situ_glu(gate, up, *limits), each(gated, held(t, gate), held(t, up)), ulps=6)


CASES = collect(globals())
