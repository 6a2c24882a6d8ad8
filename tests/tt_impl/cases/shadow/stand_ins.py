"""Calls that the mock cannot take, emulated: sub-devices, events, transfers between two devices, partial copies."""

from __future__ import annotations

import torch

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import spread


def sub_devices(t: Env) -> None:
    """A manager is loaded, its stall group set, cleared and removed; values go on."""
    from tt_impl.mock.calls.stand_ins import EMULATED
    from tt_impl.trace.intercept import Invocation

    ttnn = t.ttnn
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 3))})
    t.device.set_sub_device_stall_group([ttnn.SubDeviceId(0)])
    manager = t.device.create_sub_device_manager([ttnn.SubDevice([cores])], 0)
    t.device.load_sub_device_manager(manager)
    t.device.set_sub_device_stall_group([ttnn.SubDeviceId(1)])  # of the manager that nobody loaded
    x, parts = spread(t, 1, 1, 32, 64)
    t.check(ttnn.add(x, x), [2 * part for part in parts])
    t.check(ttnn.add(x, x, sub_device_id=ttnn.SubDeviceId(1)), [2 * part for part in parts])
    assert t.shadow.emulated["ttnn.add(sub_device_id=)"] == 1
    t.device.reset_sub_device_stall_group()
    t.device.clear_loaded_sub_device_manager()
    ttnn.add(x, x, sub_device_id=ttnn.SubDeviceId(0))  # of the manager that ttnn knows, and as it stands
    assert t.shadow.emulated["ttnn.add(sub_device_id=)"] == 1
    t.device.remove_sub_device_manager(manager)
    t.device.clear_loaded_sub_device_manager()
    assert t.shadow.emulated["ttnn.MeshDevice.load_sub_device_manager"] == 1
    asked: list[str] = []
    for name in ("clear_loaded_sub_device_manager", "set_sub_device_stall_group"):  # of one that was not loaded here
        call = Invocation(f"ttnn.MeshDevice.{name}", (t.device,), {}, lambda *_: asked.append(name))  # noqa: B023
        EMULATED[call.name](t.shadow, call)
    assert asked == ["clear_loaded_sub_device_manager", "set_sub_device_stall_group"]


def events(t: Env) -> None:
    from tt_impl.mock.calls import checks

    event = t.ttnn.record_event(t.device, 0)
    t.ttnn.wait_for_event(0, event)
    t.ttnn.event_synchronize(event)
    raises(UserError, lambda: t.ttnn.wait_for_event(0, None), "ttnn.wait_for_event", "ttnn.record_event")
    others = checks._emulators
    with checks.emulating():
        assert checks._emulators == others + 1
    assert checks._emulators == others  # who began before goes on
    assert sum(t.shadow.emulated.values()) == 3


def between_two_devices(t: Env) -> None:
    """Into a tensor that holds something, and into a new one, which holds nothing elsewhere."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 32, 64)
    y, others = spread(t, 1, 1, 32, 64)
    sender, receiver = (0, t.shape[1] - 1), (t.shape[0] - 1, 0)
    places = [ttnn.MeshCoordinate(*place) for place in (sender, receiver)]
    number = receiver[0] * t.shape[1] + receiver[1]
    wanted = list(others)
    wanted[number] = parts[sender[0] * t.shape[1] + sender[1]]
    ttnn.point_to_point(x, *places, topology=t.linear, output_tensor=y)
    t.check(y, wanted)
    out = ttnn.point_to_point(x, *places, topology=t.linear)
    assert str(out.tensor_topology()) == str(x.tensor_topology())
    values = t.shadow.values(out)
    torch.testing.assert_close(values[number], wanted[number])
    assert all(value.isnan().all() for i, value in enumerate(values) if i != number)
    wrong = ttnn.typecast(y, ttnn.float32)
    raises(UserError, lambda: ttnn.point_to_point(x, *places, topology=t.linear, output_tensor=wrong), "dtype")


def without_values(t: Env) -> None:
    """What ttnn cannot do on a mock is emulated where nothing is computed, too; all tensors read as zeros then."""
    from tt_impl.mock.calls.shadow import Shadow
    from tt_impl.trace.intercept import Invocation

    ttnn = t.ttnn
    shadow = Shadow(fallback=False, numerics="off", values=False)
    for dtype, stored in (("bfloat16", torch.float32), ("uint32", torch.int64)):
        x = t.put(torch.ones(1, 1, 32, 64), (None, 3), dtype=dtype)
        ends = [ttnn.MeshCoordinate(0, place) for place in (0, 1)]
        call = Invocation("ttnn.point_to_point", (x, *ends), {"topology": t.linear}, lambda *_: None)
        read = shadow.store.read(shadow.handle(call), "a test")
        assert shadow.calls == shadow.emulated and len(read) == t.n and read.dtype == x.dtype
        assert all(value.dtype == stored and value.shape == (1, 1, 32, 16) and not value.any() for value in read)


def host_tensor_on_some_cores(t: Env) -> None:
    """Rows, columns and blocks of the second value on the chosen cores, the first one elsewhere."""
    ttnn = t.ttnn
    old, new = t.rand(1, 1, 64, 128), t.rand(1, 1, 64, 128)
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1))})
    chosen = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(1, 0), ttnn.CoreCoord(1, 0))})
    row, column = ttnn.ShardOrientation.ROW_MAJOR, ttnn.ShardOrientation.COL_MAJOR
    layouts = ttnn.TensorMemoryLayout
    cut = slice(None)
    for layout, shape, orientation, written in (
        (layouts.HEIGHT_SHARDED, (16, 128), row, (slice(16, 32), cut)),
        (layouts.HEIGHT_SHARDED, (16, 128), column, (slice(32, 48), cut)),
        (layouts.WIDTH_SHARDED, (64, 32), row, (cut, slice(32, 64))),
        (layouts.WIDTH_SHARDED, (64, 48), column, (cut, slice(96, 128))),  # the last shard is a part of one
        (layouts.BLOCK_SHARDED, (32, 64), row, (slice(0, 32), slice(64, 128))),
        (layouts.BLOCK_SHARDED, (32, 64), column, (slice(32, 64), slice(0, 64))),
    ):
        config = ttnn.MemoryConfig(layout, ttnn.BufferType.L1, ttnn.ShardSpec(grid, shape, orientation))
        held = ttnn.to_memory_config(t.put(old, layout="ROW_MAJOR"), config)
        everywhere = ttnn.ReplicateTensorToMesh(t.device)
        host = ttnn.from_torch(new, dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT, mesh_mapper=everywhere)
        ttnn.copy_host_to_device_tensor_partial(host, held, ttnn.CoreRangeSet([]))
        assert t.shadow.emulated["ttnn.copy_host_to_device_tensor_partial"] > 0
        t.check(held, old)
        ttnn.copy_host_to_device_tensor_partial(host, held, chosen)
        wanted = old.clone()
        wanted[0, 0][written] = new[0, 0][written]
        t.check(held, wanted)
    apart = ttnn.CoreRangeSet(
        {ttnn.CoreRange(ttnn.CoreCoord(1, 2), ttnn.CoreCoord(2, 3))}
    )  # from another first core on
    config = ttnn.MemoryConfig(layouts.BLOCK_SHARDED, ttnn.BufferType.L1, ttnn.ShardSpec(apart, (32, 64), row))
    held = ttnn.to_memory_config(t.put(old, layout="ROW_MAJOR"), config)
    chosen = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(2, 2), ttnn.CoreCoord(2, 2))})
    ttnn.copy_host_to_device_tensor_partial(host, held, chosen)
    wanted = old.clone()
    wanted[0, 0, :32, 64:] = new[0, 0, :32, 64:]
    t.check(held, wanted)


CASES = collect(globals())
