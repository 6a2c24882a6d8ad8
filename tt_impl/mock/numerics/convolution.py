"""Convolutions: rows of windows times a matrix, in K blocks.

conv2d's blocks are a row of the kernel [from memory of tt-metal's sources], conv3d's all of the kernel's places with
``C_in_block`` channels. A transposed one is conv2d of the image with zeros between its pixels and the kernel turned.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from refsim.numerics.composites import Compute, linear
from tt_impl.mock.numerics.eltwise import activated
from tt_impl.mock.numerics.kernel import Kernel, computing, widened

CONV = Compute("HiFi4", fp32_dest_acc_en=False)
CONV3D = Compute("HiFi2", fp32_dest_acc_en=False)


def conv2d(kernel: Kernel, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple, dilation: tuple) -> Tensor:
    """Convolve padded [N, C, H, W] with [O, C, K, L] and activate."""
    compute = kernel.compute(CONV)
    activation: Any = getattr(kernel.call.kwargs.get("conv_config"), "activation", None)
    return linear.conv(
        x, weight, bias, compute=compute, windows=linear.Windows(stride=stride, dilation=dilation),
        blocks=(weight.shape[1] * weight.shape[3], None), activation=lambda x: activated(compute, x, activation),
        out_dtype=kernel.out_dtype,
    )  # fmt: skip


def conv3d(kernel: Kernel, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple, dilation: tuple) -> Tensor:
    """Convolve padded [N, C, D, H, W] with [O, C, J, K, L]."""
    x, weight, bias = widened(x, weight, bias)
    channels = getattr(kernel.program_config, "C_in_block", None) or weight.shape[1]
    return linear.conv(
        x, weight, bias, compute=kernel.compute(CONV3D), windows=linear.Windows(stride=stride, dilation=dilation),
        blocks=(channels * math.prod(weight.shape[2:]), channels), out_dtype=kernel.out_dtype,
    )  # fmt: skip


computing("conv1d", "conv2d", "conv_transpose2d", convolve=conv2d)
computing("experimental.conv3d", convolve=conv3d)
