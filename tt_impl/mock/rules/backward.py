"""Gradients of elementwise operations: torch differentiates the forward function.

Results are the gradients of the operands in order, those left out that ``are_required_outputs`` denies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.binary import BINARY
from tt_impl.mock.rules.eltwise import UNARY
from tt_impl.mock.rules.registry import Call, per_device, table

PLAIN = (
    "abs acos asin asinh atan atanh ceil celu cos cosh deg2rad digamma elu erf erfc erfinv exp exp2 "
    "expm1 floor frac gelu hardshrink hardsigmoid hardswish i0 lgamma log log10 log1p log2 "
    "log_sigmoid logit multigammaln neg rad2deg rdiv reciprocal relu round rsqrt sigmoid sign "
    "silu sin sinh softplus softshrink softsign sqrt square tan tanhshrink threshold trunc"
).split()
"""Operations of one tensor whose gradient is that of the function in ``UNARY``."""

OF_TWO = "atan2 div fmod hypot ldexp logaddexp logaddexp2 remainder rsub squared_difference xlogy".split()
"""Operations of two operands whose gradient is that of the function in ``BINARY``."""


def _tanh(x: Tensor) -> Tensor:
    """Compute tanh but for a constant on either side: its derivative, 4 sigmoid(-2|x|) (1 - sigmoid(-2|x|)), has no
    difference of near numbers.
    """
    far = 2 * torch.sigmoid(-2 * torch.where(x < 0, -x, x))
    return torch.where(x < 0, far, -far)


def _selu(x: Tensor) -> Tensor:
    """Compute selu with ttnn's constants; at zero the slope is that of negative numbers."""
    return 1.0507 * torch.where(x > 0, x, 1.67326 * torch.expm1(x.clamp(max=0)))


def _bias_gelu(x: Tensor, bias: Tensor, variant: Any = None, approximate: str = "none") -> Tensor:
    return F.gelu(x + bias, approximate="tanh" if getattr(variant, "name", "") == "Tanh" else approximate)


FORWARD: dict[str, Callable[..., Tensor]] = {
    **{name: UNARY[name] for name in PLAIN},
    **{name: BINARY[name] for name in OF_TWO},
    "add": lambda a, b: a + b,
    "addalpha": lambda a, b, alpha=1.0: a + alpha * b,
    "addcdiv": lambda a, b, c, value: a + value * b / c,
    "addcmul": lambda a, b, c, value: a + value * b * c,
    "assign": lambda a, b=None: a * 1 if b is None else a + b,  # ttnn gives the same gradient to both
    "bias_gelu": _bias_gelu,
    "concat": lambda a, b, dim=0: torch.cat((a, b), dim),
    "div_no_nan": lambda a, b: a * 0 if b == 0 else a / b,
    "hardtanh": lambda x, min=-1.0, max=1.0: F.hardtanh(x, min, max),
    "leaky_relu": F.leaky_relu,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "logiteps": lambda x, eps=0.0: torch.logit(x, eps),
    "max": torch.maximum,
    "min": torch.minimum,
    "mul": lambda a, b: a * b,
    "polygamma": lambda x, n: torch.polygamma(n, x),
    "relu6": F.relu6,
    "repeat": lambda x, shape: x.repeat(tuple(shape)),
    "selu": _selu,
    "sub": lambda a, b: a - b,
    "subalpha": lambda a, b, alpha=1.0: a - alpha * b,
    "tanh": _tanh,
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
}

OPERANDS = (
    "input_tensor",
    "input_tensor_a",
    "input_a",
    "other_tensor",
    "input_tensor_b",
    "input_tensor_c",
    "scalar",
    "bias",
)


def gradients(function: Callable[..., Tensor], grad: Tensor, operands: Sequence[Any], **options: Any) -> list[Tensor]:
    """Return the gradient of every operand that is a tensor; zeros where the function does not depend on it."""
    with torch.enable_grad():  # in float64, for derivatives that are small differences
        leaves = [x.detach().double().requires_grad_() if isinstance(x, Tensor) else x for x in operands]
        result = function(*leaves, **options)
        wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        results = torch.autograd.grad(result, wanted, grad.to(result.dtype).expand(result.shape), allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g.float() for leaf, g in zip(wanted, results, strict=True)]


def _backward(function: Callable[..., Tensor], skipped: int) -> Callable[..., list[Tensor]]:
    """Make the rule of a function's gradients; ``skipped`` operands come first and have none."""

    def rule(
        grad_tensor: Tensor, *operands: Any, are_required_outputs: Sequence[bool] | None = None, **options: Any
    ) -> list[Tensor]:
        operands += tuple(options.pop(name) for name in OPERANDS if name in options)
        results = gradients(function, grad_tensor, operands, **options)[skipped:]
        if are_required_outputs is None or len(results) == 1:
            return results
        return [g for g, required in zip(results, are_required_outputs, strict=True) if required]

    return rule


for _name, _function in FORWARD.items():
    per_device(f"{_name}_bw")(_backward(_function, skipped=int(_name == "where")))


def _of_clip(name: str) -> None:
    """Register the gradient of what is cut to bounds, which have none, be they numbers or tensors."""

    def rule(
        grad_tensor: Tensor, input_tensor: Tensor, min: float | Tensor | None = None, max: float | Tensor | None = None
    ) -> list[Tensor]:
        return gradients(lambda x: UNARY[name](x, min, max), grad_tensor, [input_tensor])

    rule.__qualname__ = f"{name}_bw"
    per_device(f"{name}_bw")(rule)


for _name in ("clamp", "clip"):
    _of_clip(_name)


def _of_power(name: str, of_negative: float) -> None:
    """Register the gradient of x ** exponent, which for negative numbers is one number, unless the exponent is 0."""

    def rule(grad_tensor: Tensor, input_tensor: Tensor, exponent: float) -> list[Tensor]:
        (gradient,) = gradients(lambda x: torch.pow(x, exponent), grad_tensor, [input_tensor])
        return [gradient if exponent == 0 else gradient.masked_fill(input_tensor < 0, of_negative)]

    rule.__qualname__ = name
    per_device(name)(rule)


_of_power("pow_bw", float("inf"))  # as ttnn's golden function says
_of_power("rpow_bw", float("nan"))  # so, too: a device does not give the gradient of ``rpow``


@per_device("acosh_bw", with_call=True)
def acosh_bw(call: Call, grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """Return the gradient of acosh, with the numbers that the device has for infinity and for NaN."""
    (gradient,) = gradients(torch.acosh, grad_tensor, [input_tensor])
    device = call.outputs[0].device()
    infinity = device.sfpu_inf()
    return [torch.nan_to_num(gradient, nan=device.sfpu_nan(), posinf=infinity, neginf=-infinity)]


@per_device("prod_bw")
def prod_bw(grad_tensor: Tensor, input_tensor: Tensor, dim: int | None = None) -> list[Tensor]:
    """Return the gradient of a product; of the gradient given, only what comes first along its dims is read."""
    if dim is None:
        return gradients(torch.prod, grad_tensor.flatten()[0], [input_tensor])
    return gradients(lambda x: x.prod(dim, keepdim=True), grad_tensor.narrow(dim, 0, 1), [input_tensor])


# what is filled does not depend on the input
table(dict.fromkeys(("fill_bw", "fill_zero_bw"), lambda grad_tensor, input_tensor: torch.zeros_like(grad_tensor)))
