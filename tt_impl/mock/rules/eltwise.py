"""Elementwise operations, reductions, softmax and embedding."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import per_device

Number = int | float

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "identity": lambda x: x,
    "log": torch.log,
    "neg": torch.neg,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}

BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": operator.add,
    "div": operator.truediv,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "maximum": lambda a, b: torch.maximum(a, torch.as_tensor(b, dtype=a.dtype)),
    "minimum": lambda a, b: torch.minimum(a, torch.as_tensor(b, dtype=a.dtype)),
    "multiply": operator.mul,
    "ne": operator.ne,
    "rsub": lambda a, b: b - a,
    "subtract": operator.sub,
}

IN_PLACE = {"add_": "add", "divide_": "div", "multiply_": "multiply", "rsub_": "rsub", "subtract_": "subtract"}


def activate(x: Tensor, activation: Any) -> Tensor:
    """Apply an activation: a name ("gelu"), a ``ttnn.UnaryOpType``, that with parameters, or a ``UnaryWithParam``."""
    if activation is None:
        return x
    if isinstance(activation, tuple):
        activation = activation[0]
    kind = getattr(activation, "op_type", activation)
    name = (kind if isinstance(kind, str) else kind.name).lower()
    if name in ("gelu", "gelu_approx"):  # the parameter chooses a lookup table for the same function
        return F.gelu(x)
    if name == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if name in UNARY:
        return UNARY[name](x)
    raise TypeError(f"activation '{name}' is not known")


def _chain(x: Tensor, activations: Sequence[Any]) -> Tensor:
    for activation in activations or ():
        x = activate(x, activation)
    return x


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda input_tensor: function(input_tensor)


def _binary(function: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    def rule(
        input_tensor_a: Tensor | Number,
        input_tensor_b: Tensor | Number,
        *,
        activations: Sequence[Any] = (),
        input_tensor_a_activations: Sequence[Any] = (),
        input_tensor_b_activations: Sequence[Any] = (),
    ) -> Tensor:
        a = _chain(input_tensor_a, input_tensor_a_activations)
        b = _chain(input_tensor_b, input_tensor_b_activations)
        if not isinstance(a, Tensor):
            a = torch.as_tensor(a, dtype=b.dtype)
        result = function(a, b)
        return _chain(result.to(a.dtype) if result.dtype == torch.bool else result, activations)

    return rule


for _name, _function in UNARY.items():
    per_device(_name)(_unary(_function))
for _name, _function in BINARY.items():
    per_device(_name)(_binary(_function))
for _name, _plain in IN_PLACE.items():
    per_device(_name)(_binary(BINARY[_plain]))


@per_device("gelu")
def gelu(input_tensor: Tensor, *, variant: Any = None) -> Tensor:
    tanh = getattr(variant, "name", "") == "Tanh"
    return F.gelu(input_tensor, approximate="tanh" if tanh else "none")


@per_device("pow")
def pow_(input_tensor: Tensor, exponent: Tensor | Number) -> Tensor:
    return torch.pow(input_tensor, exponent)


@per_device("clamp")
def clamp(input_tensor: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    return torch.clamp(input_tensor, min, max)


@per_device("addcmul")
def addcmul(input_a: Tensor, input_b: Tensor, input_c: Tensor, *, value: Number = 1.0) -> Tensor:
    return input_a + value * input_b * input_c


@per_device("where")
def where(predicate: Tensor, true_value: Tensor | Number, false_value: Tensor | Number) -> Tensor:
    return torch.where(predicate != 0, true_value, false_value)


@per_device("swiglu")
def swiglu(input_tensor: Tensor, dim: int = -1) -> Tensor:
    value, gate = input_tensor.chunk(2, dim)
    return value * F.silu(gate)


@per_device("geglu")
def geglu(input_tensor: Tensor, dim: int = -1) -> Tensor:
    value, gate = input_tensor.chunk(2, dim)
    return value * F.gelu(gate)


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(
        input_tensor: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, scalar: Number = 1.0
    ) -> Tensor:
        dims = tuple(range(input_tensor.dim())) if dim is None else dim
        return function(input_tensor, dim=dims, keepdim=keepdim) * scalar

    return rule


for _name, _function in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}.items():
    per_device(_name)(_reduction(_function))


@per_device("argmax")
def argmax(input_tensor: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return torch.argmax(input_tensor, dim=dim, keepdim=keepdim)


@per_device("topk")
def topk(input_tensor: Tensor, k: int = 32, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Tensor]:
    return list(torch.topk(input_tensor, k, dim, largest, sorted))


@per_device("gather")
def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch.gather(input, dim, index)


@per_device("scatter")
def scatter(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return torch.scatter(input, dim, index, src.to(input.dtype))


@per_device("softmax")
def softmax(input_tensor: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(input_tensor, dim)


@per_device("embedding")
def embedding(
    input_tensor: Tensor, weight: Tensor, *, padding_idx: int | None = None, embeddings_type: Any = None
) -> Tensor:
    """Ids [.., S] and table [V, D] -> [.., S, D]; a padding id keeps the row it has in the table.

    ``embeddings_type`` says what a device may keep of the table in its memory; the rows are the same.
    """
    return F.embedding(input_tensor, weight.reshape(-1, weight.shape[-1]))
