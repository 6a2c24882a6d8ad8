"""Operations without a shadow rule, answered by the golden functions that ttnn registers beside its operations.

This is off unless asked for, and every use is counted, because it is weaker evidence than a rule: many of ttnn's
own tests take their expectation from the same function, so they would agree with it however wrong it is.

A golden function is called once for all devices that share their inputs, with one device's tensors in the types
that ttnn's own comparison of an operation with its golden function gives them. Shape and dtype are those of the real
operation's output: what does not fit is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import ttnn
from ttnn.decorators import REGISTERED_OPERATIONS, FastOperation

from tt_impl.mock.calls.golden_denied import DENIED
from tt_impl.mock.rules.registry import NEUTRAL, Call, columns, leaves, mapped
from tt_impl.mock.storage.errors import RefusedOption, ShadowError
from tt_impl.mock.storage.host import host_tensor
from tt_impl.mock.storage.values import Shards

OPTION = " (option)"
"""What follows a name in ``Shadow.fallbacks`` if there is a rule, which refused an option of the call."""


@cache
def registered() -> dict[str, FastOperation]:
    """Return all operations of ttnn by full name (``ttnn.add``)."""
    return {operation.python_fully_qualified_name: operation for operation in REGISTERED_OPERATIONS}


def has_golden(name: str) -> bool:
    """Tell whether ttnn registers a golden function for the operation that may be used."""
    operation = registered().get(name)
    return operation is not None and operation.golden_function is not None and name not in DENIED


def golden_values(call: Call, inputs: dict[int, Shards]) -> list[list[torch.Tensor]]:
    """Return the values of every output on every device.

    Args:
        call: the operation, after it ran.
        inputs: values of its device tensors before it ran, by ``id`` of the tensor.

    Raises:
        ShadowError: the golden function fails, says that its result is not to be compared, or gives another number
            of tensors or another shape than the operation.
    """
    operation = registered()[call.name]
    return list(columns(call.once([*inputs.values()], lambda device: _on_one_device(operation, call, inputs, device))))


def _on_one_device(operation: FastOperation, call: Call, inputs: dict[int, Shards], device: int) -> list[torch.Tensor]:
    read = {name: value for name, value in call.kwargs.items() if not _unread(name, value, inputs)}
    args, kwargs = mapped(lambda value: _host(value, inputs, device), (call.args, read))
    _check_arguments(operation, args, kwargs)
    prepare = operation.preprocess_golden_function_inputs or ttnn.decorators.default_preprocess_golden_function_inputs
    try:
        args, kwargs = prepare(args, kwargs)
        result = operation.golden_function(*args, **kwargs)
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise ShadowError(
            f"the golden function of {call.name} fails with {type(error).__name__} ({message}); it needs a shadow rule."
        ) from error
    values = [value for value in leaves(result) if value is not None]
    if len(values) != len(call.outputs):
        raise ShadowError(
            f"{call.name} gives {len(call.outputs)} tensors, but its golden function {len(values)}; "
            "it needs a shadow rule."
        )
    return [_fitted(call.name, value, out) for value, out in zip(values, call.outputs, strict=True)]


def _check_arguments(operation: FastOperation, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse what the golden function would swallow with ``*args`` and ``**kwargs`` and never look at."""
    parameters = inspect.signature(_innermost(operation.golden_function)).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    ignored = [k for k, v in kwargs.items() if k not in named and k not in NEUTRAL and v is not None]
    ignored += [f"argument {i + 1}" for i, v in enumerate(args) if i >= places and v is not None]
    if ignored:
        name = operation.python_fully_qualified_name
        raise RefusedOption(name, f"{' and '.join(ignored)}, nor does ttnn's golden function")


def _innermost(function: Callable) -> Callable:
    """Return the golden function inside wrappers that take any arguments and hand them on."""
    variables = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    inner = variables.get("golden_function")
    return function if inner is None else _innermost(inner.cell_contents)


def _host(value: Any, inputs: dict[int, Shards], device: int) -> Any:
    """Return a host tensor that holds the values of one device for a device tensor; anything else as it is."""
    shards = inputs.get(id(value))
    if shards is None:
        return value
    return host_tensor(value, Shards([shards.stored[device]], shards.shape, (1, 1)))


def _unread(name: str, value: Any, inputs: dict[int, Shards]) -> bool:
    """Tell whether a keyword names a tensor that is only written: preallocated outputs and buffers."""
    return name in NEUTRAL and hasattr(value, "storage_type") and id(value) not in inputs


def _fitted(name: str, value: Any, out: ttnn.Tensor) -> torch.Tensor:
    """Bring a golden function's result into the shape of the output; dims of size 1 may come or go."""
    comparison = getattr(value, "_ttnn_comparison_config", None)
    value = torch.as_tensor(value).detach()
    mask = getattr(comparison, "mask", None)
    if getattr(comparison, "method", None) == "skip" or (mask is not None and not bool(mask.all())):
        raise ShadowError(f"the golden function of {name} does not know the whole result; it needs a shadow rule.")
    if value.is_complex():
        raise ShadowError(f"the golden function of {name} gives complex numbers; it needs a shadow rule.")
    shape = tuple(out.shape)
    if [size for size in value.shape if size != 1] != [size for size in shape if size != 1]:
        raise ShadowError(
            f"{name} gives a tensor of shape {shape}, but its golden function {tuple(value.shape)}; "
            "it needs a shadow rule."
        )
    value = value.reshape(shape)
    return value.float() if value.is_floating_point() else value.to(torch.int64)
