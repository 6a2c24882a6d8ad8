"""Matrix products with bias, activation and the fused forms of the diffusion transformers.

Legend: M rows, K inner, N columns; a product is taken in float32 and rounded once, to the dtype of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.values import Shards


def _bias(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias.reshape(-1)


@per_device("matmul")
def matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Any = None,
) -> Tensor:
    a = input_tensor_a.transpose(-1, -2) if transpose_a else input_tensor_a
    b = input_tensor_b.transpose(-1, -2) if transpose_b else input_tensor_b
    return activate(torch.matmul(a, b), activation)


@per_device("linear")
def linear(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    bias: Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Any = None,
) -> Tensor:
    a = input_tensor_a.transpose(-1, -2) if transpose_a else input_tensor_a
    b = input_tensor_b.transpose(-1, -2) if transpose_b else input_tensor_b
    return activate(_bias(torch.matmul(a, b), bias), activation)


def _joined(parts: Tensor | Sequence[Tensor]) -> Tensor:
    """Minimal matmul takes the rows of its input in one piece or as (prefix, suffix)."""
    return parts if isinstance(parts, Tensor) else torch.cat(list(parts), -2)


@per_device("experimental.minimal_matmul")
def minimal_matmul(
    input_tensor: Tensor | Sequence[Tensor],
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    *,
    fused_activation: Any = None,
    fuse_swiglu: bool = False,
) -> Tensor:
    if fuse_swiglu:
        raise TypeError("fuse_swiglu is not known")
    a = _joined(input_tensor)
    return activate(_bias(torch.matmul(a, weight_tensor), bias_tensor), fused_activation)


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
    fused_activation: Any = None,
    cluster_axis: int | None = None,
    chunks: int = 1,
    dim: int = -1,
    fuse_swiglu: bool = False,
    chunk_sizes: Sequence[int] = (),
) -> tuple[list[Tensor], ...]:
    """Gather the input's last dim along the axis, then multiply: [.., K/P] @ [K, N] -> ``chunks`` x [.., N/chunks]."""
    if fuse_swiglu or chunk_sizes:
        raise call.unsupported("fuse_swiglu and chunk_sizes")
    whole = gathered(input_tensor, -1, cluster_axis)
    call.written("persistent_output_buffer", whole)

    def multiplied(x: Tensor, weight: Tensor, bias: Any, residual: Any, gate: Any) -> Sequence[Tensor]:
        product = minimal_matmul(x, weight, bias, fused_activation=fused_activation)
        if residual is not None:
            product = residual + (1.0 if scalar is None else scalar) * product * gate
        return product.chunk(chunks, dim)

    inputs = (whole, weight_tensor, bias_tensor, addcmul_input_tensor1, addcmul_input_tensor2)
    outputs = call.each(multiplied, *inputs)
    return tuple(list(column) for column in zip(*outputs, strict=True))
