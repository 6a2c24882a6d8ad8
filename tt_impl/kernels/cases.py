"""The kernels' cases: the drafter's shapes, reduced for every day and real, and what torch says to them.

    hidden 2048, 16 rows of noise in one tile row, 32 query and 4 key-value heads of 128, 6144 wide in the middle

The golden answer is computed in float64 from the same values, rounded to the storage dtype first. Reduced shapes keep
several blocks along every loop, a last tile that is not full, and more nodes than some loops have blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LIMITS = {"fp32": 1e-4, "bf16": 1e-3}
"""1 - PCC: 0.9999 in fp32 and 0.999 in bf16."""
_MASKED = -1e30


@dataclass(frozen=True)
class KernelCase:
    """One kernel on one set of shapes.

    Attributes:
        shape: rows, then what the kernel's loops run over (see ``operands``).
        options: of the kernel, in place of those that follow from the shape.
        real: the drafter's own shape, which takes longer.
    """

    kernel: str
    shape: tuple[int, ...]
    dtype: str
    grid: tuple[int, int] = (2, 2)
    real: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        grid = "x".join(map(str, self.grid))
        return f"{self.kernel}-{'x'.join(map(str, self.shape))}-{self.dtype}-grid{grid}"


def cases(*, real: bool) -> Iterator[KernelCase]:
    """Return the cases of reduced shapes, or of real ones."""
    shapes: dict[str, list[tuple[int, ...]]] = {
        "residual_add": [(70, 300), (16, 2048)],
        "rmsnorm": [(40, 330), (70, 512)],
        "rope": [(40, 3, 128), (33, 2, 128)],
        "softmax": [(70, 77), (32, 256)],
        "matmul": [(70, 330, 200), (32, 512, 256)],
        "matmul_residual_add": [(70, 330, 200), (32, 512, 256)],
        "matmul_silu_mul": [(40, 330, 200), (32, 512, 256)],
        "argmax": [(40, 300), (16, 1024)],
    }
    if real:
        shapes = {
            "residual_add": [(16, 2048)],
            "rmsnorm": [(16, 2048), (16 * 32, 128)],
            "rope": [(16, 32, 128), (2016, 4, 128)],
            "softmax": [(16 * 32, 1024)],
            "matmul": [(16, 2048, 4096), (16, 2048, 512)],
            "matmul_residual_add": [(16, 4096, 2048), (16, 6144, 2048)],
            "matmul_silu_mul": [(16, 2048, 6144)],
            "argmax": [(16, 151936)],
        }
    for kernel, several in shapes.items():
        for index, shape in enumerate(several):
            for dtype in ("fp32", "bf16"):
                grid = (8, 10) if real else ((2, 2), (3, 1))[index]
                yield KernelCase(kernel, shape, dtype, grid, real)


def operands(case: KernelCase, seed: int = 0) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Return (operands in the kernel's order, golden answer in float64, options of the kernel)."""
    g = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if case.dtype == "fp32" else torch.bfloat16

    def draw(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(size, generator=g) * scale).to(dtype)

    rows, *rest = case.shape
    if case.kernel == "residual_add":
        x = draw(rows, *rest)
        y = draw(rows, *rest)
        return [x, y], x.double() + y.double(), {}
    if case.kernel == "rmsnorm":
        x = draw(rows, *rest)
        weight = draw(1, *rest)
        exact = x.double()
        expected = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
        return [x, weight], expected, {"features": rest[0]}
    if case.kernel == "rope":
        heads, features = rest
        x = draw(rows, heads * features)
        angle = torch.rand(rows, features // 2, generator=g) * 6.28
        cos = angle.cos().to(dtype)
        sin = angle.sin().to(dtype)
        first, second = x.double().unflatten(-1, (heads, features)).chunk(2, -1)
        c = cos.double()[:, None]
        s = sin.double()[:, None]
        expected = torch.cat([first * c - second * s, second * c + first * s], -1).flatten(1)
        return [x, cos, sin], expected, {"head_dim": features}
    if case.kernel == "softmax":
        (columns,) = rest
        padded = columns + -columns % 32
        x = draw(rows, padded, scale=3.0)
        mask = torch.zeros(1, padded, dtype=dtype)
        mask[:, columns:] = _MASKED
        expected = F.pad(x[:, :columns].double().softmax(-1), (0, padded - columns))
        return [x, mask], expected, {}
    if case.kernel == "argmax":
        (columns,) = rest
        padded = columns + -columns % 32
        x = draw(rows, padded)
        x[3, columns // 3] = 9.0
        x[3, columns // 2] = 9.0  # the first of equal ones
        x[:, columns:] = _MASKED
        return [x, torch.arange(float(padded))[None]], x.argmax(-1, keepdim=True).double(), {}
    inner, columns = rest
    a = draw(rows, inner)
    b = draw(inner, columns, scale=inner**-0.5)
    product = a.double() @ b.double()
    if case.kernel == "matmul":
        return [a, b], product, {}
    if case.kernel == "matmul_residual_add":
        residual = draw(rows, columns)
        return [a, b, residual], product + residual.double(), {}
    up = draw(inner, columns, scale=inner**-0.5)
    return [a, b, up], F.silu(product) * (a.double() @ up.double()), {}
