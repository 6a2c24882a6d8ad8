"""Elementwise operations of one tensor, and the activations that other operations apply at their end.

A function of this table takes the tensor and the operation's parameters under ttnn's own names; as an activation it
takes the parameters of a ``ttnn.UnaryWithParam`` in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import ttnn
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device

Number = int | float


def sigmoid(x: Tensor, vector_mode: int = 4, mode: Any = None) -> Tensor:
    """Apply the sigmoid: both vector modes and all accuracies are the same function."""
    return torch.sigmoid(x)


def gelu(x: Tensor, *, variant: Any = None) -> Tensor:
    return F.gelu(x, approximate="tanh" if getattr(variant, "name", "") == "Tanh" else "none")


def selu(x: Tensor, scale: float = 1.0507, alpha: float = 1.67326) -> Tensor:
    return scale * (x.clamp(min=0) + alpha * torch.expm1(x.clamp(max=0)))


def xielu(x: Tensor, alpha_p: float = 0.8, alpha_n: float = 0.8) -> Tensor:
    """Apply a parabola to the positive side, an exponential to the negative, with beta = 0.5 and eps = -1e-6."""
    negative = alpha_n * torch.expm1(x.clamp(max=-1e-6)) - alpha_n * x
    return torch.where(x > 0, alpha_p * x * x, negative) + 0.5 * x


def exp2(x: Tensor) -> Tensor:
    """Raise 2 to ``x``; results too small for a normal float32 are zero."""
    result = torch.exp2(x.float())
    return torch.where(result < torch.finfo(torch.float32).tiny, 0.0, result)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Clamp the operand and take its logit."""
    return torch.logit(clamped(x, eps))


def clamped(x: Tensor, eps: float | None) -> Tensor:
    """Clamp the operand of a logit between ``eps`` and 1 - ``eps``, whichever is the smaller."""
    return x if eps is None else x.clamp(min(eps, 1 - eps), max(eps, 1 - eps))


def prelu(x: Tensor, weight: Tensor | Number | Sequence[float]) -> Tensor:
    """Scale what is negative by ``weight``: one number, or one per channel (dim 1)."""
    if isinstance(weight, list | tuple):
        (weight,) = weight
    if isinstance(weight, Tensor):
        weight = weight.reshape((-1,) + (1,) * (x.dim() - 2)) if x.dim() > 1 else weight.reshape(-1)
    return torch.where(x < 0, weight * x, x)


def alt_complex_rotate90(x: Tensor) -> Tensor:
    """Turn pairs along the last dim (a, b) into (-b, a): times i, if they are complex numbers."""
    pairs = x.unflatten(-1, (-1, 2))
    return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)


def of_torch(names: str) -> dict[str, Callable[..., Tensor]]:
    """Return the functions that torch has under the names of operations."""
    return {name: getattr(torch, name) for name in names.split()}


def in_float64(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return ``function`` computed where its digits do not cancel, and no step overflows before its result does."""

    def computed(x: Tensor) -> Tensor:
        return function(x.double()).float()

    return computed


UNARY: dict[str, Callable[..., Tensor]] = {
    **of_torch(
        "abs acos acosh asin asinh atan atanh bitwise_not ceil cos deg2rad digamma erf erfc erfinv exp expm1 floor "
        "frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not neg rad2deg reciprocal "
        "relu rsqrt sign signbit sin sqrt square tan tanh trunc"
    ),
    "alt_complex_rotate90": alt_complex_rotate90,
    "cbrt": in_float64(lambda x: torch.sign(x) * torch.abs(x).pow(1 / 3)),
    "celu": lambda x, alpha=1.0, _reciprocal=None: F.celu(x, alpha),
    "clamp": torch.clamp,
    "clip": torch.clamp,
    "cosh": in_float64(torch.cosh),
    "elu": F.elu,
    "eqz": lambda x: x == 0,
    "exp2": exp2,
    "fill": lambda x, fill_value: torch.full_like(x, fill_value),
    "gelu": gelu,
    "gez": lambda x: x >= 0,
    "gtz": lambda x: x > 0,
    "hardmish": lambda x: x * ((x + 2).clamp(0, 2) / 2),
    "hardshrink": lambda x, lambd=0.5: F.hardshrink(x, lambd),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": in_float64(F.hardswish),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: x.clamp(min_val, max_val),
    "heaviside": lambda x, value: torch.heaviside(x, torch.as_tensor(value, dtype=x.dtype)),
    "i0": torch.special.i0,
    "i1": lambda x: torch.special.i1(x.clamp(-88.5, 88.5)),  # as far as a device goes
    "identity": lambda x: x,
    "leaky_relu": lambda x, negative_slope: torch.where(x < 0, negative_slope * x, x),
    "lez": lambda x: x <= 0,
    "log_sigmoid": F.logsigmoid,
    "logical_not_": torch.logical_not,
    "logit": logit,
    "ltz": lambda x: x < 0,
    "mish": F.mish,
    "multigammaln": lambda x: torch.special.multigammaln(x, 4),
    "nez": lambda x: x != 0,
    "polygamma": lambda x, k: torch.polygamma(k, x),
    "prelu": prelu,
    "rdiv": lambda x, value, rounding_mode=None: torch.div(torch.full_like(x, value), x, rounding_mode=rounding_mode),
    "relu6": lambda x: x.clamp(0, 6),
    "relu_max": lambda x, upper_limit: x.clamp(max=upper_limit).clamp(min=0),  # 0 for a limit below it
    "relu_min": lambda x, lower_limit: x.clamp(min=lower_limit),
    "round": lambda x, decimals=0: torch.round(x, decimals=decimals or 0),
    "rpow": lambda x, exponent: torch.pow(exponent, x),
    "selu": selu,
    "sigmoid": sigmoid,
    "sigmoid_accurate": torch.sigmoid,
    "silu": F.silu,
    "sinh": in_float64(torch.sinh),
    "softcap": lambda x, beta: beta * torch.tanh(x / beta),
    "softplus": F.softplus,
    "softshrink": lambda x, lambd=0.5: F.softshrink(x, lambd),
    "softsign": F.softsign,
    "swish": F.silu,
    "tanhshrink": in_float64(lambda x: x - torch.tanh(x)),
    "threshold": lambda x, threshold, value: F.threshold(x, threshold, value),
    "tril": lambda x, *, diagonal=0: torch.tril(x, diagonal),
    "triu": lambda x, *, diagonal=0: torch.triu(x, diagonal),
    "xielu": xielu,
}

OUT_OF_DOMAIN = frozenset({"acos", "acosh", "asin", "atanh"})
"""Outside their domain the result is infinite where it is bfloat16, and NaN where it is float32."""

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "add_unary_sfpu": lambda x, value: x + value,
    "clamp_tss": torch.clamp,
    "div_unary_sfpu": lambda x, value: x / value,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logical_not_unary": torch.logical_not,
    "logsigmoid": F.logsigmoid,
    "maximum": lambda x, value: x.clamp(min=value),
    "minimum": lambda x, value: x.clamp(max=value),
    "mul_unary_sfpu": lambda x, value: x * value,
    "power": torch.pow,
    "power_iterative": torch.pow,
    "prelu_sfpu": prelu,
    "recip": torch.reciprocal,
    "rsub": lambda x, value: value - x,
    "sub_unary_sfpu": lambda x, value: x - value,
    **{f"unary_{name}": function for name, function in of_torch("eq ge gt le lt ne").items()},
}
"""What a ``ttnn.UnaryOpType`` names otherwise than the operation."""

ACCURACIES = frozenset("erf erfc exp gelu gelu_approx log log10 log1p log2 mish rsqrt sigmoid sqrt tanh".split())
"""Activations whose parameters choose how well the same function is approximated."""


def activate(x: Tensor, activation: Any) -> Tensor:
    """Apply an activation: a name ("gelu"), a ``ttnn.UnaryOpType``, that with parameters, or a ``UnaryWithParam``."""
    if activation is None:
        return x
    name, parameters = parsed(activation)
    if name in ACCURACIES:
        name = name.removesuffix("_approx")
        parameters = []
    function = ACTIVATIONS.get(name) or UNARY.get(name)
    if function is None:
        raise TypeError(f"activation '{name}' is not known")
    try:
        result = function(x, *parameters)
    except TypeError as error:
        raise TypeError(f"activation '{name}' with parameters {parameters} is not known") from error
    return as_numbers(result, x)


def parsed(activation: Any) -> tuple[str, list[Any]]:
    """Return name and parameters of an activation."""
    kind, *parameters = (
        activation if isinstance(activation, tuple) else (activation, *getattr(activation, "params", ()))
    )
    kind = getattr(kind, "op_type", kind)
    return (kind if isinstance(kind, str) else kind.name).lower(), parameters


def as_numbers(result: Tensor, like: Tensor) -> Tensor:
    """Turn booleans into zeros and ones of the other tensor's dtype."""
    return result.to(like.dtype) if result.dtype == torch.bool else result


def chain(x: Tensor, activations: Sequence[Any] | None) -> Tensor:
    """Apply activations one after the other, nothing rounded in between."""
    for activation in activations or ():
        x = activate(x, activation)
    return x


def packed(result: Tensor, *inputs: Tensor) -> Tensor:
    """Return ``result`` as bfloat16 leaves the vector unit: NaN that no input held has become infinity."""
    made = result.isnan()
    for x in inputs:
        made = made & ~x.isnan()
    return result.masked_fill(made, float("inf"))


def _unary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(input_tensor: Tensor, *parameters: Any, **options: Any) -> Tensor:
        return as_numbers(function(input_tensor, *parameters, **options), input_tensor)

    return rule


def _bounded(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def rule(call: Call, input_tensor: Tensor) -> Tensor:
        result = function(input_tensor)
        return packed(result, input_tensor) if call.outputs[0].dtype == ttnn.bfloat16 else result

    return rule


for _name, _function in UNARY.items():
    if _name in OUT_OF_DOMAIN:
        per_device(_name, with_call=True)(_bounded(_function))
    elif _name != "logit":
        per_device(_name)(_unary(_function))


@per_device("logit", with_call=True)
def _logit(call: Call, input_tensor: Tensor, eps: float | None = None) -> Tensor:
    """Take a logit; of bfloat16 the kernel rounds bounds, 1 - x and x / (1 - x), too, and so does torch's."""
    if call.outputs[0].dtype != ttnn.bfloat16:
        return logit(input_tensor, eps)
    x = input_tensor.bfloat16()
    return (torch.logit(x, eps) if eps is None or eps <= 0.5 else logit(x, eps)).float()


@per_device("unary_chain")
def unary_chain(input_tensor: Tensor, ops_chain: Sequence[Any]) -> Tensor:
    return chain(input_tensor, ops_chain)


def _gated(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def rule(input_tensor: Tensor, dim: int = -1, *, variant: Any = None) -> Tensor:
        """Multiply the first half along ``dim`` by the activation of the second."""
        value, gate = input_tensor.chunk(2, dim)
        return value * (gelu(gate, variant=variant) if variant is not None else activation(gate))

    return rule


for _name, _function in {"glu": torch.sigmoid, "reglu": torch.relu, "geglu": F.gelu, "swiglu": F.silu}.items():
    per_device(_name)(_gated(_function))
