"""Products of bfloat16 tensors on processors that have no instructions for them: computed in float32, rounded once.

::

    x, weight [bfloat16] --> float32 --> F.linear, matmul, conv --> sums in float32 --> one rounding --> y [bfloat16]

torch's own kernels for such processors add up in float32 and round once as well, one product after the other: matrices
take 5 to 8 times as long as in float32, convolutions several hundred times. Answers differ by the order of sums alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

FEW_ROWS = 4
"""Below it a product mostly reads its matrix, and the conversion reads and writes that once more."""

_PRODUCTS = frozenset(
    (
        *(F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm),
        *(Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm),
    )
)


@cache
def has_instructions() -> bool:
    """Whether this processor multiplies bfloat16: AVX-512 or AMX of x86, or what ARM calls BF16."""
    return any(there and name.endswith("bf16") for name, there in torch.cpu.get_capabilities().items())


def products(dtype: str) -> AbstractContextManager[object]:
    """Within it products of bfloat16 tensors are as fast as the processor allows; nothing else changes.

    Args:
        dtype: that of the run: "bf16", or one that has no such products, where looking for them would cost 6 %.
    """
    return nullcontext() if dtype != "bf16" or has_instructions() else ProductsInFloat32()


class ProductsInFloat32(TorchFunctionMode):
    """Matrix products and convolutions of bfloat16 tensors are computed in float32 and their result rounded once."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS and args and "out" not in kwargs and _is_large(args[0]):
            args = tuple(map(_widened, args))
            kwargs = {name: _widened(value) for name, value in kwargs.items()}
            return func(*args, **kwargs).to(torch.bfloat16)
        return func(*args, **kwargs)


def _is_large(x: Any) -> bool:
    """Whether it is a tensor in bfloat16 of enough rows, on a processor."""
    if not isinstance(x, Tensor) or x.dtype is not torch.bfloat16 or x.device.type != "cpu" or x.dim() == 0:
        return False
    return x.numel() >= FEW_ROWS * x.shape[-1]


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype is torch.bfloat16 else value
