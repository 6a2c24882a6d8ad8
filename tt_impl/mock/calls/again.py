"""Which calls would write what their outputs hold already: loops over one call, and traces replayed on the same inputs.

    evaluate(call) --> buffers of its outputs, each with its origin: the call, and the values that its inputs held
    evaluate(same call, same values of inputs, outputs that hold what has this origin) --> nothing to compute

Values of a buffer are never changed, only replaced by others, so that values that are the same object are equal.
"""

from __future__ import annotations

import weakref
from typing import Any

from tt_impl.mock.rules.registry import Call, for_rule, mapped, neutral
from tt_impl.mock.storage.buffers import BufferValues
from tt_impl.mock.storage.values import Store, view_of
from tt_impl.trace.buffers import address_of, buffer_of
from tt_impl.trace.intercept import TENSOR, Remembered, on_device, tensors_in

Origin = tuple[Any, ...]
_PLAIN = (bool, int, float, str, type(None))

_OF_A_CONFIG = ("math_fidelity", "math_approx_mode", "fp32_dest_acc_en", "packer_l1_acc")
"""What ``repr`` does not tell of a compute config."""


class _Input:
    """What a tensor held, and how it saw that; unequal to everything once those values are gone."""

    def __init__(self, values: BufferValues, tensor: Any) -> None:
        self.values = weakref.ref(values)
        self.seen = view_of(tensor), tensor.dtype, address_of(tensor)

    def __eq__(self, other: object) -> bool:
        values = self.values()
        return isinstance(other, _Input) and values is not None and values is other.values() and self.seen == other.seen

    __hash__ = None


class _Unknown(Exception):
    """An argument of a kind that is not compared."""


def origin_of(call: Call, store: Store, written: list[Any], all_options: bool) -> Origin | None:
    """Return what tells a call and its inputs from others, or None if it cannot be told.

    Args:
        written: its outputs that are no views; a buffer that is only given for one of them is no input.
        all_options: options that change no value of an exact result are compared, too.
    """
    results = {buffer_of(tensor) for tensor in written}
    options: list[Any] = [for_rule(call.kwargs, call.name)]
    for value in (value for key, value in call.kwargs.items() if neutral(key, call.name)):
        tensors = [tensor for tensor in tensors_in(value) if on_device(tensor)]
        options += [tensor for tensor in tensors if buffer_of(tensor) not in results]
        options += [value] if all_options and not tensors else []

    def compared(value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, TENSOR | Remembered):
            values = store.values.get(buffer_of(value)) if on_device(value) else None
            if values is None:
                raise _Unknown
            return _Input(values, value)
        if type(value).__module__.startswith("ttnn."):  # a program may change a config that it passes again
            return value, repr(value), [getattr(value, name, None) for name in _OF_A_CONFIG]
        raise _Unknown

    outputs = [(view_of(tensor), tensor.dtype, address_of(tensor)) for tensor in call.outputs]
    try:
        return call.name, mapped(compared, [call.args, options]), outputs
    except _Unknown:
        return None


def is_written(origin: Origin, store: Store, written: list[Any]) -> bool:
    """Tell whether every output holds what the call of this origin wrote there."""
    buffers = (store.values.get(buffer_of(tensor)) for tensor in written)
    return all(values is not None and values.origin == (origin, number) for number, values in enumerate(buffers))


def sign(origin: Origin, store: Store, written: list[Any]) -> None:
    """Note the origin of what the outputs hold now."""
    for number, tensor in enumerate(written):
        store.values[buffer_of(tensor)].origin = (origin, number)
