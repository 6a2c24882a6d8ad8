"""Batch norm, with the statistics given or its own."""

from __future__ import annotations

from torch import Tensor

from refsim.numerics.composites import batch_norms as composites
from tt_impl.mock.numerics.kernel import Kernel, computing, dtype_of, widened


def normed(
    kernel: Kernel, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None,
    epsilon: float,
) -> Tensor:  # fmt: skip
    x, mean, variance, *affine = widened(x, mean, variance, weight, bias)
    compute = kernel.compute(composites.BATCH_NORM)
    return composites.batch_norm(
        x, mean, variance, tuple(affine), eps=epsilon, compute=compute, out_dtype=kernel.out_dtype
    )


def moments(kernel: Kernel, x: Tensor) -> tuple[Tensor, Tensor]:
    dtype = dtype_of(kernel.call.argument("input", 0))
    return composites.channel_moments(x, dtype=dtype, compute=kernel.compute(composites.BATCH_NORM))


def moved(kernel: Kernel, running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    dtype = dtype_of(kernel.call.kwargs["running_mean"])
    return composites.moved(running, batch, momentum, dtype=dtype, compute=kernel.compute(composites.BATCH_NORM))


computing("batch_norm", moments=moments, normed=normed, moved=moved)
