"""Average pooling: the rows of a window are summed by the matrix unit, each times one over the window's size.

Source: tt-metal's `compute_pool_2d.cpp` and `pool_utils.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torch import Tensor

from refsim.numerics.composites import Compute
from tt_impl.mock.numerics.kernel import Kernel, computing
from tt_impl.mock.rules.pool import Pair
from tt_impl.mock.rules.registry import TILE

POOL = Compute("HiFi4", fp32_dest_acc_en=False)


def averaged(kernel: Kernel, framed: Tensor, size: Pair, steps: Pair, divisors: Tensor) -> Tensor:
    """Average windows of [N, C, H, W] as :func:`tt_impl.mock.rules.pool.averaged`; the scaler is cut to bf16.

    A window of more rows than a tile takes, half of them where the last channels fill no more than half a tile, has a
    destination of 32 bits by default, and so has the whole image, which ttnn sums instead.
    """
    partial = 0 < framed.shape[1] % TILE <= TILE // 2
    rows = TILE // 2 if partial else TILE
    wide = prod(size) > rows or tuple(size) == framed.shape[2:]
    compute = kernel.compute(replace(POOL, fp32_dest_acc_en=wide))
    windows = framed.unfold(2, size[0], steps[0]).unfold(3, size[1], steps[1]).flatten(4)
    by_place = windows.permute(2, 3, 0, 1, 4)
    divisors = divisors.expand(1, 1, *by_place.shape[:2])[0, 0]
    result = by_place.new_empty(by_place.shape[:4])
    for divisor in divisors.unique().tolist():
        places = divisors == divisor
        result[places] = compute.reduce("sum", by_place[places][..., None], "second_last", 1.0 / divisor)[..., 0, 0]
    return kernel.pack(compute, result).permute(2, 3, 0, 1)


computing("avg_pool2d", averaged=averaged)
computing("adaptive_avg_pool2d", averaged=averaged)
