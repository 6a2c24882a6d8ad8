"""Reductions over rows, columns or both, and over batch and channels.

sum, mean         the matrix unit, HiFi4; those of float32 in a 32-bit destination the vector unit
var, std          by Welford's method: exact, packed as wide as the destination, then root and scalar
fast_reduce_nc    tiles added one by one in the destination
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from refsim.numerics.composites import Compute
from tt_impl.mock.numerics.kernel import Kernel, Unmodelled, dtype_of, rounded
from tt_impl.mock.rules.reduction import dims_of
from tt_impl.mock.storage.values import Shards

REDUCTION = Compute("HiFi4", fp32_dest_acc_en=True)
DIMS = {(-1,): "last", (-2,): "second_last", (-2, -1): "both"}


def _reduced(operation: str) -> Callable[..., list[Tensor]]:
    def rule(
        kernel: Kernel, input_tensor: Shards, dim: Any = None, keepdim: bool = False, *, scalar: float = 1.0
    ) -> list[Tensor]:
        compute = kernel.compute(REDUCTION)
        accurate = dtype_of(input_tensor) == "float32" and compute.fp32_dest_acc_en
        accurate = accurate and not kernel.call.kwargs.get("fast_and_approximate_mode")

        def one(x: Tensor) -> Tensor:
            dims = tuple(sorted({d % x.dim() - x.dim() for d in dims_of(x, dim)}))
            count = math.prod(x.shape[d] for d in dims)
            factor = scalar if operation == "sum" else scalar / count if count else math.nan
            if accurate or not x.numel():
                return compute.store(x.sum(dims, keepdim=keepdim) * factor, kernel.out_dtype)
            if dims not in DIMS or x.dim() < 2:
                raise Unmodelled("dim")
            if DIMS[dims] == "both":
                sums = kernel.pack(compute, compute.reduce_both(x, factor, kernel.out_dtype))
            else:
                dtype = dtype_of(input_tensor)
                sums = kernel.pack(compute, compute.reduce("sum", x, DIMS[dims], factor, dtype))
            return sums if keepdim else sums.reshape([s for d, s in enumerate(x.shape, -x.dim()) if d not in dims])

        return kernel.call.each(one, input_tensor)

    return rule


for _operation in ("sum", "mean"):
    rounded(_operation)(_reduced(_operation))


def _spread(operation: str) -> Callable[..., list[Tensor]]:
    def rule(
        kernel: Kernel, input_tensor: Shards, dim: Any = None, keepdim: bool = False, *, scalar: float = 1.0,
        correction: bool = True,
    ) -> list[Tensor]:  # fmt: skip
        compute = kernel.compute(REDUCTION)

        def one(x: Tensor) -> Tensor:
            dims = tuple(sorted({d % x.dim() - x.dim() for d in dims_of(x, dim)}))
            if dims not in DIMS:
                raise Unmodelled("dim")
            spread = compute.store(x.double().var(dims, correction=int(correction), keepdim=keepdim).float())
            factor = scalar**2
            if operation == "std":
                spread = compute.sfpu("sqrt", spread)
                factor = abs(scalar)
            unit = compute.vector()
            return kernel.pack(compute, spread if factor == 1 else unit.stored(unit.mul(spread, factor)))

        return kernel.call.each(one, input_tensor)

    return rule


for _operation in ("var", "std"):
    rounded(_operation)(_spread(_operation))

SUMS = Compute("HiFi4", fp32_dest_acc_en=False)


@rounded("experimental.fast_reduce_nc")
def fast_reduce_nc(kernel: Kernel, input: Shards, *, dims: Sequence[int], output: Any = None) -> list[Tensor]:
    compute = kernel.compute(SUMS)

    def one(x: Tensor) -> Tensor:
        outer = [d for d in range(x.dim()) if d in {d % x.dim() for d in dims}]
        if max(outer) >= x.dim() - 2:
            raise Unmodelled("dims")
        shape = [1 if d in outer else size for d, size in enumerate(x.shape)]
        tiles = x.movedim(outer, list(range(len(outer)))).flatten(0, len(outer) - 1)
        total = tiles[0]
        for tile in tiles[1:]:
            # what is already in the destination is not read anew, so one of 32 bits adds in float32
            total = total + tile if compute.fp32_dest_acc_en else compute.add(total, tile)
        return kernel.pack(compute, total.reshape(shape))

    return kernel.call.each(one, input)
