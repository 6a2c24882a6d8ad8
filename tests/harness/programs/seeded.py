"""Mistakes put into this project's own layers and collectives, on a 2x4 mesh; see ``mistakes``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from parity.faults.around import Patch, around
from refsim.base.options import RunOptions
from refsim.pipelines.hosts.schedule import Recurrence
from tests.harness.programs.replays import execute, read, trace_of
from tests.tt_impl.env import Env
from tt_impl.mock.storage.errors import ShadowError

GATHER = "ttnn.experimental.all_gather_minimal_matmul_async"


def _context(t: Env) -> Any:
    from tt_impl.parallel.context import Context

    options = {"mesh": t.mesh.spec, "parallel": "sp2_tp4", "backend": "ttnn-mock", "dtype": "bf16"}
    return Context(t.device, RunOptions.of(**options))


def _products(t: Env, second: dict[str, Any], fault: Patch) -> None:
    """Two products of one gathered tensor; the second has options."""
    from tt_impl.layers.matmul import gather_matmul

    ctx = _context(t)
    t.device.clear_program_cache()
    x = ctx.put(t.rand(1, 1, 64, 1024), tp_dim=3)
    weight = ctx.put(t.rand(1, 1, 1024, 384))
    results = [gather_matmul(ctx, x, weight)]
    with fault:
        results.append(gather_matmul(ctx, x, weight, **second))
    for y in results:
        read(t, y)


def activation_by_one_program(t: Env, wrong: bool) -> None:
    """A channel has as many buffers with GELU as without: the one thing that told ttnn's cache (tt-metal #57357)."""
    from tt_impl.parallel import programs
    from tt_impl.parallel.manager import CCLManager

    def alike(original: Any, self: Any, *args: Any, **how: Any) -> Any:
        buffers = programs.buffers_per_channel(how["num_workers_per_link"])
        return original(self, *args, **how | {"num_buffers_per_channel": buffers})

    fault = around(CCLManager, "all_gather_matmul", alike) if wrong else nullcontext()
    _products(t, {"activation": "gelu_tanh"}, fault)


def dtype_by_one_program(t: Env, wrong: bool) -> None:
    """The second product is to be float32."""
    from tt_impl.parallel.manager import CCLManager

    def wide(original: Any, self: Any, *args: Any, **how: Any) -> Any:
        return original(self, *args, **how, dtype=t.ttnn.float32)

    _products(t, {}, around(CCLManager, "all_gather_matmul", wide) if wrong else nullcontext())


def step_in_place(t: Env, wrong: bool) -> None:
    """The scheduler's step, under a trace, multiplies the latents it is to read again."""
    from tt_impl.pipelines import scheduler

    ttnn = t.ttnn

    def combine(_: Any, terms: list[tuple[float, Any]]) -> Any:
        (number, latents), (other, prediction) = terms
        return ttnn.add(ttnn.multiply_(latents, number), ttnn.multiply(prediction, other))

    latents, prediction = (t.put(t.rand(1, 1, 32, 64), dtype="float32") for _ in range(2))
    steps = scheduler.DeviceScheduler([Recurrence((0.5,), (0.25,), 0.0, 0)], latents)
    with around(scheduler, "combine", combine) if wrong else nullcontext():
        trace, after = trace_of(t, lambda: steps.step(prediction, 0))
    execute(t, trace, 2)
    read(t, after)


def _fresh_buffers(t: Env) -> Patch:
    """Gathers whose buffers nobody keeps."""
    from tt_impl.parallel.manager import CCLManager

    def fresh(_: Any, self: Any, x: Any, *, dim: int, axis: int, name: str = "") -> Any:
        shape = list(x.shape)
        shape[dim] *= self.shape[axis]
        return t.ttnn.zeros(shape, dtype=x.dtype, layout=x.layout, device=self.device)

    return around(CCLManager, "gather_buffer", fresh)


def _gathered_twice(t: Env, ctx: Any, x: Any) -> Any:
    """Gather features and keep nothing but twice what was gathered."""
    from tt_impl.parallel.tensor import gather_features

    return t.ttnn.multiply(gather_features(ctx, x), 2.0)


def buffer_not_kept(t: Env, wrong: bool) -> None:
    """The buffer of a traced gather goes back, and a tensor of the next step gets its memory."""
    ctx = _context(t)
    x = ctx.put(t.rand(1, 1, 32, 256), tp_dim=3)
    with _fresh_buffers(t) if wrong else nullcontext():
        read(t, _gathered_twice(t, ctx, x))
        trace, y = trace_of(t, lambda: _gathered_twice(t, ctx, x))
    late = t.ttnn.repeat(x, [1, 1, 1, 4])
    execute(t, trace)
    read(t, y)
    try:
        read(t, late)
    except ShadowError:
        assert wrong


def buffer_of_two_traces(t: Env, wrong: bool) -> None:
    """Two living traces, of two branches of guidance: the buffer that the first gave back is the second's result."""
    ctx = _context(t)
    x = ctx.put(t.rand(1, 1, 32, 256), tp_dim=3)
    with _fresh_buffers(t) if wrong else nullcontext():
        read(t, _gathered_twice(t, ctx, x))
        first, y = trace_of(t, lambda: _gathered_twice(t, ctx, x))
        second, z = trace_of(t, lambda: t.ttnn.repeat(x, [1, 1, 1, 4]))
    execute(t, first)
    read(t, y)
    execute(t, second)
    execute(t, first)
    try:
        read(t, z)
    except ShadowError:
        assert wrong


def latents_put_anew(t: Env, wrong: bool) -> None:
    """The loop puts its latents on the devices before every step; the trace reads where the first ones were."""
    from tt_impl.pipelines.scheduler import DeviceScheduler

    ctx = _context(t)
    latents = [ctx.put(t.rand(1, 1, 32, 64), sp_dim=2, dtype=t.ttnn.float32)]
    prediction = t.put(t.rand(1, 1, 32, 64), (2, None), dtype="float32")
    numbers = [Recurrence((0.5,), (0.25,), 0.0, 0)]
    trace, after = trace_of(t, lambda: DeviceScheduler(numbers, latents[0]).step(prediction, 0))
    fresh = ctx.put(t.rand(1, 1, 32, 64), sp_dim=2, dtype=t.ttnn.float32)
    if wrong:
        latents[0] = fresh
    else:
        t.ttnn.copy(fresh, latents[0])
    execute(t, trace)
    read(t, after)


def mask_without_padding(t: Env, wrong: bool) -> None:
    """The decoder's causal mask is filled up with zeros instead of what hides a key (tt-metal #54833)."""
    from tt_impl.layers.grouped_attention import causal_mask, grouped_attention
    from tt_impl.parallel.context import Context

    def zeros(original: Any, self: Any, x: Any, **how: Any) -> Any:
        return original(self, x, **how | {"padding": 0.0})

    ctx = _context(t)
    q, k, v = (ctx.put(t.rand(1, heads, 40, 64)) for heads in (4, 2, 2))
    with around(Context, "put", zeros) if wrong else nullcontext():
        mask = causal_mask(ctx, 40, 40)
    read(t, grouped_attention(ctx, q, k, v, mask=mask))


def prompt_of_whole_tiles(t: Env, wrong: bool) -> None:
    """Joint attention is given the prompt's whole tiles as its rows."""
    from tt_impl.parallel import usp

    ctx = _context(t)
    image, prompt = ([ctx.put(t.rand(1, 2, rows, 64)) for _ in "qkv"] for rows in (64, 20))
    if wrong:
        prompt = [t.ttnn.reshape(x, (1, 2, 32, 64), (1, 2, 32, 64)) for x in prompt]
    out, _ = usp._local(ctx, tuple(image), tuple(prompt), logical_n=64)
    read(t, out)


def sum_of_whole_tiles(t: Env, wrong: bool) -> None:
    """A product adds up 14 columns of padding, which an addition has filled, with rows that are filled, too."""
    from tt_impl.layers.matmul import matmul

    ctx = _context(t)
    x = t.ttnn.add(ctx.put(t.rand(1, 1, 64, 50)), 1.0)
    weight = ctx.put(t.rand(1, 1, 50, 64), padding=1.0 if wrong else 0.0)
    read(t, matmul(ctx, x, weight))


def norm_of_unpadded_features(t: Env, wrong: bool) -> None:
    """A distributed norm's features are cut into 50 a device, which fill no whole tiles: its sums have more squares."""
    from tt_impl.layers import norm

    ctx = _context(t)
    features = 200
    value = t.rand(1, 1, 32, features)

    def unpadded(_: Any, features: int, factor: int) -> int:
        return features

    with around(norm, "padded_features", unpadded) if wrong else nullcontext():
        of_stream = norm.DistributedStreamRMSNorm(ctx, features=features, eps=1e-6)
        width = norm.padded_features(features, ctx.tp)
    x = ctx.put(torch.nn.functional.pad(value, (0, width - features)), tp_dim=3)
    if wrong:
        x = t.ttnn.add(x, 1.0)
    read(t, of_stream._statistics(x))


EXPECTED = {
    "activation_by_one_program": ("cached-program", GATHER),
    "dtype_by_one_program": ("cached-program", GATHER),
    "step_in_place": ("trace-overwrites-input", "ttnn.multiply_"),
    "buffer_not_kept": ("lost-under-trace", "ttnn.repeat"),
    "buffer_of_two_traces": ("lost-under-trace", "ttnn.repeat"),
    "latents_put_anew": ("lost-under-trace", "ttnn.execute_trace"),
    "mask_without_padding": ("tile-padding", "ttnn.transformer.scaled_dot_product_attention"),
    "prompt_of_whole_tiles": ("tile-padding", "ttnn.transformer.joint_scaled_dot_product_attention"),
    "sum_of_whole_tiles": ("tile-padding", "ttnn.experimental.minimal_matmul"),
    "norm_of_unpadded_features": ("tile-padding", "ttnn.experimental.wan_fused_rmsnorm_pre_allgather"),
}
