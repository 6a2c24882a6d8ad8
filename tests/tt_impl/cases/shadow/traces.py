"""Traces: captured once, computed anew from what the buffers hold at every execution."""

from __future__ import annotations

from typing import Any

import torch

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import spread
from tt_impl.mock.storage.errors import ShadowError


def _capture(t: Env, program: Any) -> tuple[Any, Any]:
    ttnn = t.ttnn
    trace = ttnn.begin_trace_capture(t.device, cq_id=0)
    assert ttnn.is_trace_capture_active(t.device)
    result = program()
    ttnn.end_trace_capture(t.device, trace, cq_id=0)
    assert not ttnn.is_trace_capture_active(t.device)
    return trace, result


def new_inputs(t: Env) -> None:
    """Other inputs are copied into the buffer between executions; intermediate results are freed in between."""
    ttnn = t.ttnn
    x, y = t.put(t.rand(1, 1, 64, 128), (2, 3)), t.put(t.rand(1, 1, 64, 32), (2, 3))
    weight = t.rand(32, 32)
    held = t.put(weight)
    del y

    def program() -> Any:
        doubled = ttnn.multiply(x, 2.0)
        out = ttnn.matmul(doubled, held)
        ttnn.deallocate(doubled)
        return ttnn.add(out, out)

    trace, out = _capture(t, program)
    assert all(value.isnan().all() for value in t.shadow.values(out))  # nothing has run yet
    assert {value.dtype for value in t.shadow.store.read(out, "a test").stored} == {torch.bfloat16}
    t.shadow.evaluations.clear()
    for _ in range(3):
        value = t.rand(1, 1, 64, 128)
        mapper = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(2, 3))
        host = ttnn.from_torch(value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
        ttnn.copy_host_to_device_tensor(host, x)
        ttnn.execute_trace(t.device, trace, cq_id=0, blocking=False)
        t.check(out, [2 * ((2 * part) @ weight).bfloat16().float() for part in t.shards(value, (2, 3))], ulps=2)
    assert t.shadow.emulated["ttnn.execute_trace"] == 3 and not t.shadow.store.replaying
    assert t.shadow.evaluations == dict.fromkeys(("ttnn.multiply", "ttnn.matmul", "ttnn.add"), 3 * t.n)
    ttnn.release_trace(t.device, trace)
    raises(UserError, lambda: ttnn.execute_trace(t.device, trace), "ttnn.execute_trace", "released")


def in_place(t: Env) -> None:
    """A capture changes nothing; every execution does once more what it says."""
    x, parts = spread(t, 1, 1, 32, 64)
    trace, _ = _capture(t, lambda: t.ttnn.add_(x, 1.0))
    t.check(x, parts)
    for steps in (1, 2):
        t.ttnn.execute_trace(t.device, trace)
        wanted = parts
        for _ in range(steps):
            wanted = [(part + 1).bfloat16().float() for part in wanted]
        t.check(x, wanted)


def views_and_collectives(t: Env) -> None:
    x, parts = spread(t, 1, 1, 32, 64)
    zeros = {}

    def program() -> Any:
        zeros["z"] = t.ttnn.zeros((1, 1, 64, 64), dtype=t.ttnn.bfloat16, layout=t.ttnn.TILE_LAYOUT, device=t.device)
        flat = t.ttnn.reshape(t.ttnn.all_gather(x, 2, cluster_axis=0), (1, 2, 32, 64))
        return t.ttnn.add(t.ttnn.reshape(flat, (1, 1, 64, 64)), zeros["z"])

    trace, out = _capture(t, program)
    t.ttnn.execute_trace(t.device, trace)
    wanted: list[Any] = [None] * t.n
    for group in t.groups(0):
        for i in group:
            wanted[i] = torch.cat([parts[j] for j in group], 2)
    t.check(out, wanted)


def an_address_given_out_again(t: Env) -> None:
    """While capturing: a replay reads an intermediate result, not what lies where that was when the capture ends."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 32, 64)
    tensors = {}

    def program() -> Any:
        between = ttnn.multiply(x, 2.0)
        address = between.buffer_address()
        out = ttnn.add(between, 1.0)
        ttnn.deallocate(between)
        tensors["later"] = ttnn.multiply(x, 4.0)
        assert tensors["later"].buffer_address() == address
        return out, ttnn.typecast(ttnn.abs(x), ttnn.uint32)

    trace, (out, integers) = _capture(t, program)
    assert all(value.eq(255).all() for value in t.shadow.values(integers))  # nothing has run yet
    for _ in range(2):
        ttnn.execute_trace(t.device, trace)
        t.check(out, [(2 * part + 1).bfloat16().float() for part in parts])
        t.check(tensors["later"], [4 * part for part in parts])


def freed_by_its_reader(t: Env) -> None:
    """A convolution may free the picture that it reads: a trace remembers it from before."""
    ttnn, picture = t.ttnn, t.rand(1, 32, 8, 8)
    weight = t.rand(32, 32, 3, 3, scale=0.1)
    x = t.put(picture.permute(0, 2, 3, 1).reshape(1, 1, 64, 32), layout="ROW_MAJOR")
    options = dict(
        device=t.device, in_channels=32, out_channels=32, batch_size=1, input_height=8, input_width=8,
        kernel_size=(3, 3), padding=(1, 1), return_weights_and_bias=True,
        conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16, deallocate_activation=True),
    )  # fmt: skip
    wanted = torch.nn.functional.conv2d(picture, weight, padding=1).permute(0, 2, 3, 1).reshape(1, 1, 64, 32)

    def program(weight_tensor: Any) -> Any:
        moved = ttnn.to_memory_config(x, ttnn.L1_MEMORY_CONFIG)
        found = ttnn.conv2d(input_tensor=moved, weight_tensor=weight_tensor, **options)
        assert not moved.is_allocated()
        return found

    out, (prepared, _) = program(ttnn.from_torch(weight, dtype=ttnn.bfloat16))
    t.check(out, wanted)
    trace, (again, _) = _capture(t, lambda: program(prepared))
    ttnn.execute_trace(t.device, trace)
    t.check(again, wanted)


def freed_input(t: Env) -> None:
    """The trace would read memory that belongs to somebody else."""
    from tt_impl.mock.storage.errors import ShadowError

    x, _ = spread(t, 1, 1, 32, 64)
    trace, _ = _capture(t, lambda: t.ttnn.multiply(x, 3.0))
    t.ttnn.deallocate(x)
    raises(ShadowError, lambda: t.ttnn.execute_trace(t.device, trace), "ttnn.multiply", "freed after the capture")


def overwritten_by_a_trace(t: Env) -> None:
    """A tensor allocated after the capture, where an intermediate result of the trace was, is lost to it."""
    from tt_impl.mock.storage.errors import ShadowError

    ttnn = t.ttnn
    x, _ = spread(t, 1, 1, 32, 64)

    def program() -> Any:
        between = ttnn.multiply(x, 3.0)
        out = ttnn.add(between, 1.0)
        ttnn.deallocate(between)
        return out

    trace, _ = _capture(t, program)
    late = ttnn.multiply(x, 2.0)
    t.shadow.values(late)
    ttnn.execute_trace(t.device, trace)
    raises(ShadowError, lambda: t.shadow.values(late), "without a value", "ttnn.execute_trace then wrote")


def input_handed_over(t: Env) -> None:
    """An input freed while capturing, and allocated anew where it was: replays read the new one, as with two queues."""
    ttnn = t.ttnn
    later, parts = spread(t, 1, 1, 32, 64)
    x = ttnn.multiply(later, 2.0)
    tensors = {}

    def program() -> Any:
        address, spec = x.buffer_address(), x.spec
        out = ttnn.multiply(x, 3.0)
        ttnn.deallocate(x)
        tensors["x"] = ttnn.allocate_tensor_on_device(spec, t.device)
        assert tensors["x"].buffer_address() == address
        return out

    trace, out = _capture(t, program)
    ttnn.copy(later, tensors["x"])
    ttnn.execute_trace(t.device, trace)
    t.check(out, [3 * part for part in parts], ulps=1)


def inputs_of_another_kind(t: Env) -> None:
    """What comes to lie where a freed input was, in another shape, is none."""
    ttnn = t.ttnn
    x = ttnn.multiply(spread(t, 1, 1, 32, 64)[0], 2.0)
    tensors = {}

    def program() -> Any:
        address = x.buffer_address()
        out = ttnn.multiply(x, 3.0)
        ttnn.deallocate(x)
        tensors["other"] = t.empty(1, 1, 64, 32)
        assert tensors["other"].buffer_address() == address
        return out

    trace, _ = _capture(t, program)
    raises(ShadowError, lambda: ttnn.execute_trace(t.device, trace), "freed after the capture")


def what_no_rule_repeats(t: Env) -> None:
    """A value that goes from device to device is written again from the same inputs; from others it is refused."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 32, 64)
    ends = [ttnn.MeshCoordinate(0, place) for place in (0, 1)]

    def program() -> Any:
        return ttnn.add(ttnn.point_to_point(x, *ends, topology=t.linear), 1.0)

    trace, out = _capture(t, program)
    ttnn.execute_trace(t.device, trace)
    torch.testing.assert_close(t.shadow.values(out)[1], (parts[0] + 1).bfloat16().float())
    ttnn.multiply_(x, 2.0)
    raises(ShadowError, lambda: ttnn.execute_trace(t.device, trace), "ttnn.point_to_point", "other values")


def remembered_tensors(t: Env) -> None:
    """One whose cores have addresses of their own is told by the place of its first core, as the tensor itself is."""
    from tt_impl.mock.calls.traces import Recorded
    from tt_impl.trace.buffers import address_of, buffer_of

    ttnn = t.ttnn
    memory = ttnn.create_sharded_memory_config((1, 1, 64, 32), ttnn.CoreGrid(y=2, x=1), ttnn.ShardStrategy.HEIGHT)
    x = ttnn.to_memory_config(t.put(t.rand(1, 1, 64, 32)), memory)
    plain: Any = Recorded(x)
    assert (buffer_of(plain), address_of(plain)) == (x.buffer_unique_id(), x.buffer_address())
    numbers = set()
    for address in (x.buffer_address(), x.buffer_address(), 64):
        apart: Any = Recorded(x)
        apart.address = address
        apart.is_per_core_allocated = lambda: True
        apart.buffer_unique_id = lambda: None
        assert address_of(apart) == address
        numbers.add(buffer_of(apart))
    assert len(numbers) == 2 and max(numbers) < 0


def made_of_nothing(t: Env) -> None:
    """What ``empty`` makes no execution writes; constants are written at every one, whatever their model holds."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 32, 64)

    def program() -> Any:
        return t.empty(1, 1, 32, 64), ttnn.zeros_like(x), ttnn.full_like(x, 3.0)

    trace, (free, zeros, threes) = _capture(t, program)
    for _ in range(2):
        ttnn.copy(x, free)
        for tensor in (x, zeros, threes):
            ttnn.add_(tensor, 1.0)
        ttnn.execute_trace(t.device, trace)
        t.check(free, parts)
        t.check(zeros, torch.zeros(1, 1, 32, 64))
        t.check(threes, torch.full((1, 1, 32, 64), 3.0))
        parts = [(part + 1).bfloat16().float() for part in parts]


def transfers_while_capturing(t: Env) -> None:
    """What ttnn refuses on a device is refused here."""
    ttnn = t.ttnn
    x, _ = spread(t, 1, 1, 32, 64)
    trace = ttnn.begin_trace_capture(t.device)
    raises(UserError, lambda: ttnn.to_torch(x), "ttnn.to_torch", "while a trace is captured")
    raises(UserError, lambda: t.put(t.rand(1, 1, 32, 64)), "ttnn.from_torch", "while a trace is captured")
    for name in (
        "from_torch to_device to_torch from_device Tensor.cpu Tensor.to_torch Tensor.to_numpy Tensor.to_list "
        "Tensor.item copy_host_to_device_tensor copy_host_to_device_tensor_partial copy_device_to_host_tensor"
    ).split():
        raises(UserError, lambda: t.shadow.check_traced(f"ttnn.{name}"), f"ttnn.{name} while")  # noqa: B023 - at once
    raises(UserError, lambda: ttnn.begin_trace_capture(t.device), "another trace")
    ttnn.end_trace_capture(t.device, trace)
    raises(UserError, lambda: ttnn.end_trace_capture(t.device, trace), "no trace")


CASES = collect(globals())
