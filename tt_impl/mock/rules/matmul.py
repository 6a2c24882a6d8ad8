"""Matrix products with bias, activation and the fused forms of the diffusion transformers.

Legend: M rows, K inner, N columns; a product is taken in float32 and rounded once, to the dtype of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered, reduced, scattered
from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.values import Shards, round_to

TILE = 32


def _bias(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias.reshape(-1)


def _last(activation: Any, program_activation: Any) -> Any:
    """The one activation of a product: an argument, or part of the program config."""
    if activation is not None and program_activation is not None:
        raise TypeError("an activation beside that of the program_config is not known")
    return activation if program_activation is None else program_activation


@per_device("matmul")
def matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Any = None,
    program_activation: Any = None,
) -> Tensor:
    a = input_tensor_a.transpose(-1, -2) if transpose_a else input_tensor_a
    b = input_tensor_b.transpose(-1, -2) if transpose_b else input_tensor_b
    return activate(torch.matmul(a, b), _last(activation, program_activation))


@per_device("linear")
def linear(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, bias: Tensor | None = None,
    transpose_a: bool = False, transpose_b: bool = False, activation: Any = None, program_activation: Any = None,
) -> Tensor:  # fmt: skip
    product = matmul(input_tensor_a, input_tensor_b, transpose_a=transpose_a, transpose_b=transpose_b)
    return activate(_bias(product, bias), _last(activation, program_activation))


def _joined(parts: Tensor | Sequence[Tensor]) -> Tensor:
    """Minimal matmul takes its input's columns in one piece or as (prefix, suffix), the prefix filled up to a tile."""
    if isinstance(parts, Tensor):
        return parts
    prefix, suffix = parts
    return torch.cat([F.pad(prefix, (0, -prefix.shape[-1] % TILE)), suffix], -1)


def _swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up of columns that come as [a tile of gate | a tile of up] after each other."""
    gate, up = x.unflatten(-1, (-1, 2, TILE)).unbind(-2)
    return (F.silu(gate) * up).flatten(-2)


@per_device("experimental.minimal_matmul")
def minimal_matmul(
    input_tensor: Tensor | Sequence[Tensor],
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    *,
    fused_activation: Any = None,
    fuse_swiglu: bool = False,
) -> Tensor:
    a = _joined(input_tensor)
    product = _bias(torch.matmul(a, weight_tensor), bias_tensor)
    return _swiglu(product) if fuse_swiglu else activate(product, fused_activation)


@per_device("experimental.minimal_matmul_split")
def minimal_matmul_split(
    input_tensor: Tensor | Sequence[Tensor],
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    *,
    chunks: int = 3,
    dim: int = -1,
    fused_activation: Any = None,
    fuse_swiglu: bool = False,
) -> list[Tensor]:
    """[M, K] @ [K, chunks * N] -> ``chunks`` tensors [M, N]."""
    whole = minimal_matmul(
        input_tensor, weight_tensor, bias_tensor, fused_activation=fused_activation, fuse_swiglu=fuse_swiglu
    )
    return list(whole.chunk(chunks, dim))


@per_device("experimental.dit_minimal_matmul_addcmul_fused")
def dit_minimal_matmul_addcmul_fused(
    matmul_input_tensor: Tensor,
    matmul_weight_tensor: Tensor,
    scalar: float,
    addcmul_input_tensor1: Tensor,
    addcmul_input_tensor2: Tensor,
    bias_tensor: Tensor | None = None,
) -> Tensor:
    """residual + scalar * (x @ w + bias) * gate: the end of a diffusion transformer's branch."""
    product = minimal_matmul(matmul_input_tensor, matmul_weight_tensor, bias_tensor)
    return addcmul_input_tensor1 + scalar * product * addcmul_input_tensor2


@per_device("sparse_matmul")
def sparse_matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    sparsity: Tensor,
    nnz: int | None = None,
    is_input_a_sparse: bool = False,
    is_input_b_sparse: bool = True,
) -> Tensor:
    """Experts' products, zero where ``sparsity`` is.

    b sparse: [A, B, M, K] @ [1, E, K, N] -> [A, B, 1, E, M, N], sparsity [A, B, 1, E]; both: [1, E, M, K] -> [1, E, M,
    N], sparsity [1, 1, 1, E]; a sparse: [A, E, M, K] -> [A, E, M, N], sparsity [1, 1, A, E]. ``nnz`` must be the number
    of values that are not zero: a device would hang.
    """
    if nnz is not None and nnz != int((sparsity != 0).sum()):
        raise TypeError(f"nnz is {nnz}, but {int((sparsity != 0).sum())} values of sparsity are not zero")
    used = (sparsity != 0).float()
    if is_input_a_sparse:
        return torch.matmul(input_tensor_a, input_tensor_b) * used.reshape(*input_tensor_a.shape[:2], 1, 1)
    if is_input_b_sparse:
        product = torch.matmul(input_tensor_a[:, :, None, None], input_tensor_b)
        return product * used.reshape(*input_tensor_a.shape[:2], 1, -1, 1, 1)
    raise TypeError("sparse_matmul of two dense tensors is not known")


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
    fsdp_topology: Any = None,
    **how: Any,
) -> tuple[list[Tensor], ...]:
    """Gather the input's last dim along the axis, then multiply: [.., K/P] @ [K, N] -> ``chunks`` x [.., N/chunks].

    A weight whose rows are cut over ``fsdp_cluster_axis`` is gathered on the way too.
    """
    whole = gathered(input_tensor, -1, cluster_axis)
    call.written("persistent_output_buffer", whole)
    weight: Any = weight_tensor
    if fsdp_cluster_axis is not None:
        weight = gathered(weight_tensor, -2, fsdp_cluster_axis)
        call.written("persistent_weight_buffer", weight)

    def multiplied(x: Tensor, w: Tensor, bias: Any, residual: Any, gate: Any) -> Sequence[Tensor]:
        product = minimal_matmul(x, w, bias, **how)
        if residual is not None:
            product = residual + (1.0 if scalar is None else scalar) * product * gate
        return product.split(list(chunk_sizes), dim) if chunk_sizes else product.chunk(chunks, dim)

    outputs = call.each(multiplied, whole, weight, bias_tensor, addcmul_input_tensor1, addcmul_input_tensor2)
    return tuple(list(column) for column in zip(*outputs, strict=True))


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
) -> tuple[list[Tensor], ...]:
    """[.., K/P] @ [K/P, N], summed over the axis and cut along ``dim``: (products, residual + scalar * part * gate)."""
    if not isinstance(input_tensor, Shards):
        raise call.unsupported("an input in two parts")

    def multiplied(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        return minimal_matmul(x, weight, bias, fused_activation=fused_activation)

    def finished(part: Tensor, residual: Any, gate: Any) -> Tensor:
        if residual is None:
            return part
        return residual + (1.0 if fused_ternary_scalar is None else fused_ternary_scalar) * part * gate

    products = call.each(multiplied, input_tensor, weight_tensor, bias)
    parts = _summed_and_cut(call, products, input_tensor.mesh_shape, dim, cluster_axis)
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
    **how: Any,
) -> tuple[list[Tensor], ...]:
    """(products, their sum over all devices cut along ``dim``); the intermediate buffer is left to nobody."""
    if dim is None:
        dim = next(a for a in buffers_and_dim if isinstance(a, int))

    def multiplied(x: Tensor, weight: Tensor, bias: Any) -> Tensor:
        return linear(x, weight, bias=bias, **how)

    buffer = call.args[2] if persistent_intermediate_buffer is None else call.kwargs["persistent_intermediate_buffer"]
    nobody = torch.full(tuple(buffer.shape), float("nan"))
    call.store.write(buffer, [nobody] * len(input_tensor), call.name)
    products = call.each(multiplied, input_tensor, weight_tensor, bias)
    return products, _summed_and_cut(call, products, input_tensor.mesh_shape, dim, None)


def _summed_and_cut(
    call: Call, products: list[Tensor], mesh_shape: tuple[int, int], dim: int, cluster_axis: int | None
) -> list[Tensor]:
    """The reduce-scatter of products that are rounded to the dtype of the operation's first output."""
    rounded = call.each(lambda product: round_to(product, call.outputs[0].dtype), products)
    held = Shards(rounded, rounded[0].shape, mesh_shape)
    return scattered(reduced(held, cluster_axis), held.groups(cluster_axis), dim)
