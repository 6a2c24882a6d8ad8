"""Operations of complex tensors, each of two parts: torch's of complex numbers.

What ttnn calls by one name for real and complex operands has a rule of its own here, :data:`ALSO_REAL`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tt_impl.mock.rules.registry import per_device

Parts = Sequence[Tensor]
"""Real and imaginary part."""

ALSO_REAL = frozenset(
    f"ttnn.{name}" for name in "abs reciprocal abs_bw reciprocal_bw add_bw sub_bw mul_bw div_bw".split()
)
MARK = " (complex)"
"""Ends the names of their rules."""

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "angle": torch.angle,
    "conj": torch.conj,
    "imag": torch.imag,
    "is_imag": lambda z: z.real == 0,
    "is_real": lambda z: z.imag == 0,
    "polar": lambda z: torch.polar(z.real, z.imag),
    "real": torch.real,
    "reciprocal": torch.reciprocal,
}
BINARY: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b, alpha: a + alpha * b,
    "div": torch.div,
    "mul": torch.mul,
    "sub": lambda a, b, alpha: a - alpha * b,
}


def _whole(value: Tensor | Parts) -> Tensor:
    return value if isinstance(value, Tensor) else torch.complex(*value)


def _parts(value: Tensor) -> list[Tensor]:
    if not value.is_complex():
        return [value.float()]
    value = value.resolve_conj()
    return [value.real.contiguous(), value.imag.contiguous()]


def _gradients(function: Callable[..., Tensor], grad: Tensor | Parts, operands: Sequence[Parts]) -> list[Tensor]:
    """Return the parts of the gradient of every operand."""
    with torch.enable_grad():
        leaves = [_whole(operand).requires_grad_() for operand in operands]
        of_each = torch.autograd.grad(function(*leaves), leaves, _whole(grad))
    return [part for gradient in of_each for part in _parts(gradient)]


def _named(name: str) -> str:
    return name + MARK if f"ttnn.{name}" in ALSO_REAL else name


def _unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    def forward(input_tensor: Parts) -> list[Tensor]:
        return _parts(function(_whole(input_tensor)))

    def backward(grad_tensor: Tensor | Parts, input_tensor: Parts) -> list[Tensor]:
        return _gradients(function, grad_tensor, [input_tensor])

    forward.__qualname__ = name
    per_device(_named(name))(forward)
    if not name.startswith("is_"):
        backward.__qualname__ = f"{name}_bw"
        per_device(_named(f"{name}_bw"))(backward)


def _binary(name: str, function: Callable[..., Tensor]) -> None:
    def backward(grad_tensor: Parts, input_tensor_a: Parts, input_tensor_b: Parts) -> list[Tensor]:
        return _gradients(function, grad_tensor, [input_tensor_a, input_tensor_b])

    def scaled(grad_tensor: Parts, input_tensor_a: Parts, input_tensor_b: Parts, alpha: float) -> list[Tensor]:
        return _gradients(partial(function, alpha=alpha), grad_tensor, [input_tensor_a, input_tensor_b])

    rule = scaled if name in ("add", "sub") else backward
    rule.__qualname__ = f"{name}_bw"
    per_device(_named(f"{name}_bw"))(rule)


for _name, _function in UNARY.items():
    _unary(_name, _function)
for _name, _of_two in BINARY.items():
    _binary(_name, _of_two)
