"""More collectives: one sender for all, sums gathered again, strided ones, and those fused with a matmul."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ttnn
from torch import Tensor

from tt_impl.mock.rules.collectives import Total, gathered, reduced, reduced_and_scattered, sent, total
from tt_impl.mock.rules.matmul import product
from tt_impl.mock.rules.registry import REQUIRED, Call, across
from tt_impl.mock.storage.values import Shards


@across("broadcast")
def broadcast(call: Call, input_tensor: Shards, sender_coord: Any, *, cluster_axis: int | None = None) -> list[Tensor]:
    """Give every device of a group what the sender holds; in the other groups their member in its place sends."""
    rows, columns = input_tensor.mesh_shape
    if cluster_axis is None and 1 not in (rows, columns):
        raise call.unsupported("a mesh of two axes without cluster_axis")
    sender = sender_coord[0] * columns + sender_coord[1]
    groups = input_tensor.groups(cluster_axis)
    place = next(group.index(sender) for group in groups if sender in group)
    return sent(input_tensor, groups, place)


@across("experimental.all_reduce_async")
def all_reduce_async(call: Call, input_tensor: Shards, *args: Any, total: Total = total, **kwargs: Any) -> list[Tensor]:
    """Sum over an axis, or over all devices where their number is given instead.

    Overloads: (x, number of devices, ...), (x, axis, mesh, ..., math_op), (x, buffer, axis, mesh, semaphore).
    """
    call.check_named(kwargs, ("cluster_axis", "math_op", "num_devices", *_SEMAPHORES))
    if any(isinstance(a, ttnn.ReduceType) and a != ttnn.ReduceType.Sum for a in (*args, *kwargs.values())):
        raise call.unsupported("a math_op that is no sum")
    axis = kwargs.get("cluster_axis")
    numbers = [a for a in args if isinstance(a, int)]
    on_axis = "mesh_device" in call.kwargs or any(isinstance(a, ttnn.MeshDevice) for a in call.args)
    if on_axis and axis is None and numbers:
        axis = numbers[0]
    devices = kwargs.get("num_devices", numbers[0] if numbers and not on_axis else None)
    if devices is not None and devices != len(input_tensor):
        raise call.unsupported(f"{devices} of {len(input_tensor)} devices")
    return reduced(input_tensor, axis, total)


_SEMAPHORES = "buffer_tensor barrier_semaphores rs_global_semaphores ag_global_semaphores use_noc1_only".split()


@across("experimental.strided_all_gather_async", "experimental.strided_reduce_scatter_async")
def strided(
    call: Call,
    input_tensor: Shards,
    _buffers: Any = None,
    dim: int = REQUIRED,
    *_semaphores: Any,
    cluster_axis: int | None = None,
    total: Total = total,
) -> list[Tensor]:
    """Gather, or reduce and scatter, in the order in which a matmul wants or makes the blocks: it changes none of them.

    Outputs of a reduction before the last one are staging.
    """
    if "gather" in call.name:
        return gathered(input_tensor, dim, cluster_axis)
    if len(call.outputs) != 1:
        raise call.unsupported(f"{len(call.outputs)} outputs")
    return reduced_and_scattered(input_tensor, cluster_axis, dim, total)


@across("experimental.all_gather_matmul_async")
def all_gather_matmul_async(
    call: Call,
    input_tensor: Shards,
    weight_tensor: Shards,
    persistent_output_buffer: Any = None,
    dim: int = REQUIRED,
    *_semaphores: Any,
    bias: Shards | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: str | None = None,
    program_activation: Any = None,
    product: Callable[..., Tensor] = product,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return (the input gathered over all devices, that times every device's weight)."""
    whole = gathered(input_tensor, dim, None)

    def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        row = None if bias is None else bias.reshape(-1, bias.shape[-1])[:1]
        return product(
            x, weight, row, transpose_a=transpose_a, transpose_b=transpose_b, activation=activation,
            program_activation=program_activation,
        )  # fmt: skip

    return whole, call.each(multiplied, whole, weight_tensor, bias)
