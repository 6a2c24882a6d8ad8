"""Collectives that add: hop by hop, in the dtype of the tensor, alone and behind a product."""

from __future__ import annotations

from functools import reduce

from torch import Tensor

from refsim.numerics.composites import Compute, collectives
from tt_impl.mock.numerics.kernel import Kernel, computing
from tt_impl.mock.numerics.linear import minimal_product, product, with_residual


def total(kernel: Kernel, parts: list[Tensor], dim: int | None) -> Tensor:
    """Add the tensors of a group; an all-reduce, without ``dim``, is scattered along the last that can be cut."""
    dtype = kernel.out_dtype
    compute = Compute(fp32_dest_acc_en=dtype == "float32", arch=kernel.arch, level=kernel.level)
    shape = parts[0].shape
    dims = range(len(shape) - 1, -1, -1) if dim is None else [dim]
    dim = next((d for d in dims if shape[d] % len(parts) == 0), None)
    if dim is None:
        return reduce(lambda a, b: compute.store(compute.add(a, b), dtype), parts)
    return collectives.all_reduce(parts, dim=dim, dtype=dtype, compute=compute)


computing(
    "reduce_scatter",
    "experimental.reduce_scatter_minimal_async",
    "all_reduce",
    "experimental.all_reduce_async",
    "experimental.strided_reduce_scatter_async",
    total=total,
)
computing("experimental.matmul_reduce_scatter_async", product=product, total=total)
computing(
    "experimental.minimal_matmul_strided_reduce_scatter_async",
    product=minimal_product,
    total=total,
    with_residual=with_residual,
)
