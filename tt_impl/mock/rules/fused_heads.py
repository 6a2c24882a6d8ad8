"""What decoders on a Galaxy fuse with a collective: heads split where a sum ends, joined where a gather does, products.

llama_rs_matmul                x @ w, and a sum over the axis of it or of what was multiplied before
all_reduce_create_qkv_heads    [1, 1, B, (H + 2 Hkv) * E] --sum over the axis--> heads of ``slice_size`` users
llama_rs_create_heads          the same sum; the device in place p of P keeps the heads of users p * B/P and on
all_gather_concat              [1, B/P, H, E] --gather--> [1, 1, B, H * E]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.collectives import Total, gathered, reduced, reduced_and_scattered, scattered, total
from tt_impl.mock.rules.heads import nlp_create_qkv_heads_decode
from tt_impl.mock.rules.matmul import product
from tt_impl.mock.rules.registry import REQUIRED, Call, across, nobodys
from tt_impl.mock.storage.dtypes import round_to
from tt_impl.mock.storage.values import Shards
from tt_impl.mock.storage.views import shared

_USERS = 2
"""The dim of users in [1, 1, B, D]."""


@across("experimental.llama_reduce_scatter")
def llama_reduce_scatter(
    call: Call,
    input_tensor: Shards,
    intermediate_packet_buffer: Any,
    dim: int,
    cross_device_semaphore: Any,
    subdevice_id: Any = None,
    cluster_axis: int = REQUIRED,
    mesh_device: Any = None,
    *,
    total: Total = total,
) -> list[Tensor]:
    """Sum over the axis and leave each device its part along ``dim``."""
    return reduced_and_scattered(input_tensor, cluster_axis, dim, total)


@across("experimental.llama_rs_matmul")
def llama_rs_matmul(
    call: Call,
    input_tensor: Shards,
    weight_tensor: Shards,
    intermediate_packet_buffer: Any,
    dim: int,
    cross_device_semaphore: Any,
    cluster_axis: int,
    mesh_device: Any = None,
    num_links: Any = None,
    subdevice_id: Any = None,
    second_weight_tensor: Shards | None = None,
    rs_tensor: Shards | None = None,
    *,
    product: Callable[..., Tensor] = product,
    total: Total = total,
    **how: Any,
) -> tuple[list[Tensor], ...]:
    """Return x @ w, x @ w2 if there is one, and of x @ w or another tensor the sum over the axis, cut along ``dim``.

    As llama_reduce_scatter_matmul/device/rs_matmul_op.cpp of tt-metal has it.
    """
    weights = [weight_tensor] if second_weight_tensor is None else [weight_tensor, second_weight_tensor]
    products = [call.each(partial(product, **how), input_tensor, weight) for weight in weights]
    if rs_tensor is None:
        rounded = call.each(lambda x: round_to(x, call.outputs[0].dtype), products[0])
        rs_tensor = Shards(rounded, rounded[0].shape, input_tensor.mesh_shape)
    return *products, reduced_and_scattered(rs_tensor, cluster_axis, dim, total)


@across("experimental.llama_rs_create_heads")
def llama_rs_create_heads(
    call: Call,
    input_tensor: Shards,
    intermediate_packet_buffer: Any,
    dim: int,
    cross_device_semaphore: Any,
    subdevice_id: Any = None,
    cluster_axis: int = REQUIRED,
    mesh_device: Any = None,
    topology: Any = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    total: Total = total,
) -> tuple[list[Tensor], ...]:
    """Sum over the axis, leave each device its users, and split their heads: q, k and v [1, B / P, heads, E].

    K and V have as many heads as Q, of which theirs are written.
    """
    sums = reduced(input_tensor, cluster_axis, total)
    users = scattered(sums, input_tensor.groups(cluster_axis), _USERS)
    heads = _split(call, users, num_heads, num_kv_heads)
    return tuple(_filled_up(values, output.shape[-2]) for values, output in zip(heads, call.outputs, strict=True))


def _filled_up(heads: list[Tensor], count: int) -> list[Tensor]:
    """Return as many heads as an output has; those that are not written are not a number."""
    return shared(lambda x: torch.cat([x, nobodys((*x.shape[:2], count - x.shape[2], x.shape[3]))], 2), heads)


@across("experimental.all_reduce_create_qkv_heads")
def all_reduce_create_qkv_heads(
    call: Call,
    input_tensor: Shards,
    buffer_tensor: Any,
    batch_offset: Shards,
    cluster_axis: int,
    mesh_device: Any = None,
    multi_device_global_semaphore: Any = None,
    num_heads: int = REQUIRED,
    *,
    num_kv_heads: int | None = None,
    slice_size: int | None = None,
    total: Total = total,
) -> tuple[list[Tensor], ...]:
    """Return the sum over the axis, and its heads: q, k and v of ``slice_size`` users from ``batch_offset`` on."""
    sums = reduced(input_tensor, cluster_axis, total)
    return sums, *_split(call, sums, num_heads, num_kv_heads, batch_offset, slice_size)


def _split(
    call: Call,
    rows: list[Tensor],
    heads: int,
    kv_heads: int | None,
    first: Shards | None = None,
    count: int | None = None,
) -> tuple[list[Tensor], ...]:
    def split(x: Tensor, first: Tensor | None) -> list[Tensor]:
        return nlp_create_qkv_heads_decode(
            x, num_heads=heads, num_kv_heads=kv_heads, batch_offset=first, slice_size=count
        )

    q, k, v = zip(*call.each(split, rows, first), strict=True)
    return list(q), list(k), list(v)


@across("experimental.all_gather_concat")
def all_gather_concat(
    call: Call,
    input_tensor: Shards,
    buffer_tensor: Any,
    dim: int,
    cluster_axis: int,
    mesh_device: Any = None,
    multi_device_global_semaphore: Any = None,
    num_heads: int = REQUIRED,
    memory_config: Any = None,
) -> list[Tensor]:
    """Gather users [1, B / P, H, E] along ``dim`` and join their first ``num_heads`` heads: [1, 1, B, H * E]."""
    users = gathered(input_tensor, dim, cluster_axis)
    return call.each(lambda x: x[:, :, :num_heads].flatten(2).unsqueeze(1), users)
