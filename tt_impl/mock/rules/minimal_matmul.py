"""Matrix products of the diffusion transformers: fused with gates, activations, gathers and reduce-scatters.

Legend: M rows, K inner, N columns, P devices of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered, reduced_and_scattered, total
from tt_impl.mock.rules.matmul import product
from tt_impl.mock.rules.registry import SUMS_BFLOAT16, TILE, Call, across, columns, per_device
from tt_impl.mock.storage.dtypes import round_to
from tt_impl.mock.storage.values import Shards
from tt_impl.trace.collectives import arguments


def _joined(parts: Tensor | Sequence[Tensor]) -> Tensor:
    """Join minimal matmul's input, whose columns may come as (prefix, suffix), the prefix filled up to a tile."""
    if isinstance(parts, Tensor):
        return parts
    prefix, suffix = parts
    return torch.cat([F.pad(prefix, (0, -prefix.shape[-1] % TILE)), suffix], -1)


def _swiglu(x: Tensor) -> Tensor:
    """Compute silu(gate) * up of columns that come as [a tile of gate | a tile of up] after each other."""
    gate, up = x.unflatten(-1, (-1, 2, TILE)).unbind(-2)
    return (F.silu(gate) * up).flatten(-2)


@per_device("experimental.minimal_matmul", rounds_once=SUMS_BFLOAT16)
def minimal_matmul(
    input_tensor: Tensor | Sequence[Tensor],
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    *,
    fused_activation: Any = None,
    fuse_swiglu: bool = False,
    product: Callable[..., Tensor] = product,
) -> Tensor:
    bias = None if bias_tensor is None else bias_tensor.reshape(-1)
    a = _joined(input_tensor)
    if fuse_swiglu:
        return _swiglu(product(a.float(), weight_tensor.float(), None if bias is None else bias.float()))
    return product(a, weight_tensor, bias, activation=fused_activation)


@per_device("experimental.minimal_matmul_split", rounds_once=SUMS_BFLOAT16)
def minimal_matmul_split(
    input_tensor: Tensor | Sequence[Tensor],
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    *,
    chunks: int = 3,
    dim: int = -1,
    **how: Any,
) -> list[Tensor]:
    """Multiply [M, K] @ [K, chunks * N] to ``chunks`` tensors [M, N]."""
    return list(minimal_matmul(input_tensor, weight_tensor, bias_tensor, **how).chunk(chunks, dim))


def with_residual(x: Tensor, residual: Tensor | None, gate: Any, scalar: Any) -> Tensor:
    """Compute residual + scalar * x * gate, where a residual is given: gate and scalar are then, too."""
    if residual is None:
        return x
    return residual + scalar * x * gate


@per_device("experimental.dit_minimal_matmul_addcmul_fused")
def dit_minimal_matmul_addcmul_fused(
    matmul_input_tensor: Tensor,
    matmul_weight_tensor: Tensor,
    scalar: float,
    addcmul_input_tensor1: Tensor,
    addcmul_input_tensor2: Tensor,
    bias_tensor: Tensor | None = None,
    *,
    product: Callable[..., Tensor] = product,
    with_residual: Callable[..., Tensor] = with_residual,
) -> Tensor:
    """Compute residual + scalar * (x @ w + bias) * gate: the end of a diffusion transformer's branch."""
    whole = minimal_matmul(matmul_input_tensor, matmul_weight_tensor, bias_tensor, product=product)
    return with_residual(whole, addcmul_input_tensor1, addcmul_input_tensor2, scalar)


def _beside(weight: Tensor, ahead: int, ring: int) -> Tensor:
    """Return ``ring`` parts of rows in the order of the input's parts they are multiplied by: ``ahead`` places on."""
    return weight.roll(-ahead * (weight.shape[-2] // ring), -2)


@across("experimental.all_gather_minimal_matmul_async")
def all_gather_minimal_matmul_async(
    call: Call,
    input_tensor: Shards,
    weight_tensor: Shards,
    *,
    bias_tensor: Shards | None = None,
    scalar: float | None = None,
    addcmul_input_tensor1: Shards | None = None,
    addcmul_input_tensor2: Shards | None = None,
    cluster_axis: int | None = None,
    chunks: int = 1,
    dim: int = -1,
    chunk_sizes: Sequence[int] = (),
    fsdp_cluster_axis: int | None = None,
    with_residual: Callable[..., Tensor] = with_residual,
    **how: Any,
) -> tuple[list[Tensor], ...]:
    """Gather the input's last dim along the axis, then multiply: [.., K/P] @ [K, N] -> ``chunks`` x [.., N/chunks].

    A weight whose rows are cut over ``fsdp_cluster_axis`` is gathered on the way, too, over a ring as large. Every step
    multiplies the parts that both rings bring then: those ``t`` devices on from this one, each along its own axis.
    """
    whole = gathered(input_tensor, -1, cluster_axis)
    call.written("persistent_output_buffer", whole)
    weight: Any = weight_tensor
    if fsdp_cluster_axis is not None:
        weight = gathered(weight_tensor, -2, fsdp_cluster_axis)
        call.written("persistent_weight_buffer", weight)
        places = zip(weight_tensor.places(cluster_axis), weight_tensor.places(fsdp_cluster_axis), strict=True)
        weight = call.each(_beside, weight, [b - a for a, b in places], input_tensor.ring_size(cluster_axis))

    def multiplied(x: Tensor, w: Tensor, bias: Any, residual: Any, gate: Any) -> Sequence[Tensor]:
        product = with_residual(minimal_matmul(x, w, bias, **how), residual, gate, scalar)
        return product.split(list(chunk_sizes), dim) if chunk_sizes else product.chunk(chunks, dim)

    outputs = call.each(multiplied, whole, weight, bias_tensor, addcmul_input_tensor1, addcmul_input_tensor2)
    return columns(outputs)


@across("experimental.minimal_matmul_strided_reduce_scatter_async")
def minimal_matmul_strided_reduce_scatter_async(
    call: Call,
    input_tensor: Shards | Sequence[Shards],
    weight_tensor: Shards,
    dim: int,
    *_machinery: Any,
    cluster_axis: int | None = None,
    bias: Shards | None = None,
    fused_activation: Any = None,
    fused_ternary_scalar: float | None = None,
    addcmul_input_tensor1: Shards | None = None,
    addcmul_input_tensor2: Shards | None = None,
    product: Callable[..., Tensor] = product,
    total: Callable[..., Tensor] = total,
    with_residual: Callable[..., Tensor] = with_residual,
) -> tuple[list[Tensor], ...]:
    """Sum [.., K/P] @ [K/P, N] over the axis, cut along ``dim``: (products, residual + scalar * part * gate)."""
    if not isinstance(input_tensor, Shards):
        raise call.unsupported("an input in two parts")

    multiplied = partial(minimal_matmul, fused_activation=fused_activation, product=product)
    finished = partial(with_residual, scalar=fused_ternary_scalar)
    products = call.each(multiplied, input_tensor, weight_tensor, bias)
    parts = _summed_and_cut(call, products, input_tensor.mesh_shape, dim, cluster_axis, total)
    return products, call.each(finished, parts, addcmul_input_tensor1, addcmul_input_tensor2)


@across("experimental.matmul_reduce_scatter_async")
def matmul_reduce_scatter_async(
    call: Call,
    input_tensor: Shards,
    weight_tensor: Shards,
    *buffers_and_dim: Any,
    dim: int | None = None,
    persistent_intermediate_buffer: Shards | None = None,
    bias: Shards | None = None,
    product: Callable[..., Tensor] = product,
    total: Callable[..., Tensor] = total,
    **how: Any,
) -> tuple[list[Tensor], ...]:
    """Return (products, their sum over all devices cut along ``dim``); the intermediate buffer is left to nobody."""
    named = arguments(call)
    call.leave_to_nobody(named["persistent_intermediate_buffer"], len(input_tensor))
    products = call.each(partial(product, **how), input_tensor, weight_tensor, bias)
    return products, _summed_and_cut(call, products, input_tensor.mesh_shape, named["dim"], None, total)


def _summed_and_cut(
    call: Call,
    products: list[Tensor],
    mesh_shape: tuple[int, int],
    dim: int,
    cluster_axis: int | None,
    total: Callable[..., Tensor],
) -> list[Tensor]:
    """Reduce and scatter products, rounded to the dtype of the operation's first output."""
    rounded = call.each(lambda product: round_to(product, call.outputs[0].dtype), products)
    return reduced_and_scattered(Shards(rounded, rounded[0].shape, mesh_shape), cluster_axis, dim, total)
