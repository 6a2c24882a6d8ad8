"""Properties of what asks for as many rows of devices as columns."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from tests.tt_impl.cases.properties.prop_collectives import _over
from tests.tt_impl.cases.properties.prop_matmul_fused import _sums
from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, spread


@drawn(2, axis=st.sampled_from([0, 1]))
def gathered_before_with_fsdp(t: Env, axis: int) -> None:
    """The weight's rows are cut over the other axis, and gathered into a buffer of their own.

    A step multiplies what both rings bring: the parts of the next device on either axis, not those of the same number.
    """
    inner = 64 * t.shape[0] * t.shape[1]
    x, xs = spread(t, 1, 1, 64, inner // t.shape[axis])
    w, ws = spread(t, inner // t.shape[1 - axis], 384, scale=0.1)
    buffer, weight = t.empty(1, 1, 64, inner), t.empty(inner, 384)
    config = t.ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=t.ttnn.CoreCoord(2, 6),
    )  # fmt: skip
    (out,) = t.ttnn.experimental.all_gather_minimal_matmul_async(
        x, w, config=config, num_workers_per_link=2, multi_device_global_semaphore=t.semaphores(2),
        persistent_output_buffer=buffer, num_links=1, cluster_axis=axis, topology=t.linear, force_transpose=True,
        fsdp_cluster_axis=1 - axis, fsdp_multi_device_global_semaphore=t.semaphores(2),
        persistent_weight_buffer=weight, fsdp_topology=t.linear,
    )  # fmt: skip
    whole = _over(t, axis, xs, lambda group, _: torch.cat(group, -1))
    weights = _over(t, 1 - axis, ws, lambda group, _: torch.cat(group, -2))
    t.check(weight, weights, ulps=0)
    size = t.shape[axis]
    products = []
    for device in range(t.n):
        row, column = divmod(device, t.shape[1])
        a, b = (row, column) if axis == 0 else (column, row)
        steps = [((a + step) % size, (b + step) % size) for step in range(size)]
        columns, rows = whole[device].chunk(size, -1), weights[device].chunk(size, -2)
        beside = [columns[i] for i, _ in steps], [rows[j] for _, j in steps]
        products.append(_sums(torch.cat(beside[0], -1), torch.cat(beside[1], -2)).float())
    t.check(out, products, ulps=2)


CASES = collect(globals())
