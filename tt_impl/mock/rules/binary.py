"""Elementwise operations of two operands, either of which may be a Python number, plain and in place.

Operands broadcast as in torch. A number reaches a device in the dtype of the tensor beside it; a float beside integers
whose result is float32 has made float32 of them before, as ttnn documents it for division, product and remainder.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import ttnn
from torch import Tensor

from tt_impl.mock.rules.eltwise import UNARY, as_numbers, chain, of_torch, packed
from tt_impl.mock.rules.registry import ALSO_CALLED, Call, across, per_device, table
from tt_impl.mock.storage.dtypes import BLOCK_FLOATS, INTEGERS
from tt_impl.mock.storage.values import Shards

Number = int | float
Operand = Any  # Shards, or a number


def _whole(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Refuse the division of integers by zero: nobody says what a device makes of it."""

    def guarded(a: Tensor, b: Tensor) -> Tensor:
        if not a.is_floating_point() and not b.is_floating_point() and bool((b == 0).any()):
            raise TypeError("the division of integers by zero is not known")
        return function(a, b)

    return guarded


def divide(a: Tensor, b: Tensor, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return a / b
    return _whole(lambda x, y: torch.div(x, y, rounding_mode=rounding_mode))(a, b)


def shift_left(a: Tensor, b: Tensor) -> Tensor:
    """Shift; bits beyond the width of the dtype fall away when the result is stored."""
    return torch.where((b >= 0) & (b < 32), a << b.clamp(0, 31), torch.zeros_like(a))


def shift_right(a: Tensor, b: Tensor) -> Tensor:
    """Shift INT32 arithmetically, by more than 31 to 0; UINT32 logically, by at most 31."""
    if bool((b < 0).any()):
        raise TypeError("a right shift by less than 0 bits is not known")
    return torch.where((a < 0) & (b > 31), 0, a >> b.clamp(max=31))


def shift_right_logical(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((b >= 0) & (b < 32), torch.remainder(a, 2**32) >> b.clamp(0, 31), torch.zeros_like(a))


BINARY: dict[str, Callable[..., Tensor]] = {
    **of_torch(
        "atan2 bitwise_and bitwise_or bitwise_xor eq gcd ge gt hypot lcm le logical_and logical_or logical_xor lt "
        "maximum minimum ne pow xlogy"
    ),
    "add": operator.add,
    "bias_gelu": lambda a, b: F.gelu(a + b),
    "bitwise_left_shift": shift_left,
    "bitwise_right_shift": shift_right,
    "div": divide,
    "div_no_nan": lambda a, b: torch.where(b == 0, 0.0, a / b),
    "floor_div": lambda a, b: torch.floor(a / b),
    "fmod": _whole(torch.fmod),
    "ldexp": lambda a, b: a * torch.exp2(b.float()),
    "logaddexp": lambda a, b: torch.logaddexp(a.float(), b.float()),
    "logaddexp2": lambda a, b: torch.logaddexp2(a.float(), b.float()),
    "logical_left_shift": shift_left,
    "logical_right_shift": shift_right_logical,
    "multiply": operator.mul,
    "remainder": _whole(torch.remainder),
    "rsub": lambda a, b: b - a,
    "squared_difference": lambda a, b: (a - b).square(),
    "subtract": operator.sub,
}

IN_PLACE = {"divide_": "div"} | {
    f"{name}_": name
    for name in (
        "add bias_gelu eq ge gt ldexp le logaddexp logaddexp2 logical_and logical_or logical_xor lt multiply ne rsub "
        "squared_difference subtract"
    ).split()
}
"""The result is written into the first operand."""

EXACT = frozenset({"div_no_nan", "floor_div", "fmod", "maximum", "minimum", "pow", "remainder"})
"""With a number as second operand these are operations of one tensor, and the number is a parameter in float32."""

DIVISIONS = frozenset({"ttnn.div", "ttnn.divide_"})
"""0 / 0 is infinite where the result is bfloat16."""

PRODUCTS = frozenset({"ttnn.multiply", "ttnn.multiply_"})
"""Zero times infinity, or NaN, is zero, unless a float32 makes the destination one of 32 bits: then it is NaN."""
_OF_16_BITS = (ttnn.bfloat16, *BLOCK_FLOATS)

ROUND_ONCE = frozenset({"add", "multiply", "subtract"})
"""On bfloat16, torch computes these as it does in float32, and rounds the result once."""

DROPS_ACTIVATIONS = frozenset({"maximum", "minimum", "remainder"})
"""With a number as second operand ttnn takes activations for these and does not apply them."""


def _number(call: Call, value: Operand, dtype: ttnn.DataType, exact: bool = False) -> Operand:
    """Return a number as an operation passes it beside a tensor of ``dtype``; what is no number stays."""
    if not isinstance(value, bool | int | float):
        return value
    if dtype in INTEGERS and call.outputs[0].dtype in INTEGERS:
        if not float(value).is_integer():
            raise call.unsupported(f"the number {value} beside {dtype.name} where the result is of integers, too")
        return torch.tensor(int(value), dtype=torch.int64)
    number = torch.tensor(float(value), dtype=torch.float32)
    return number if exact or dtype in (ttnn.float32, *INTEGERS) else number.bfloat16().float()


def _operands(call: Call, a: Operand, b: Operand) -> tuple[Any, Any]:
    dtype = next(x.dtype for x in (a, b) if isinstance(x, Shards) and x.dtype is not None)
    return _number(call, a, dtype), _number(call, b, dtype, call.name.removeprefix("ttnn.") in EXACT)


def _apply(
    call: Call, function: Callable[..., Tensor], a: Operand, b: Operand, options: dict[str, Any]
) -> list[Tensor]:
    """Apply ``function``; ``options`` are the activations, and what goes to the function (a ``rounding_mode``)."""
    options = dict(options)
    activations = [options.pop(f"{kind}activations", ()) for kind in ("", "input_tensor_a_", "input_tensor_b_")]
    if any(activations) and isinstance(b, int | float) and call.name.removeprefix("ttnn.") in DROPS_ACTIVATIONS:
        raise call.unsupported("activations beside a number, which ttnn would not apply")

    tensors = [*call.outputs, *(operand for operand in (a, b) if isinstance(operand, Shards))]
    zero_wins = call.name in PRODUCTS and all(tensor.dtype in _OF_16_BITS for tensor in tensors)

    def one(x: Tensor, y: Tensor) -> Tensor:
        after, before_a, before_b = activations
        x = chain(x, before_a)
        y = chain(y, before_b)
        result = function(x, y, **options)
        if zero_wins and not math.isfinite(result.sum()):
            result = result.masked_fill((x == 0) | (y == 0), 0.0)
        if call.name in DIVISIONS and call.outputs[0].dtype == ttnn.bfloat16:
            result = packed(result, x, y)
        return chain(as_numbers(result, x), after)

    rounds_once = not any(activations) and call.name.removeprefix("ttnn.").rstrip("_") in ROUND_ONCE
    return call.each(one, *_operands(call, a, b), rounds_once=rounds_once)


def _binary(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def rule(call: Call, input_tensor_a: Operand, input_tensor_b: Operand, **options: Any) -> list[Tensor]:
        return _apply(call, function, input_tensor_a, input_tensor_b, options)

    return rule


_FIRST = ("input_a", "input_tensor")
_SECOND = ("input_b", "value", "scalar", "exponent")
"""What overloads call the two operands by keyword."""
_OPERANDS = dict.fromkeys(_FIRST, "input_tensor_a") | dict.fromkeys(_SECOND, "input_tensor_b")

for _name, _function in (BINARY | {name: BINARY[plain] for name, plain in IN_PLACE.items()}).items():
    across(_name)(_binary(_function))
    ALSO_CALLED[f"ttnn.{_name}"] = _OPERANDS


@per_device("isclose")
def isclose(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    a, b = torch.broadcast_tensors(input_tensor_a.float(), input_tensor_b.float())
    return torch.isclose(a, b, rtol, atol, equal_nan).float()


@per_device("addalpha")
def addalpha(input_tensor_a: Tensor, input_tensor_b: Tensor, alpha: float) -> Tensor:
    if not input_tensor_a.is_floating_point():
        raise TypeError("a sum of integers with alpha, which is a float, is not known")
    return input_tensor_a + alpha * input_tensor_b


@per_device("polyval")
def polyval(input_tensor_a: Tensor, coeffs: Sequence[float]) -> Tensor:
    """Evaluate a polynomial; the first coefficient is that of the highest power."""
    result = torch.full_like(input_tensor_a, coeffs[0])
    for coefficient in coeffs[1:]:
        result = result * input_tensor_a + coefficient
    return result


@per_device("bcast")
def bcast(input_a: Tensor, input_b: Tensor, math_op: Any, dim: Any) -> Tensor:
    """Take of the second operand only the first row (``dim`` H), column (W) or number (HW), whatever its shape."""
    name = {"ADD": "add", "SUB": "subtract", "MUL": "multiply"}[math_op.name]
    rows, columns = (slice(1 if letter in dim.name else None) for letter in "HW")
    return BINARY[name](input_a, input_b[..., rows, columns])


@per_device("addcmul")
def addcmul(input_a: Tensor, input_b: Tensor, input_c: Tensor, *, value: Number = 1.0) -> Tensor:
    if not input_a.is_floating_point():  # a factor in float32 would lose digits of large integers
        if not float(value).is_integer():
            raise TypeError(f"value={value} beside integers is not known")
        value = int(torch.tensor(value)) if isinstance(value, float) else value  # the binding takes a float32
    return input_a + value * input_b * input_c


def _loss(error: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def loss(input_reference: Tensor, input_prediction: Tensor, *, reduction: Any = None) -> Tensor:
        errors = error(input_reference.float() - input_prediction.float())
        mode = "NONE" if reduction is None else reduction.name
        return {"NONE": torch.clone, "MEAN": torch.mean, "SUM": torch.sum}[mode](errors)

    return loss


def _multiplied_and_added(
    input_tensor_a: Tensor, input_tensor_b: Any = None, input_tensor_c: Any = None, value: Any = None
) -> Tensor:
    """Compute a * b + c; ``value`` is the one of b and c that is a number."""
    b, c = (value if operand is None else operand for operand in (input_tensor_b, input_tensor_c))
    return input_tensor_a * b + c


table(
    {
        "addcdiv": lambda input_a, input_b, input_c, *, value=1.0: input_a + value * input_b / input_c,
        "clamped_silu_glu": lambda gate, up, limit: F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit),
        "l1_loss": _loss(torch.abs),
        "lerp": lambda input, end, weight: input + weight * (end - input),
        "mac": _multiplied_and_added,
        "mse_loss": _loss(torch.square),
        "snake_beta": lambda input_tensor, alpha, beta: input_tensor + torch.sin(alpha * input_tensor).square() / beta,
        "subalpha": lambda input_tensor_a, input_tensor_b, alpha: addalpha(input_tensor_a, input_tensor_b, -alpha),
    }
)


@across("where")
def where(call: Call, predicate: Shards, true_value: Operand, false_value: Operand) -> list[Tensor]:
    """Choose; a number that is NaN is packed as infinity where the result is bfloat16."""

    def one(chosen: Tensor, *values: Any) -> Tensor:
        if call.outputs[0].dtype == ttnn.bfloat16:
            values = tuple(math.inf if isinstance(value, float) and math.isnan(value) else value for value in values)
        return torch.where(chosen != 0, *values)

    return call.each(one, predicate, true_value, false_value)


@per_device("situ_glu")
def situ_glu(gate: Tensor, up: Tensor, beta1: float, beta2: float) -> Tensor:
    softcap = UNARY["softcap"]
    return softcap(gate, beta1) * torch.sigmoid(gate) * softcap(up, beta2)
