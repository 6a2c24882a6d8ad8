"""Views, layouts, dtypes, cutting and joining, and the way in and out of the mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect, packed


def views(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 128)
    a = t.put(x, (2, 3))
    local = t.shards(x, (2, 3))
    for out, shape in (
        (ttnn.reshape(a, (1, 32, 32)), (1, 32, 32)),
        (ttnn.reshape(a, (1, -1, 64)), (1, 16, 64)),
        (a.reshape([1, 32, 32]), (1, 32, 32)),
        (a.reshape(1, 1, 32, 32), (1, 1, 32, 32)),
        (ttnn.view(a, (1, 32, 32)), (1, 32, 32)),
        (ttnn.experimental.view(a, (1, 32, 32)), (1, 32, 32)),
        (ttnn.unsqueeze(a, 0), (1, 1, 1, 32, 32)),
        (ttnn.squeeze(a, 0), (1, 32, 32)),
    ):
        t.check(out, [part.reshape(shape) for part in local])
    for part in (x[0, 0, 0], x[0, 0], x[0], x):
        t.check(ttnn.unsqueeze_to_4D(t.put(part)), part.reshape((1,) * (4 - part.dim()) + part.shape))


def filled_tiles(t: Env) -> None:
    """The rows and columns of the last tiles are filled, those of the tensor stay."""
    x = t.rand(1, 2, 40, 50)
    out = t.ttnn.fill_implicit_tile_padding(t.put(x), -1e9)
    assert list(out.shape) == [1, 2, 40, 50]
    t.check(out, x)


def order(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 3, 32, 64)
    a = t.put(x)
    t.check(ttnn.permute(a, (0, 2, 1, 3)), x.permute(0, 2, 1, 3))
    t.check(ttnn.transpose(a, -2, -1), x.transpose(-2, -1))


def cuts(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 2, 64, 128)
    a = t.put(x)
    t.check(ttnn.slice(a, [0, 0, 32, 0], [1, 2, 64, 64]), x[:, :, 32:64, :64])
    t.check(a[:, 1:, :32, 64:128], x[:, 1:, :32, 64:])
    kept = t.shadow.store.read(a[:, 1:], "").stored[0]
    assert kept.untyped_storage().nbytes() == kept.nbytes  # and not the memory of all that it was cut from
    t.check(a[0], x[0])
    t.check(a[..., -32:], x[..., -32:])
    for parts, wanted in (
        (ttnn.split(a, 32, 3), x.split(32, 3)),
        (ttnn.split(a, [32, 96], dim=-1), x.split([32, 96], -1)),
        (ttnn.chunk(a, 4, -1), x.chunk(4, -1)),
    ):
        assert len(parts) == len(wanted)
        for part, want in zip(parts, wanted, strict=True):
            t.check(part, want)
    y = t.rand(2, 3, 40, 50)
    strided = ttnn.slice(t.put(y, layout="ROW_MAJOR"), [0, 0, 0, 0], [2, 3, 40, 50], [1, 1, 2, 1])
    t.check(strided, y[:, :, ::2])


def joins(t: Env) -> None:
    ttnn, x, y = t.ttnn, t.rand(1, 2, 32, 64), t.rand(1, 2, 32, 64)
    t.check(ttnn.concat([t.put(x), t.put(y)], dim=2), torch.cat([x, y], 2))
    t.check(ttnn.stack([t.put(x), t.put(y)], 0), torch.stack([x, y]))
    t.check(ttnn.repeat(t.put(x), (1, 2, 1, 1)), x.repeat(1, 2, 1, 1))
    t.check(ttnn.repeat_interleave(t.put(x), 2, dim=1), x.repeat_interleave(2, 1))
    t.check(ttnn.expand(t.put(x[:, :1, :1]), (1, 1, 32, -1)), x[:, :1, :1].expand(1, 1, 32, 64))


def padding(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 2, 40, 50)
    out = ttnn.pad(t.put(x, layout="ROW_MAJOR"), [(0, 0), (0, 1), (0, 24), (0, 14)], 2.0)
    t.check(out, F.pad(x, (0, 14, 0, 24, 0, 1), value=2.0))
    y = t.rand(1, 2, 32, 64)
    t.check(ttnn.pad(t.put(y), [(0, 32), (0, 0)], value=0.0), F.pad(y, (0, 0, 0, 32)))


def upsample(t: Env) -> None:
    x = t.rand(1, 8, 8, 32)
    wanted = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2).permute(0, 2, 3, 1)
    for scale in (2, 2.0):
        t.check(t.ttnn.upsample(t.put(x, layout="ROW_MAJOR"), scale), wanted)


def same_values(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 64)
    a = t.put(x)
    row_major = ttnn.to_layout(a, ttnn.ROW_MAJOR_LAYOUT)
    for out in (
        row_major,
        ttnn.to_layout(row_major, ttnn.TILE_LAYOUT),
        ttnn.tilize(row_major),
        ttnn.untilize(a),
        ttnn.to_memory_config(a, ttnn.L1_MEMORY_CONFIG),
        ttnn.to_memory_config(a, ttnn.DRAM_MEMORY_CONFIG),
        ttnn.clone(a),
        ttnn.move(ttnn.clone(a)),
        ttnn.reallocate(ttnn.clone(a)),
        ttnn.assign(a, memory_config=ttnn.DRAM_MEMORY_CONFIG),
    ):
        t.check(out, x)
    target = t.empty(1, 1, 64, 64)
    ttnn.copy(a, target)
    t.check(target, x)


def sharded_memory(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 256, 64)
    config = ttnn.create_sharded_memory_config(
        (1, 1, 256, 64), core_grid=ttnn.CoreGrid(x=1, y=8), strategy=ttnn.ShardStrategy.HEIGHT
    )
    other = ttnn.create_sharded_memory_config(
        (1, 1, 256, 64), core_grid=ttnn.CoreGrid(x=1, y=4), strategy=ttnn.ShardStrategy.HEIGHT
    )
    sharded = ttnn.interleaved_to_sharded(t.put(x), config)
    t.check(sharded, x)
    t.check(ttnn.reshard(sharded, other), x)
    t.check(ttnn.sharded_to_interleaved(sharded, ttnn.DRAM_MEMORY_CONFIG), x)


def rounding(t: Env) -> None:
    """An operation rounds to block floats as the packer does, from_torch as ttnn's host conversion: ties to even."""
    ttnn, x = t.ttnn, t.rand(1, 1, 32, 64)
    a = t.put(x)
    blocks = x.unflatten(-1, (-1, 16))
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True)))
    for name, bits in (("bfloat8_b", 7), ("bfloat4_b", 3)):
        step = 2.0 ** (exponent - (bits - 1))
        on_host = (blocks / step).round().clamp(-(2**bits - 1), 2**bits - 1) * step
        t.check(t.put(x, dtype=name), on_host.reshape(x.shape), ulps=0)
        out = ttnn.typecast(a, getattr(ttnn, name))
        t.check(out, packed(x, bits), ulps=0)
        t.check(ttnn.typecast(out, ttnn.float32), packed(x, bits), ulps=0)
    t.check(ttnn.typecast(a, ttnn.int32), x.to(torch.int32).long())
    third = t.put(torch.full((1, 1, 32, 32), 1 / 3), dtype="float32")
    t.check(third, torch.full((1, 1, 32, 32), 1 / 3), ulps=0)
    t.check(ttnn.typecast(third, ttnn.bfloat16), torch.full((1, 1, 32, 32), 1 / 3).bfloat16(), ulps=0)


def output_dtype_rounds(t: Env) -> None:
    x, y = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    for dtype, bits in ((t.ttnn.bfloat8_b, 7), (t.ttnn.bfloat4_b, 3)):
        t.check(t.ttnn.add(t.put(x), t.put(y), dtype=dtype), packed(x + y, bits), ulps=0)


def packing(t: Env) -> None:
    """The numbers of tt-metal's issue 57410, which tell rounding to 7 bits and dropping 4 from rounding to 3 bits."""
    ttnn, told = t.ttnn, {1.375: 1.25, 1.6875: 1.5, 1.2421875: 1.25, 1.9921875: 1.75, -1.375: -1.25, 0.0: 0.0}
    x = torch.zeros(1, 1, 32, 32 * len(told))
    x[..., ::32] = torch.tensor(list(told))
    narrow = t.shadow.values(ttnn.typecast(t.put(x, dtype="float32"), ttnn.bfloat4_b))[0]
    assert narrow[0, 0, 0, ::32].tolist() == list(told.values())
    tie = torch.zeros(1, 1, 32, 32)
    tie[..., 0], tie[..., 1], tie[..., 2] = 64.0, 0.5, -2.5
    wide = ttnn.typecast(t.put(tie), ttnn.bfloat8_b)
    assert t.shadow.values(wide)[0][0, 0, 0, :3].tolist() == [64.0, 1.0, -3.0]
    tiny = ttnn.typecast(t.put(torch.full((1, 1, 32, 32), 1e-38), dtype="float32"), ttnn.bfloat8_b)
    t.check(tiny, torch.zeros(1, 1, 32, 32), ulps=0)


def constants(t: Env) -> None:
    ttnn, a = t.ttnn, t.put(t.rand(1, 1, 32, 32))
    kwargs = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device)
    for out, value in (
        (ttnn.zeros((1, 1, 32, 32), **kwargs), 0.0),
        (ttnn.ones((1, 1, 32, 32), **kwargs), 1.0),
        (ttnn.full((1, 1, 32, 32), 3.5, **kwargs), 3.5),
        (ttnn.zeros_like(a), 0.0),
        (ttnn.ones_like(a), 1.0),
        (ttnn.full_like(a, 2.0), 2.0),
    ):
        t.check(out, torch.full((1, 1, 32, 32), value))
    for out in (ttnn.empty_like(a), ttnn.empty((1, 1, 32, 32), **kwargs)):
        t.check(out, torch.full((1, 1, 32, 32), float("nan")))


def in_and_out(t: Env) -> None:
    ttnn = t.ttnn
    x = torch.arange(t.n * 32 * 32).reshape(1, 1, t.shape[0] * 32, t.shape[1] * 32).float()
    a = t.put(x, (2, 3), "float32")
    assert t.whole(a, (2, 3)).equal(x)
    for host in (ttnn.from_device(a), a.cpu()):
        composer = ttnn.ConcatMesh2dToTensor(t.device, mesh_shape=t.shape, dims=(2, 3))
        assert ttnn.to_torch(host, mesh_composer=composer).equal(x)
    for device, part in enumerate(ttnn.get_device_tensors(a)):
        assert ttnn.to_torch(part).equal(t.shards(x, (2, 3))[device])
    doubled = ttnn.add(a, a)
    assert t.whole(doubled, (2, 3)).equal(2 * x)


def other_ways_in(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 128)
    kwargs = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    mapper = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(2, 3))
    host = ttnn.from_torch(x, mesh_mapper=mapper, **kwargs)
    wanted = t.shards(x, (2, 3))
    t.check(ttnn.to_device(host, t.device), wanted)
    t.check(host.to(t.device), wanted)
    tensor = ttnn.as_tensor(x, device=t.device, mesh_mapper=mapper, memory_config=ttnn.DRAM_MEMORY_CONFIG, **kwargs)
    t.check(tensor, wanted)
    t.check(ttnn.from_torch(x, device=t.device, **kwargs), x)  # no mapper: the same on all devices
    t.check(ttnn.from_torch(x, device=t.device, mesh_mapper=ttnn.ShardTensorToMesh(t.device, 3), **kwargs),
            list(x.chunk(t.n, 3)))  # fmt: skip
    target = ttnn.allocate_tensor_on_device(host.spec, t.device)
    t.check(target, torch.full((1, 1, 32, 32), float("nan")))
    ttnn.copy_host_to_device_tensor(host, target)
    t.check(target, wanted)
    loose = ttnn.to_torch(t.put(x, dtype="bfloat8_b"), mesh_composer=ttnn.ConcatMeshToTensor(t.device, dim=0))
    assert loose.shape[0] == t.n and (loose[3] - x[0]).abs().max() < 0.05


def methods_of_tensors(t: Env) -> None:
    x = t.rand(1, 1, 32, 32)
    part = t.ttnn.get_device_tensors(t.put(x, dtype="float32"))[0]
    assert part.to_torch().equal(x)
    assert torch.from_numpy(part.to_numpy()).equal(x)
    assert torch.tensor(part.to_list()).equal(x)
    single = t.ttnn.get_device_tensors(t.put(torch.full((1, 1, 1, 1), 2.5)))[0]
    assert single.item() == 2.5
    copy = t.ttnn.clone(t.put(x))
    buffer = copy.buffer_unique_id()
    copy.deallocate()
    assert not copy.is_allocated() and buffer not in t.shadow.store.values


def values_are_forgotten(t: Env) -> None:
    """The store does not grow with the temporaries of a long program."""
    a = t.put(t.rand(1, 1, 32, 32))
    for _ in range(50):
        a = t.ttnn.add(a, 1.0)
    assert len(t.shadow.store.values) < 20


def padding_that_operations_fill_themselves(t: Env) -> None:
    """No finding is made of these, because ttnn runs FillPad before them, or reads no padding: asked of ttnn itself."""
    from tt_impl.harness.checks.find import find
    from tt_impl.harness.watch.session import watched

    ttnn, x = t.ttnn, t.rand(1, 1, 40, 50)
    wanted = x.bfloat16().float() + 1
    with watched() as session:
        tensor = ttnn.add(t.put(x), 1.0)  # its padding is 1
        places = ttnn.from_torch(
            torch.zeros(1, 1, 40, 50, dtype=torch.int32), dtype=ttnn.uint32, layout=ttnn.TILE_LAYOUT, device=t.device
        )
        for fills, call in (
            (True, lambda: ttnn.sum(tensor, dim=-1)),
            (True, lambda: ttnn.mean(tensor, dim=-2)),
            (True, lambda: ttnn.max(tensor, dim=-1)),
            (True, lambda: ttnn.prod(tensor, dim=-1)),
            (True, lambda: ttnn.topk(tensor, 8)),
            (True, lambda: ttnn.sort(tensor)),
            (True, lambda: ttnn.gather(tensor, -1, places)),
            (True, lambda: ttnn.rms_norm_pre_all_gather(tensor)),
            (True, lambda: ttnn.layer_norm_pre_all_gather(tensor)),
            (False, lambda: ttnn.var(tensor, dim=-1)),
            (False, lambda: ttnn.softmax(tensor, dim=-1)),
            (False, lambda: ttnn.layer_norm(tensor)),
        ):
            ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
            call()
            nodes = ttnn.graph.end_graph_capture()
            names = [node["params"]["name"] for node in nodes if node["node_type"] == "function_start"]
            assert ("FillPadDeviceOperation" in names) == fills, names
        statistics = session.shadow.values(ttnn.rms_norm_pre_all_gather(tensor))[0][..., 0]
    torch.testing.assert_close(statistics, wanted.bfloat16().float().square().sum(-1), rtol=0.02, atol=0)
    assert [finding for finding in find(session.log) if finding.kind == "tile-padding"] == []


def block_floats_in_transposed_tiles(t: Env) -> None:
    """What shares an exponent lies in a column then; moved to devices, no value is rounded again."""
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 64)
    for dtype in (ttnn.bfloat4_b, ttnn.bfloat8_b):
        tile = ttnn.Tile((32, 32), transpose_tile=True)
        host = ttnn.from_torch(
            x, dtype, tile=tile, layout=ttnn.TILE_LAYOUT, mesh_mapper=ttnn.ReplicateTensorToMesh(t.device)
        )
        wanted = ttnn.to_torch(ttnn.get_device_tensors(host)[0])
        assert not torch.equal(wanted, ttnn.to_torch(ttnn.from_torch(x, dtype, layout=ttnn.TILE_LAYOUT)))
        held = ttnn.to_device(host, t.device)
        assert torch.equal(t.shadow.values(held)[0], wanted.float())
        assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(held)[0]), wanted)


def slices_by_limits_on_devices(t: Env) -> None:
    """Tiles are cut without steps by limits that devices read; else ttnn reads them, of one device alone."""
    ttnn, x = t.ttnn, t.rand(1, 2, 64, 64)
    limits = ([0, 0, 32, 0], [1, 2, 64, 64])
    first, end = (t.put(torch.tensor(places), dtype="uint32", layout="ROW_MAJOR") for places in limits)
    t.check(ttnn.slice(t.put(x), first, end, slice_dim=2, num_devices=2), x[:, :, 32:])
    with pytest.raises(RuntimeError, match="Can't get a single buffer from host storage"):
        ttnn.slice(t.put(x, layout="ROW_MAJOR"), first, end)


def rows_in_shards(t: Env) -> None:
    """A slice in shards has its images as rows, channels filled up with zeros; so has what is written into a tensor."""
    ttnn = t.ttnn

    def shards(cores: int, rows: int) -> Any:
        grid = ttnn.num_cores_to_corerangeset(cores, t.device.compute_with_storage_grid_size(), row_wise=True)
        spec = ttnn.ShardSpec(grid, [rows, 64], ttnn.ShardOrientation.ROW_MAJOR)
        return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)

    x = t.rand(1, 6, 35, 63)
    place = [0, 1, 0, 0], [1, 5, 35, 63], [1, 1, 1, 1]
    part = ttnn.experimental.padded_slice(t.put(x), *place, memory_config=shards(5, 28))
    rows = F.pad(x[:, 1:5], (0, 1)).reshape(1, 1, 140, 64)
    first = ttnn.get_device_tensors(part)[0]
    assert first.cpu().to_torch_with_padded_shape().float().equal(rows)
    filled = F.pad(x[:, 1:5], (0, 1, 0, 29), value=7.0).reshape(1, 1, 256, 64)
    target = t.put(torch.zeros(1, 6, 35, 63))
    ttnn.experimental.slice_write(ttnn.to_memory_config(t.put(filled), shards(8, 32)), target, *place)
    wanted = torch.zeros(1, 6, 35, 63)
    wanted[:, 1:5] = x[:, 1:5]
    t.check(target, wanted)


CASES = collect(globals())
