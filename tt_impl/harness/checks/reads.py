"""Which calls of a program did something, which of their tensors are read, which are only memory for results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tt_impl.mock.log.events import Event, EventLog, TensorUse
from tt_impl.mock.rules.registry import NEUTRAL

FREES = frozenset(f"ttnn.{name}" for name in ("deallocate", "Tensor.deallocate"))
_STATISTICS = "experimental.dit_fused_distributed_{}_create_stats_buffer"
ALLOCATES = frozenset(
    f"ttnn.{name}"
    for name in (
        "empty",
        "empty_like",
        "allocate_tensor_on_device",
        *(_STATISTICS.format(norm) for norm in ("groupnorm", "layernorm", "rmsnorm")),
    )
)
"""Operations that take memory without writing it."""
HOST = frozenset(
    f"ttnn.{name}"
    for name in """
    to_torch from_device copy_device_to_host_tensor
    Tensor.cpu Tensor.to_torch Tensor.to_numpy Tensor.to_list Tensor.item
    """.split()
)
"""Reads by the host, which wait until the devices have done all they were told before."""
_SHAPES_ONLY = frozenset(
    f"ttnn.{name}"
    for name in """
    empty_like zeros_like ones_like full_like moreh_full_like fill fill_rm fill_ones_rm fill_zero_bw uniform
    allocate_tensor_on_device reshape view experimental.view squeeze unsqueeze unsqueeze_to_4D Tensor.reshape
    reshape_on_device
    """.split()
)
"""Operations that look at no value of their input."""
_OUTPUTS = NEUTRAL | {"persistent_intermediate_buffer", "buffer_tensor", "intermediate_packet_buffer", "stats"}


def succeeded(log: EventLog) -> Iterator[Event]:
    """Yield the calls that raised no error, in order."""
    return (event for event in log.events if event.error is None)


def crossings(log: EventLog) -> Iterator[tuple[Event, dict[str, Any]]]:
    """Yield the collectives of the calls that raised no error, each with its call, in order."""
    return ((event, crossing) for event in succeeded(log) for crossing in event.collectives)


def is_output(use: TensorUse) -> bool:
    """Whether the tensor is passed as memory for a result, by the name of its argument."""
    return use.argument.partition("[")[0] in _OUTPUTS


BEGINS = "ttnn.begin_trace_capture"
ENDS = "ttnn.end_trace_capture"
"""Between them calls are recorded and do not run."""
RECEIVES = "ttnn.experimental.recv_async"
"""Writes its tensor, if what is received comes later, too."""


def read_by(event: Event) -> Iterator[TensorUse]:
    """Yield the inputs whose values a call looks at."""
    if event.error is not None or event.op in FREES or event.op in _SHAPES_ONLY or event.op == RECEIVES:
        return
    in_place = event.op.endswith("_") or "in_place" in event.op
    results = {use.buffer for use in event.inputs if is_output(use)}
    for use in event.inputs:
        if not is_output(use) and (in_place or use.buffer in results or use.buffer not in event.written):
            yield use


def written_remotely(event: Event) -> list[TensorUse]:
    """Return the memory that the program gave to a collective, into which other devices write."""
    return [use for use in event.inputs if is_output(use)] if event.collectives and event.error is None else []


def does_again(log: EventLog, first: Event, second: Event) -> bool:
    """Tell whether ``second`` writes what ``first`` did: the same call on the same inputs, not written in between."""
    if _what(first) != _what(second):
        return False
    read = {use.buffer for use in read_by(first)}
    return all(read.isdisjoint(event.written) for event in log.events[first.number : second.number])


def _what(event: Event) -> tuple[Any, ...]:
    """Return what a call is asked to do; which semaphores tell of it makes no difference."""
    options = {name: value for name, value in event.options.items() if "semaphore" not in name}
    return event.op, [use.buffer for use in read_by(event)], [use.shape for use in event.outputs], options
