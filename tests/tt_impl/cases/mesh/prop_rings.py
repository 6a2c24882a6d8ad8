"""Properties of the collectives that ask for a ring of all devices, over sizes that divide it."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, spread


@drawn(4, rows=st.sampled_from([64, 128]), columns=st.sampled_from([32, 64]))
def gathers_in_blocks(t: Env, rows: int, columns: int) -> None:
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, rows, columns)
    buffer = t.empty(1, 1, rows, columns * t.n, fill=0.0)
    out = ttnn.experimental.strided_all_gather_async(
        x, buffer, 3, t.semaphores(2), num_links=1, topology=ttnn.Topology.Ring, cluster_axis=1, mm_cores_y=2,
        mm_block_ht=1, mm_block_wt=1,
    )  # fmt: skip
    t.check(out, torch.cat(parts, 3), ulps=0)
    t.check(buffer, torch.cat(parts, 3), ulps=0)


@drawn(4, rows=st.sampled_from([64, 128]), columns=st.sampled_from([32, 64]), batch=st.sampled_from([1, 2]))
def scatters_in_blocks(t: Env, rows: int, columns: int, batch: int) -> None:
    ttnn = t.ttnn
    x, parts = spread(t, batch, 1, rows, columns * t.n)
    out = ttnn.experimental.strided_reduce_scatter_async(
        x, None, 3, t.semaphores(3), mm_block_ht=1, mm_block_wt=1, num_links=1, topology=ttnn.Topology.Ring,
        cluster_axis=1, mm_cores_y=2, mm_N_full_block_wt=columns // 32, barrier_semaphore=t.semaphores(1)[0],
    )  # fmt: skip
    t.check(out, [sum(part.split(columns, 3)[place] for part in parts) for place in range(t.n)], ulps=2)


@drawn(6, rows=st.sampled_from([32, 64]), biased=st.booleans(), name=st.sampled_from([None, "relu", "silu"]))
def products_of_gathers(t: Env, rows: int, biased: bool, name: str | None) -> None:
    """The gathered input, and its product with every device's own weight and bias, of which the first row is read."""
    ttnn, n = t.ttnn, t.n
    x, parts = spread(t, 1, 1, rows, 64)
    w, ws = spread(t, 1, 1, 64 * n, 64, scale=0.1)
    b, bs = spread(t, 1, 1, 1 if rows == 32 else 32, 64)
    config: Any = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(2, 2), in0_block_w=2, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1, transpose_mcast=False, fused_activation=None, fuse_batch=False,
    )  # fmt: skip
    gathered, product = ttnn.experimental.all_gather_matmul_async(
        x, w, persistent_output_buffer=t.empty(1, 1, rows, 64 * n, fill=0.0), dim=3, bias=b if biased else None,
        multi_device_global_semaphore=t.semaphores(2), all_gather_core_grid_offset=ttnn.CoreCoord(0, 4),
        num_links=1, topology=ttnn.Topology.Ring, program_config=config, activation=name,
    )  # fmt: skip
    whole = torch.cat(parts, 3)

    def expected(w: Tensor, b: Tensor) -> Tensor:
        y = (whole.double().unsqueeze(-1) * w.double().unsqueeze(-3)).sum(-2)
        y = y + b[..., :1, :].double() if biased else y
        return {None: y, "relu": y * (y > 0), "silu": y / (1 + (-y).exp())}[name].float()

    t.check(gathered, whole, ulps=0)
    t.check(product, each(expected, ws, bs), ulps=2)


CASES = collect(globals())
