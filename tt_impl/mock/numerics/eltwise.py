"""Element-wise operations of one and two tensors, addcmul, and activations that other kernels apply at their end.

The destination has 32 bits where a tensor is float32; an SFPU function is approximate where the call says so. Additions
run on the matrix unit unless both operands are float32, products on the vector unit unless they are told to be fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refsim.numerics import FUNCTIONS
from refsim.numerics.composites import Compute, elementwise
from refsim.numerics.formats import truncate
from tt_impl.mock.numerics.kernel import ROUNDED, Kernel, Unmodelled, dtypes_of, rounded
from tt_impl.mock.numerics.unrounded import UNROUNDED
from tt_impl.mock.rules.eltwise import activate, clamped, parsed
from tt_impl.mock.rules.registry import RULES
from tt_impl.mock.storage.values import Shards

SAME = {"swish": "silu", "sigmoid_accurate": "sigmoid", "recip": "reciprocal"}
"""Functions that have another name in :mod:`refsim.numerics`."""
APPROXIMATE = {"gelu": True}
"""Whether an activation without a parameter that says so is approximate; by default it is not."""
WITH_NUMBERS = frozenset(
    "clamp clamp_tss clip fill hardtanh heaviside maximum minimum relu_max relu_min threshold where".split()
)
"""Functions that may give a number of the call, a float32; their kernels do not round it before they store it."""


def compute_of(kernel: Kernel, *operands: Any) -> Compute:
    """Return what element-wise kernels run with: HiFi4, and 32 bits where a tensor is float32."""
    wide = "float32" in {*dtypes_of(operands), kernel.out_dtype}
    return Compute("HiFi4", fp32_dest_acc_en=wide, arch=kernel.arch, level=kernel.level)


def _stored(compute: Compute, value: Tensor) -> Tensor:
    """Return what a store without rounding leaves: it cuts to a 16-bit destination."""
    return value if compute.fp32_dest_acc_en else truncate(value, 7)


def activated(compute: Compute, value: Tensor, activation: Any) -> Tensor:
    """Apply an activation of another kernel, as ``ttnn`` names it, to what the destination holds."""
    if activation is None:
        return value
    name, parameters = parsed(activation)
    plain = name.removesuffix("_approx")
    function = SAME.get(plain, plain)
    if function in FUNCTIONS:
        cheap = bool(parameters[-1]) if parameters else APPROXIMATE.get(plain, False)
        return replace(compute, approximate=cheap or plain != name).sfpu(function, value)
    if name in ("power", "power_iterative"):
        return elementwise.raised(compute, value, parameters[0])
    if name in WITH_NUMBERS:
        return _stored(compute, activate(value, activation))
    if f"ttnn.{name}" in UNROUNDED:
        return activate(value, activation)
    raise Unmodelled(f"activation {name}")


def chained(compute: Compute, value: Tensor, activations: Any) -> Tensor:
    """Apply activations one after the other in the destination."""
    for activation in activations or ():
        value = activated(compute, value, activation)
    return value


def _unary(name: str) -> Callable[..., list[Tensor]]:
    def rule(kernel: Kernel, x: Shards, *parameters: Any, variant: Any = None, **options: Any) -> list[Tensor]:
        compute = compute_of(kernel, x)
        function = SAME.get(name, name)
        kind = getattr(variant, "name", "") or getattr(options.pop("mode", None), "name", "")
        cheap = kind.startswith("Fast") or bool(kernel.call.kwargs.get("fast_and_approximate_mode"))
        if kind == "Tanh":
            function = "gelu_tanh"
        if options or parameters not in ((), (4,)):
            raise Unmodelled(", ".join(options) or "parameters")
        compute = replace(compute, approximate=cheap)
        return kernel.call.each(lambda x: kernel.pack(compute, compute.sfpu(function, x)), x)

    return rule


for _name in (*FUNCTIONS, *SAME):
    if f"ttnn.{_name}" not in UNROUNDED and _name not in ("gelu_tanh", "recip"):
        rounded(_name)(_unary(_name))


def _chosen(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> list[list[Tensor]]:
    values = RULES[kernel.call.name](kernel.call, args, kwargs)
    if kwargs.get("activations"):
        raise Unmodelled("activations")
    compute = compute_of(kernel, *args, *kwargs.values())
    return [[_stored(compute, value) for value in devices] for devices in values]


ROUNDED.update({f"ttnn.{name}": _chosen for name in WITH_NUMBERS - {"clamp_tss"}})  # an activation alone


@rounded("logit")
def logit(kernel: Kernel, input_tensor: Shards, eps: float | None = None) -> list[Tensor]:
    compute = compute_of(kernel, input_tensor)

    def one(x: Tensor) -> Tensor:
        return elementwise.logit(compute.store(clamped(x, eps)), dtype=kernel.out_dtype, compute=compute)

    return kernel.call.each(one, input_tensor)


@rounded("unary_chain")
def unary_chain(kernel: Kernel, input_tensor: Shards, ops_chain: Any) -> list[Tensor]:
    compute = compute_of(kernel, input_tensor)
    return kernel.call.each(lambda x: kernel.pack(compute, chained(compute, x, ops_chain)), input_tensor)


def _binary(name: str) -> Callable[..., list[Tensor]]:
    def rule(kernel: Kernel, first: Any, second: Any, **options: Any) -> list[Tensor]:
        activations = [options.pop(f"{kind}activations", ()) for kind in ("", "input_tensor_a_", "input_tensor_b_")]
        if options:
            raise Unmodelled(", ".join(options))
        operands = [_number(value, first, second) for value in (first, second)]
        wide = dtypes_of((first, second)) == {"float32"}
        fast = bool(kernel.call.kwargs.get("fast_and_approximate_mode"))
        compute = compute_of(kernel, first, second)

        def one(a: Tensor, b: Tensor) -> Tensor:
            after, before_a, before_b = activations
            a, b = (_prepared(compute, x, chain) for x, chain in ((a, before_a), (b, before_b)))
            return kernel.pack(compute, chained(compute, OPERATIONS[name](compute, a, b, wide, fast), after))

        return kernel.call.each(one, *operands)

    return rule


def _number(value: Any, *operands: Any) -> Any:
    """Return a number as it reaches a kernel, in the dtype of the tensor beside it."""
    if not isinstance(value, bool | int | float):
        return value
    number = torch.tensor(float(value))
    return number if "float32" in dtypes_of(operands) else number.bfloat16().float()


def _prepared(compute: Compute, x: Tensor, activations: Any) -> Tensor:
    """Apply what comes before the operation; the result is packed in between."""
    return compute.store(chained(compute, x, activations)) if activations else x


def _added(compute: Compute, a: Tensor, b: Tensor, wide: bool, fast: bool) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return compute.vector().add(a, b) if wide else compute.add(a, b)


def _subtracted(compute: Compute, a: Tensor, b: Tensor, wide: bool, fast: bool) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return compute.vector().add(a, -b) if wide else compute.sub(a, b)


def _multiplied(compute: Compute, a: Tensor, b: Tensor, wide: bool, fast: bool) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    if fast and not wide:
        return compute.mul(a, b)
    return elementwise.product(compute, a, b)


def _divided(compute: Compute, a: Tensor, b: Tensor, wide: bool, fast: bool) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return elementwise.quotient(compute, a, b, fast and not wide)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": _added,
    "subtract": _subtracted,
    "rsub": lambda compute, a, b, wide, fast: _subtracted(compute, b, a, wide, fast),
    "multiply": _multiplied,
    "pow": lambda compute, a, b, wide, fast: elementwise.raised(compute, a, b),
    "div": _divided,
    "squared_difference": lambda compute, a, b, wide, fast: compute.sfpu(
        "square", _subtracted(compute, a, b, wide, fast)
    ),
}
"""What the destination holds of two operands; whether both are float32, whether ``fast_and_approximate_mode`` is on."""
for _name in OPERATIONS.keys() - {"pow"}:
    rounded(_name, "divide_" if _name == "div" else f"{_name}_")(_binary(_name))


_power_of_tensors = _binary("pow")


@rounded("pow")
def power(kernel: Kernel, input: Shards | float, exponent: Shards | float, **options: Any) -> list[Tensor]:
    if not isinstance(exponent, int | float):
        return _power_of_tensors(kernel, input, exponent, **options)
    if options:
        raise Unmodelled(", ".join(options))
    compute = compute_of(kernel, input)
    return kernel.call.each(lambda x: kernel.pack(compute, elementwise.raised(compute, x, exponent)), input)


@rounded("rpow")
def rpow(kernel: Kernel, input_tensor: Shards, exponent: float) -> list[Tensor]:
    compute = compute_of(kernel, input_tensor)
    base = torch.tensor(float(exponent))
    return kernel.call.each(lambda x: kernel.pack(compute, elementwise.raised(compute, base, x)), input_tensor)


@rounded("addcmul")
def addcmul(kernel: Kernel, *tensors: Shards, value: float = 1.0, **named: Shards) -> list[Tensor]:
    operands = (*tensors, *(named[name] for name in ("input_a", "input_b", "input_c") if name in named))
    compute = compute_of(kernel, *operands)
    return kernel.call.each(
        lambda a, b, c: elementwise.addcmul(a, b, c, value=value, dtype=kernel.out_dtype, compute=compute), *operands
    )
