"""Ring joint attention on the device: gather and attention in one op, on separate rows of cores.

    core rows 0 .. y-2   SDPA, one shard after the other, merged by log-sum-exp
    core row  y-1        ring gather of K and V into two persistent (B, H, padded N, E) buffers

Rows of padding are masked from ``logical_n``; the prompt joins at the rear. A replicated prompt stays where it is; one
that is cut over the ring too is gathered into two buffers of its own and masked from ``logical_l``.

ttnn's other collectives fall back to a line where the fabric has no wrap-around link (LoudBox, whose graph in ttnn is a
plain 2x4); this one would stop there, so it is asked before.
"""

from __future__ import annotations

from typing import Any

import ttnn

from refsim.base.errors import UserError
from tt_impl.parallel.context import Context
from tt_impl.parallel.sdpa import program_config

QKV = tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]


def ring_attention(
    ctx: Context, qkv: QKV, rear: QKV | None = None, *, logical_n: int, logical_l: int | None = None
) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
    """(B, local heads, local N, E) over the ring axis -> (out, prompt out or None).

    ``logical_l``: prompt tokens of all devices where ``rear`` is cut over the ring too, None where it is replicated.
    """
    q, k, v = qkv
    axis = ctx.ring_axis
    ccl = ctx.ccl
    grid = ctx.device.compute_with_storage_grid_size()
    cut = _cut_rear(ctx, rear, logical_l) if rear is not None and logical_l is not None else {}
    with ccl.collective(axis):
        out, prompt_out, _lse = ttnn.transformer.ring_joint_scaled_dot_product_attention(
            q,
            k,
            v,
            *(rear or ()),
            persistent_output_buffer_k=ccl.gather_buffer(k, dim=2, axis=axis, name="ring.k"),
            persistent_output_buffer_v=ccl.gather_buffer(v, dim=2, axis=axis, name="ring.v"),
            joint_strategy="rear",
            logical_n=logical_n,
            program_config=program_config(ctx, q.shape[2], reserve_row=True),
            compute_kernel_config=ctx.sdpa_config,
            dim=2,
            multi_device_global_semaphore=ccl.semaphores("ring", axis, 2),
            num_links=ccl.num_links[axis],
            cluster_axis=axis,
            mesh_device=ctx.device,
            topology=ttnn.get_usable_topology(k, ccl.topology[axis], axis),
            subdevice_id=ttnn.SubDeviceId(0),
            ccl_core_grid_offset=ttnn.CoreCoord(0, grid.y - 1),
            **cut,
        )
    return out, prompt_out if rear else None


def _cut_rear(ctx: Context, rear: QKV, logical_l: int) -> dict[str, Any]:
    """Return the op's arguments for a prompt that is cut over the ring.

    It takes a prompt for replicated if a device has as many rows of it as there are tokens.
    """
    rows = rear[1].shape[2]
    if rows >= logical_l:
        raise UserError(
            f"a prompt of {logical_l} tokens in shards of {rows} lies on one device of the ring, which TTNN takes for "
            "a replicated one; use --prompt-layout replicated."
        )
    buffers = {
        f"persistent_output_buffer_joint_{n}": ctx.ccl.gather_buffer(
            x, dim=2, axis=ctx.ring_axis, name=f"ring.joint_{n}"
        )
        for n, x in zip("kv", rear[1:], strict=True)
    }
    return {"logical_l": logical_l, **buffers}
