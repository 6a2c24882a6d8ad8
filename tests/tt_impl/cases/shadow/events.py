"""What the event log notes of a program: lines, buffers, options, collectives, frees."""

from __future__ import annotations

import inspect
import io
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refsim.base.errors import RefsimError
from tests.tt_impl.env import Env, collect


def _here() -> int:
    return inspect.currentframe().f_back.f_lineno


def _log(t: Env) -> Any:
    from tt_impl.mock.log.events import EventLog

    return EventLog(t.shadow)


def _caught(log: Any) -> Any:
    from tt_impl.trace.intercept import intercepted

    return intercepted(log, first=True)


def lines_and_buffers(t: Env) -> None:
    ttnn, log = t.ttnn, _log(t)
    x = t.put(t.rand(1, 1, 64, 128), (2, 3))
    with _caught(log):
        total, line = ttnn.add(x, 2.5), _here()
        ttnn.multiply_(total, x)
        view = ttnn.reshape(total, (1, 32, 32))
        ttnn.get_device_tensors(x)[6].cpu()
        ttnn.fill_implicit_tile_padding(t.put(t.rand(30, 32)), 1.0)
    added, multiplied, viewed, read, _, padded = log.events
    assert padded.written == ()  # what is beside its data is none
    assert (read.devices, read.mesh) == ((6,), (2, 4))
    assert added.where == f"tests/tt_impl/cases/shadow/events.py:{line}", added.where
    assert [use.shape for use in added.inputs] == [(1, 1, 32, 32)] and added.options == {"1": 2.5}
    (result,) = added.outputs
    assert (result.dtype, result.layout, result.memory, result.sharding) == ("BFLOAT16", "TILE", "DRAM", None)
    assert (result.bytes, result.devices, result.mesh) == (2 * 32 * 32, tuple(range(8)), (2, 4))
    assert (result.buffer, result.address) == (total.buffer_unique_id(), total.buffer_address())
    assert added.written == () and multiplied.written == (result.buffer,)
    assert viewed.outputs[0].buffer == result.buffer == view.buffer_unique_id() and viewed.written == ()
    assert [event.number for event in log.events] == [*range(6)] and added.op == "ttnn.add"


def bytes_are_those_of_a_device(t: Env) -> None:
    ttnn, log = t.ttnn, _log(t)
    with _caught(log):
        t.put(t.rand(5, 7))
        t.put(t.rand(5, 7), layout="ROW_MAJOR")
        t.put(t.rand(5, 7), dtype="bfloat8_b")
        x = t.put(t.rand(1, 1, 64, 32))
        memory = ttnn.create_sharded_memory_config((1, 1, 64, 32), ttnn.CoreGrid(y=2, x=1), ttnn.ShardStrategy.HEIGHT)
        ttnn.to_memory_config(x, memory)
        t.put(t.rand(1, 1, 32, 32 * 26))
    sizes = [event.outputs[0].bytes for event in log.events]
    assert sizes[:4] == [2048, 5 * 32, 1088, 4096], sizes
    in_a_bank = [event.outputs[0].bank_bytes for event in log.events]
    assert in_a_bank == [2048, 32, 1088, 2048, 2048, 3 * 2048], in_a_bank  # of twelve banks, and of two cores
    sharded = log.events[-2].outputs[0]
    assert (sharded.memory, sharded.sharding) == ("L1", "HEIGHT_SHARDED")


def collectives_of_all_kinds(t: Env) -> None:
    ttnn, log = t.ttnn, _log(t)
    x = t.put(t.rand(1, 1, 128, 128), (2, 3))
    semaphores = t.semaphores(4)
    with _caught(log):
        ttnn.all_gather(x, 3, cluster_axis=1, topology=t.linear)
        ttnn.all_reduce(x, cluster_axis=0, num_links=1)
        ttnn.experimental.all_gather_async(x, 3, 0, t.device, t.linear, semaphores[:2], num_links=1)
        ttnn.experimental.neighbor_pad_async(
            ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), [2], [1], [1], "zeros", [1], [semaphores[2]], [semaphores[3]],
            num_links=[1], topology=t.linear,
        )  # fmt: skip
        ttnn.mesh_partition(x, 2, cluster_axis=0)
    found = [entry for event in log.events for entry in event.collectives]
    kinds = [(e["collective"], e["axis"], e["bytes"], e["topology"], e["links"]) for e in found]
    assert kinds == [
        ("all_gather", 1, 4096, "Linear", None),
        ("all_reduce", 0, 4096, None, 1),
        ("all_gather", 0, 4096, "Linear", 1),
        ("neighbor_pad", 1, 64, "Linear", 1),
    ], kinds
    addresses = [ttnn.get_global_semaphore_address(semaphore) for semaphore in semaphores]
    assert log.events[2].options["semaphores"] == addresses[:2]
    assert log.events[4].options["semaphores"] == addresses[2:]


def frees(t: Env) -> None:
    ttnn, log = t.ttnn, _log(t)
    with _caught(log):
        first = t.put(t.rand(32, 32))
        buffer = first.buffer_unique_id()
        ttnn.deallocate(first)
        second = t.put(t.rand(32, 32))
        other = second.buffer_unique_id()
        del second
        third = t.put(t.rand(32, 32))
        ttnn.deallocate(ttnn.reshape(third, (1, 32, 32)), force=False)  # frees nothing that another tensor has
    assert third.buffer_unique_id() not in (buffer, other)
    assert log.frees == {buffer: log.events[1]}


def marks_and_errors(t: Env) -> None:
    """Semaphores and synchronisations are events; a call that failed is one and says so."""
    ttnn, log = t.ttnn, _log(t)
    x = t.put(t.rand(32, 32))
    with _caught(log):
        (semaphore,) = t.semaphores(1)
        ttnn.reset_global_semaphore_value(semaphore, 0)
        ttnn.synchronize_device(t.device)
        try:
            ttnn.experimental.mish(x)
        except (RefsimError, AttributeError):
            pass
        try:
            ttnn.add(x, "text")
        except TypeError:
            pass
        ttnn.deallocate(x)
        try:
            ttnn.add(x, 1.0)
        except RefsimError:
            pass
    address = ttnn.get_global_semaphore_address(semaphore)
    made, reset, synchronized = log.events[:3]
    assert made.options["result"] == address and reset.options["semaphores"] == [address]
    assert synchronized.op == "ttnn.synchronize_device"
    failed = next(event for event in log.events if event.error)
    assert failed.error == "TypeError" and failed.outputs == []


def errors_that_end_a_program(t: Env) -> None:
    """An error is told from what was raised from it, or while it was handled."""
    log, x = _log(t), t.put(t.rand(32, 32))
    for link in ("cause", "context"):
        with _caught(log):
            try:
                t.ttnn.add(x, "text")
            except TypeError as error:
                told = ValueError("the program's own")
                setattr(told, f"__{link}__", error)
                log.ended_by(told)
    assert log.left_by_error == {0, 1} and [event.error for event in log.events] == ["TypeError"] * 2


def copies_and_captures(t: Env) -> None:
    """What a copy leaves different from device to device, and what the program's own mesh keeps for traces."""
    from tt_impl.run import cluster

    ttnn, log, x = t.ttnn, _log(t), t.rand(1, 1, 64, 128)
    with _caught(log), patch.object(cluster.process, "is_open", False):
        for dims in ((2, 3), (None, 3), (2, None), (None, None)):
            mapper = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=dims)
            host = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
            ttnn.copy_host_to_device_tensor(host, t.put(x, dims))
        flat = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, mesh_mapper=_along(t, 3))
        on_mesh = ttnn.to_device(flat, t.device)
        ttnn.copy_host_to_device_tensor(flat, on_mesh)
        kinds = {ttnn.BufferType.TRACE: SimpleNamespace(total_bytes_per_bank=3, num_banks=5)}
        with patch.object(ttnn, "get_memory_view", lambda _, kind: kinds[kind]):
            trace = ttnn.begin_trace_capture(t.device)
        ttnn.end_trace_capture(t.device, trace)
    copies = [event.uneven for event in log.events if event.op == "ttnn.copy_host_to_device_tensor"]
    assert copies == [(0, 1), (1,), (0,), (), (0, 1)], copies
    regions = [event.options.get("trace_region_bytes") for event in log.events if "trace" in event.op]
    assert regions == [15, None], regions


def _along(t: Env, dim: int) -> Any:
    return t.ttnn.ShardTensorToMesh(t.device, dim=dim)


def notes_without_a_shadow(t: Env) -> None:
    """Nobody knows then what was written, or which replicas differ."""
    from tt_impl.mock.log.events import EventLog

    log, x = EventLog(), t.put(t.rand(32, 32))
    with _caught(log):
        t.ttnn.add_(x, 1.0)
        t.ttnn.get_device_tensors(x)[0].cpu()
    assert not log.sees_writes and [(event.written, event.uneven) for event in log.events] == [((), ())] * 2


def what_is_asked_for_once(t: Env) -> None:
    """A warning of a kernel is told once, and what was told is gone."""
    t.shadow.kernel_warnings = [("slow", True), ("odd", False), ("slow", True)]
    assert t.shadow.take_kernel_warnings() == (("slow", True), ("odd", False))
    assert t.shadow.take_kernel_warnings() == ()


def reads_without_values(t: Env) -> None:
    """The first read from a device says that there are none, one of the host nothing."""
    from tt_impl.mock.calls.shadow import Shadow
    from tt_impl.trace.intercept import Invocation

    host = t.ttnn.from_torch(t.rand(32, 32))
    shadow = Shadow(fallback=False, numerics="off", values=False)
    assert not shadow.takes_notes  # nobody has asked
    said = io.StringIO()
    with redirect_stderr(said):
        for number, tensor in enumerate((host, t.put(t.rand(32, 32)), t.put(t.rand(32, 32)))):
            shadow.handle(Invocation("ttnn.to_torch", (tensor,), {}, lambda *_: None))
            assert said.getvalue().count("values are off: ttnn.to_torch") == min(number, 1)


def semaphores_of_an_operation(t: Env) -> None:
    """The addresses of all of them, also of those in lists of lists."""
    from tt_impl.mock.log.arguments import options_of

    one, two, three = t.semaphores(3)
    addresses = list(map(t.ttnn.get_global_semaphore_address, (one, two, three)))
    options = options_of({"barrier": one, "pairs": [(two,), [three]], "dim": 3})
    for wide in (False, True):
        config = t.ttnn.init_device_compute_kernel_config(
            t.device.arch(), math_fidelity=t.ttnn.MathFidelity.HiFi3, fp32_dest_acc_en=wide
        )
        told = options_of({"compute_kernel_config": config})
        assert told == {"compute_kernel_config": {"math_fidelity": "HiFi3", "fp32_dest_acc_en": wide}}, told
    lists = options_of({"shown": [1] * 16, "long": [1] * 17})
    assert lists == {"shown": [1] * 16, "long": "17 values"}
    assert options_of({"many": [one] * 16})["semaphores"] == addresses[:1] * 16
    assert options == {
        "barrier": addresses[0],
        "pairs": [[n] for n in addresses[1:]],
        "dim": 3,
        "semaphores": addresses,
    }


def infinity_that_was_asked_for(t: Env) -> None:
    """An operation without tensors makes the numbers that it is told to; one with tensors makes them of something.

    Beside NaN that it was given an operation's infinity may come of that.
    """
    ttnn, log = t.ttnn, _log(t)
    with _caught(log):
        whole = ttnn.moreh_full([1, 1, 32, 32], float("inf"), t.device, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
        ttnn.exp(ttnn.moreh_full([1, 1, 32, 32], 1e30, t.device, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT))
        ttnn.add(whole, 1.0)
        ttnn.exp(t.put(torch.tensor([float("nan"), 1e30])))
    assert [event.not_finite for event in log.events] == [(), (), ("infinity",), (), (), ()]


def objects_that_live_where_others_did(t: Env) -> None:
    """A tensor that no operation made is not what another one was made by that had its place in Python's memory."""
    ttnn, log = t.ttnn, _log(t)
    x = t.put(t.rand(32, 32))
    with _caught(log):
        made = ttnn.add(x, 1.0)
        ttnn.exp(made)
    other = ttnn.add(x, 2.0)
    log._made[id(other)] = log._made[id(made)]  # as if it lived where the other one did
    with _caught(log):
        ttnn.exp(other)
    assert [event.inputs[0].made for event in log.events] == [-1, 0, -1]


def replicas_that_are_no_numbers(t: Env) -> None:
    """What is no number on one device is not what is zero on another; on all of them it is the same."""
    from tt_impl.mock.storage.replicas import uneven_axes

    topology = t.put(t.rand(1, 1, 32, 32)).tensor_topology()
    for values, uneven in (((float("nan"), 0.0), (0,)), ((float("nan"),) * 2, ()), ((float("inf"), 3.4e38), (0,))):
        parts = t.put(torch.tensor(values).reshape(2, 1, 1, 1).expand(2, 1, 32, 32), (0, None), dtype="float32")
        parts.update_tensor_topology(topology)
        assert uneven_axes(t.shadow, parts) == uneven, values


def replicas_by_axis(t: Env) -> None:
    """A distribution over the mesh as a whole stands for both axes."""
    from tt_impl.mock.storage.replicas import uneven_axes

    whole = t.ttnn.ReplicateTensorToMesh(t.device)
    for dims, uneven in (((None, 3), (1,)), ((2, None), (0,)), ((2, 3), (0, 1)), ((None, None), ())):
        parts = t.put(t.rand(1, 1, 64, 128), dims)
        shape = tuple(parts.shape)
        like = t.ttnn.from_torch(torch.zeros(shape), device=t.device, layout=t.ttnn.TILE_LAYOUT, mesh_mapper=whole)
        parts.update_tensor_topology(like.tensor_topology())
        assert uneven_axes(t.shadow, parts) == uneven, dims


CASES = collect(globals())
