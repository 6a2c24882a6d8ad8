"""What a numeric rule knows of an operation's kernel, and how it is written and found.

    call --> Kernel (compute config, program config, dtypes, chip) --> rule --> refsim.numerics --> values as packed

A numeric rule is one of two:

* ``@rounded(names)``: a function of the kernel and the operation's arguments, ``Shards`` of all devices, as a rule of
  ``registry.across`` is one of a call. It gives the values that the packer leaves.
* ``computing(names, product=linear)``: the operation's own rule, which says what goes where, with another ``product``:
  it is called with the kernel first, then as the one that the rule has by default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any

import torch
import ttnn
from torch import Tensor

from refsim.numerics.composites import Compute
from refsim.numerics.composites.compute import zeros_to
from refsim.numerics.formats import BLOCK
from tt_impl.mock.rules.registry import RULES, Call
from tt_impl.mock.storage.values import Shards

FLOATS = ("float32", "bfloat16", "bfloat8_b", "bfloat4_b")
BLOCK_FLOATS = ("bfloat8_b", "bfloat4_b")


class Unmodelled(Exception):
    """A numeric rule does not know how a kernel rounds with this option; the call is rounded once instead."""


@dataclass(frozen=True)
class Kernel:
    """The kernel that a call runs.

    Attributes:
        call: the operation, after ttnn has built its program.
        level: ``exact`` or ``fast``.
    """

    call: Call
    level: str

    @cached_property
    def arch(self) -> str:
        """Return the chip as :mod:`refsim.numerics` calls it."""
        return self.call.outputs[0].device().arch().name.lower()

    @property
    def out_dtype(self) -> str:
        """Return the dtype that results are packed to."""
        return dtype_of(self.call.outputs[0])

    @property
    def program_config(self) -> Any:
        """Return the program config that was given, or None."""
        return self.call.kwargs.get("program_config") or self.call.kwargs.get("config")

    @property
    def is_welford(self) -> bool:
        """Whether a norm takes mean and variance by Welford's method, on the vector unit."""
        return bool(self.call.kwargs.get("use_welford") or getattr(self.program_config, "use_welford", False))

    def default(self, compute: Compute) -> Compute:
        """Return a compute config for this chip and level."""
        return replace(compute, arch=self.arch, level=self.level)

    def compute(self, default: Compute) -> Compute:
        """Return the compute config that was given, else ``default``, for this chip and level."""
        kwargs = self.call.kwargs
        config = kwargs.get("compute_kernel_config") or kwargs.get("compute_config")
        if config is None:
            return self.default(default)
        fidelity = config.math_fidelity.name
        return Compute(
            default.fidelity if fidelity == "Invalid" else fidelity,
            fp32_dest_acc_en=config.fp32_dest_acc_en,
            packer_l1_acc=config.packer_l1_acc,
            approximate=config.math_approx_mode,
            arch=self.arch,
            level=self.level,
        )

    def pack(self, compute: Compute, value: Tensor, dtype: str | None = None) -> Tensor:
        """Return what the packer writes of the destination, by default into the first output; zeros fill up blocks."""
        dtype = dtype or self.out_dtype
        if dtype not in BLOCK_FLOATS:
            return compute.store(value, dtype)
        return compute.store(zeros_to(value, -1, BLOCK), dtype)[..., : value.shape[-1]]


def dtype_of(value: Any) -> str:
    """Return the name that :mod:`refsim.numerics` has for the dtype of a tensor, on the device or of its values."""
    return value.dtype.name.lower()


def dtypes_of(values: Any) -> set[str]:
    """Return the dtypes of those ``values`` that are tensors on a device."""
    return {dtype_of(value) for value in values if isinstance(value, ttnn.Tensor | Shards) and value.dtype is not None}


def widened(*values: Tensor | None) -> list[Any]:
    """Return tensors as float32, the values as they are; None stays."""
    return [None if value is None else value.to(torch.float32) for value in values]


Numeric = Callable[[Kernel, tuple, dict[str, Any]], list[list[Tensor]]]
ROUNDED: dict[str, Numeric] = {}
"""Numeric rules by full name of the operation."""


def rounded(*names: str) -> Callable:
    """Register a function ``(kernel, *arguments with Shards)`` as numeric rule of operations ``ttnn.<name>``."""

    def register(function: Callable) -> Callable:
        @wraps(function)
        def rule(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> list[list[Tensor]]:
            result = function(kernel, *args, **kwargs)
            return list(result) if isinstance(result, tuple) else [result]

        ROUNDED.update({f"ttnn.{name}": rule for name in names})
        return function

    return register


def computing(*names: str, **functions: Callable) -> None:
    """Register the rules of operations ``ttnn.<name>`` with what computes replaced by functions of the kernel."""

    def rule(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> list[list[Tensor]]:
        replaced = {name: partial(function, kernel) for name, function in functions.items()}
        return RULES[kernel.call.name](kernel.call, args, kwargs | replaced)

    ROUNDED.update({f"ttnn.{name}": rule for name in names})
