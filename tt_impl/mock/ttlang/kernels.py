"""A kernel as an operation: it is called with tensors of a mesh and writes some of them.

The rule runs the simulator once for all devices that hold the same. Which tensors a kernel writes, a dry run says, on
tensors of the same shapes. A kernel that says ``grid="auto"`` or ``"full"`` runs on :func:`grid_of_devices` nodes.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from tt_impl.mock.rules.registry import RULES, Call, columns
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.values import ProgramValues
from tt_impl.mock.ttlang import older
from tt_impl.mock.ttlang.simulator import Simulator
from tt_impl.trace.intercept import TENSOR, caught, installed, on_device, tensors_in

GRID = "REFSIM_TTL_GRID"
"""Environment variable: rows and columns of nodes for kernels that ask for all there are, ``8,8``; ``1,1`` if unset."""
_MADE: Counter[str] = Counter()


def grid_of_devices() -> tuple[int, int]:
    """Return the nodes of kernels that name no grid: few, since a simulated node takes its time even without work."""
    text = os.environ.get(GRID, "1,1")
    sides = re.fullmatch(r"([1-9]\d?),([1-9]\d?)", text)
    if sides is None:
        raise UserError(f"{GRID}={text} is no grid; give rows and columns of nodes, such as 8,8.")
    return int(sides[1]), int(sides[2])


def operation(simulator: Simulator, grid: Any = "full", **options: Any) -> Callable[[Callable], Callable]:
    """Make the decorator ``ttl.operation``; options of the compiler change no values."""

    def decorate(function: Callable) -> Callable:
        kernel = Kernel(simulator, function, grid)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            kernel(*args, **kwargs)

        return run

    return decorate


class Kernel:
    """One kernel; those of one name differ by what their factories closed over, so each has a name of its own."""

    def __init__(self, simulator: Simulator, function: Callable, grid: Any) -> None:
        _MADE[function.__name__] += 1
        number = _MADE[function.__name__]
        self.name = f"ttl.{function.__name__}" + (f"#{number}" if number > 1 else "")
        self._simulator = simulator
        self._signature = inspect.signature(function)
        self._on_any_grid = grid in ("auto", "full")
        self._run = simulator.operation(grid=grid_of_devices() if self._on_any_grid else grid)(function)
        self._written: dict[tuple, list[int]] = {}
        self._operation = caught(self.name, self._proceed)
        RULES[self.name] = self._rule

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the kernel: as an operation on tensors of a mesh, else on the simulator's own."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        args = bound.args
        if not any(map(on_device, tensors_in(args))):
            self._run(*args)
            return
        if installed(ProgramValues) is None:
            raise UserError(f"{self.name} runs on its simulator, which needs values: on the mock, in shadow_values().")
        for name, value in bound.arguments.items():
            self._check(name, value)
        self._operation(*args)

    def _check(self, name: str, value: Any) -> None:
        """Refuse what a kernel cannot take, and what its simulator does not have."""
        if not isinstance(value, TENSOR):
            if tensors_in(value):
                raise ShadowError(f"{self.name} gets tensors inside its argument {name}; pass each as one.", self.name)
            return
        shape = tuple(value.shape)
        if not on_device(value):
            raise UserError(f"{self.name} gets a tensor on the host as {name}; move it to the device.")
        if value.layout == ttnn.TILE_LAYOUT and shape != tuple(value.padded_shape):
            raise UserError(
                f"{self.name} gets {name} of shape {shape}, which is not whole tiles: kernels work on tiles; pad it to "
                f"{tuple(value.padded_shape)}."
            )
        if value.dtype not in (ttnn.bfloat16, ttnn.float32, ttnn.bfloat8_b):
            known = "bfloat16, float32 and bfloat8_b"
            raise ShadowError(f"{self.name} gets {name} as {value.dtype.name}; its simulator has {known}.", self.name)

    def _proceed(self, *args: Any) -> list[ttnn.Tensor]:
        """Return the tensors that the kernel writes, in place of a launch."""
        return [args[place] for place in self._places(args)]

    def _places(self, args: tuple) -> list[int]:
        """Return the numbers of the arguments that the kernel writes into, by a dry run of it."""
        key = tuple(map(_described, args))
        if key not in self._written:
            written: set[int | None] = set()
            tensors = {i: self._tensor(torch.empty(tuple(a.shape)), a) for i, a in enumerate(args) if _is_tensor(a)}
            homes = {tensor._tensor.untyped_storage().data_ptr(): i for i, tensor in tensors.items()}
            handler = self._simulator.copies.BlockToTensorHandler
            validate = handler.validate

            def noted(handler: Any, source: Any, target: Any) -> Any:
                written.add(homes.get(target._tensor.untyped_storage().data_ptr()))
                return validate(handler, source, target)

            handler.validate = noted
            self._simulator.context.config.dry_run = True
            try:
                self._simulated(tuple(tensors.get(i, value) for i, value in enumerate(args)))
            finally:
                handler.validate = validate
                self._simulator.context.config.dry_run = False
            self._written[key] = sorted(place for place in written if place is not None)
            if not self._written[key]:
                raise UserError(f"{self.name} writes none of its tensors.")
        return self._written[key]

    def _rule(self, call: Call, args: tuple, kwargs: dict[str, Any]) -> list[list[torch.Tensor]]:
        """Compute what the kernel writes, on each device."""
        places = self._written[tuple(map(_described, call.args))]
        tensors = [i for i, value in enumerate(call.args) if _is_tensor(value)]

        def on_one(*values: torch.Tensor) -> list[torch.Tensor]:
            simulated = {i: self._tensor(value, call.args[i]) for i, value in zip(tensors, values, strict=True)}
            warned = self._simulated(tuple(simulated.get(i, value) for i, value in enumerate(call.args)))
            if shadow is not None:
                shadow.kernel_warnings += [(text, self._on_any_grid) for text in warned]
            return [simulated[place]._tensor for place in places]

        shadow = installed(ProgramValues)
        older.USED.clear()
        results = columns(call.each(on_one, *(args[i] for i in tensors)))
        if shadow is not None:
            shadow.emulated.update({f"{name} of April 2026": count for name, count in older.USED.items()})
        return [list(result) for result in results]

    def _tensor(self, value: torch.Tensor, tensor: Any) -> Any:
        """Return one device's value as a tensor of the simulator: a copy, as it writes in place."""
        tensors = self._simulator.tensors
        backing = torch.float32 if tensor.dtype == ttnn.float32 else torch.bfloat16
        dtype = tensors.bfloat8_b if tensor.dtype == ttnn.bfloat8_b else backing
        layout = tensors.TILE_LAYOUT if tensor.layout == ttnn.TILE_LAYOUT else tensors.ROW_MAJOR_LAYOUT
        return tensors.Tensor(value.to(backing, copy=True), layout, dtype=dtype)

    def _simulated(self, args: tuple) -> list[str]:
        """Run the simulator; return what it warns of.

        Raises:
            UserError: the kernel is wrong to it: a deadlock, shapes that do not fit, a thread too many.
        """
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                self._run(*args)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
                reason = " ".join(str(error.__cause__ or error).split()).removesuffix(".")
                raise UserError(f"{self.name} is refused by its simulator: {reason}.") from error
        return list(dict.fromkeys(str(warning.message).split(". ")[0].removesuffix(".") for warning in warned))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "buffer_unique_id")


def _described(value: Any) -> Any:
    """Return what a dry run depends on."""
    return (tuple(value.shape), str(value.dtype), str(value.layout)) if _is_tensor(value) else repr(value)
