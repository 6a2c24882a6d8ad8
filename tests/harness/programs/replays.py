"""Programs with traces: what replays overwrite, or read although it is gone; see ``mistakes``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.tt_impl.env import Env
from tt_impl.mock.storage.errors import ShadowError

SHAPE = (1, 1, 32, 64)


def trace_of(t: Env, program: Callable[[], Any]) -> tuple[Any, Any]:
    """Capture a trace; returns it and what the program returned."""
    trace = t.ttnn.begin_trace_capture(t.device, cq_id=0)
    result = program()
    t.ttnn.end_trace_capture(t.device, trace, cq_id=0)
    return trace, result


def execute(t: Env, trace: Any, times: int = 1) -> None:
    for _ in range(times):
        t.ttnn.execute_trace(t.device, trace, cq_id=0, blocking=False)


def read(t: Env, tensor: Any) -> None:
    t.ttnn.to_torch(t.ttnn.get_device_tensors(tensor)[0])


def sigma_doubled(t: Env, wrong: bool) -> None:
    """tt-metal PR #41346: each replay doubles sigma once more; the correct one copies sigma in before each."""
    ttnn = t.ttnn
    x, sigma = t.put(t.rand(*SHAPE)), t.put(t.rand(*SHAPE))
    fresh = t.put(t.rand(*SHAPE))

    def step() -> Any:
        ttnn.multiply_(sigma, 2.0)  # here
        return ttnn.multiply(x, sigma)

    trace, y = trace_of(t, step)
    for _ in range(3):
        if not wrong:
            ttnn.copy(fresh, sigma)
        execute(t, trace)
    read(t, y)


def sigma_by_output(t: Env, wrong: bool) -> None:
    """The same by an output tensor, and read through a view."""
    ttnn = t.ttnn
    x, sigma, other = (t.put(t.rand(*SHAPE)) for _ in range(3))
    view = ttnn.reshape(sigma, (1, 32, 64))

    def step() -> Any:
        y = ttnn.multiply(ttnn.reshape(x, (1, 32, 64)), view)
        ttnn.multiply(sigma, 0.5, output_tensor=sigma if wrong else other)  # here
        return y

    trace, y = trace_of(t, step)
    execute(t, trace, 2)
    read(t, y)


def sigma_by_copy(t: Env, wrong: bool) -> None:
    """The trace copies its result into its input; the correct one runs once."""
    ttnn = t.ttnn
    x = t.put(t.rand(*SHAPE))

    def step() -> Any:
        y = ttnn.exp(x)
        ttnn.copy(y, x)  # here
        return y

    trace, y = trace_of(t, step)
    execute(t, trace, 2 if wrong else 1)
    read(t, y)


def latents_that_grow(t: Env, wrong: bool) -> None:
    """A loop adds to its latents and reads them at the end: a note."""
    ttnn = t.ttnn
    latents, noise = t.put(t.rand(*SHAPE)), t.put(t.rand(*SHAPE))
    trace, _ = trace_of(t, lambda: ttnn.add_(latents, noise))  # here
    execute(t, trace, 2 if wrong else 1)
    read(t, latents)


def cache_under_trace(t: Env, wrong: bool) -> None:
    """A cache is written on purpose: a note."""
    ttnn = t.ttnn
    cache, token = t.put(t.rand(1, 1, 64, 64)), t.put(t.rand(1, 1, 32, 64))

    def step() -> Any:
        ttnn.update_cache(cache, token, 1)  # here
        return ttnn.multiply(cache, 2.0)

    trace, y = trace_of(t, step)
    execute(t, trace, 2 if wrong else 1)
    read(t, y)


def mid_given_away(t: Env, wrong: bool) -> None:
    """tt-metal #54032: a tensor allocated after the capture gets the memory of one that the trace writes."""
    ttnn = t.ttnn
    x = t.put(t.rand(*SHAPE))
    early = None if wrong else ttnn.multiply(x, 3.0)

    def step() -> Any:
        mid = ttnn.exp(x)
        y = ttnn.add(mid, 1.0)
        ttnn.deallocate(mid)
        return y

    trace, _ = trace_of(t, step)
    late = ttnn.multiply(x, 3.0) if wrong else early  # here
    execute(t, trace)
    try:
        read(t, late)
    except ShadowError:
        assert wrong


def two_traces(t: Env, wrong: bool) -> None:
    """The result of the second trace lies where the first one writes; the correct one releases the first."""
    ttnn = t.ttnn
    x = t.put(t.rand(*SHAPE))

    def step() -> Any:
        mid = ttnn.exp(x)
        y = ttnn.add(mid, 1.0)
        ttnn.deallocate(mid)
        return y

    first, y = trace_of(t, step)
    execute(t, first)
    read(t, y)
    if not wrong:
        ttnn.release_trace(t.device, first)
    second, z = trace_of(t, lambda: ttnn.multiply(x, 3.0))  # here
    execute(t, second)
    if wrong:
        execute(t, first)
    try:
        read(t, z)
    except ShadowError:
        assert wrong


def input_reallocated(t: Env, wrong: bool) -> None:
    """The program's input is another tensor after the capture; the trace goes on reading the first one's memory."""
    ttnn = t.ttnn
    tensors = {"x": t.put(t.rand(*SHAPE))}
    trace, y = trace_of(t, lambda: ttnn.exp(tensors["x"]))
    fresh = t.put(t.rand(*SHAPE))
    if wrong:
        tensors["x"] = fresh
    else:
        ttnn.copy(fresh, tensors["x"])
    ttnn.execute_trace(t.device, trace, blocking=False)  # here
    read(t, y)


def input_given_away(t: Env, wrong: bool) -> None:
    """The input is freed after the capture, and another tensor of its shape gets its memory."""
    ttnn = t.ttnn
    source = t.put(t.rand(*SHAPE))
    x = ttnn.multiply(source, 2.0)
    trace, y = trace_of(t, lambda: ttnn.exp(x))
    if wrong:
        ttnn.deallocate(x)
    other = ttnn.multiply(source, 3.0)
    try:
        ttnn.execute_trace(t.device, trace, blocking=False)  # here
    except ShadowError:
        assert wrong
    read(t, other)
    if not wrong:
        read(t, y)


EXPECTED = {
    "sigma_doubled": ("trace-overwrites-input", "ttnn.multiply_"),
    "sigma_by_output": ("trace-overwrites-input", "ttnn.multiply"),
    "sigma_by_copy": ("trace-overwrites-input", "ttnn.copy"),
    "latents_that_grow": ("trace-overwrites-input", "ttnn.add_"),
    "cache_under_trace": ("trace-overwrites-input", "ttnn.update_cache"),
    "mid_given_away": ("lost-under-trace", "ttnn.multiply"),
    "two_traces": ("lost-under-trace", "ttnn.multiply"),
    "input_reallocated": ("lost-under-trace", "ttnn.execute_trace"),
    "input_given_away": ("lost-under-trace", "ttnn.execute_trace"),
}
