"""Sum and mean over rows, columns or both; with a 32-bit destination those of float32 are taken on the vector unit."""

from __future__ import annotations

import math
from collections.abc import Callable
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
            factor = scalar / (count if operation == "mean" else 1)
            if accurate:
                return compute.store(x.sum(dims, keepdim=keepdim) * factor, kernel.out_dtype)
            if dims not in DIMS or x.dim() < 2:
                raise Unmodelled("dim")
            sums = kernel.pack(compute, compute.reduce("sum", x, DIMS[dims], factor))
            return sums if keepdim else sums.reshape([s for d, s in enumerate(x.shape, -x.dim()) if d not in dims])

        return kernel.call.each(one, input_tensor)

    return rule


for _operation in ("sum", "mean"):
    rounded(_operation)(_reduced(_operation))
