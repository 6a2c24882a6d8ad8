"""Every way of a tensor between host and devices: what is read is what was computed, never the zeros of the mock."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect


def _with_padding(t: Env, tensor: Any) -> torch.Tensor:
    """The first device's tiles, with what fills them up."""
    return t.ttnn.get_device_tensors(tensor)[0].to_torch_with_padded_shape().float()


def constructor(t: Env) -> None:
    """``ttnn.Tensor`` of a list or of torch, on the host and straight to the devices."""
    ttnn, x = t.ttnn, t.rand(32, 64)
    rows, tiles = ttnn.ROW_MAJOR_LAYOUT, ttnn.TILE_LAYOUT
    host = ttnn.Tensor(x, ttnn.bfloat16)
    assert isinstance(host, ttnn.Tensor) and ttnn.to_torch(host).float().equal(x)
    t.check(ttnn.Tensor(x.flatten().tolist(), [32, 64], ttnn.bfloat16, tiles, t.device), x)
    t.check(ttnn.Tensor(x, ttnn.bfloat16, t.device, tiles), x)
    t.check(ttnn.Tensor(x.flatten().tolist(), [32, 64], ttnn.bfloat16, tiles, t.device, ttnn.L1_MEMORY_CONFIG), x)
    t.check(ttnn.Tensor(x, ttnn.bfloat16, t.device, tiles, ttnn.L1_MEMORY_CONFIG), x)
    t.check(ttnn.from_buffer(x.flatten().tolist(), [32, 64], ttnn.bfloat16, t.device, tiles, ttnn.L1_MEMORY_CONFIG), x)
    t.check(ttnn.Tensor(x, data_type=ttnn.float32, device=t.device, layout=rows), x)
    t.check(host.to(tiles).to(t.device), x)
    padded = ttnn.Tensor(x[:30], ttnn.bfloat16, t.device, tiles, pad_value=7.0)
    assert _with_padding(t, padded).equal(F.pad(x[:30], (0, 0, 0, 2), value=7.0))
    again = ttnn.Tensor(ttnn.Tensor(x, ttnn.bfloat16, t.device, tiles))
    t.check(again, x)
    t.check(ttnn.to_device(again, t.device), x)


def random_weights(t: Env) -> None:
    """What takes no memory is drawn on its way to the devices, also as a parameter."""
    from tt_impl.mock.storage.seeded import Seeded

    def drawn(name: str, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(f"3 {name}".encode())))

    weight = Seeded("a.weight", (64, 2, 16), torch.bfloat16, 3)
    for tensor in (weight, torch.nn.Parameter(weight)):
        t.check(t.put(tensor.reshape(64, 32)), (drawn("a.weight", 64, 2, 16) * 32**-0.5).reshape(64, 32).bfloat16())
    for name, number in (("norm.weight", 1.0), ("norm.bias", 0.0)):
        t.check(t.put(Seeded(name, (64,), torch.float32, 3), dtype="float32"), 0.02 * drawn(name, 64) + number)
    wider = weight.float()
    assert isinstance(wider, Seeded) and torch.equal(wider.real(), drawn("a.weight", 64, 2, 16) * 32**-0.5)
    assert not torch.zeros_like(weight, dtype=torch.float32).any()
    assert type(weight.detach()) is Seeded and type(weight + 1) is torch.Tensor
    assert repr(weight) == "Seeded('a.weight', (64, 2, 16), torch.bfloat16)"
    t.check(t.put(Seeded("table", (64, 32), torch.int32, 3), dtype="int32"), torch.zeros(64, 32))


def layouts(t: Env) -> None:
    """``Tensor.to(layout)`` and ``ttnn.to_layout``, on the host and on the devices."""
    ttnn, x = t.ttnn, t.rand(30, 20)
    host = ttnn.from_torch(x, dtype=ttnn.bfloat16)
    assert ttnn.to_torch(host.to(ttnn.TILE_LAYOUT)).float().equal(x)
    assert ttnn.to_torch(ttnn.to_layout(host, ttnn.TILE_LAYOUT)).float().equal(x)
    a = t.put(x)
    row_major = a.to(ttnn.ROW_MAJOR_LAYOUT)
    t.check(row_major, x)
    tiles = row_major.to(ttnn.TILE_LAYOUT)
    t.check(tiles, x)
    assert _with_padding(t, tiles).equal(F.pad(x, (0, 12, 0, 2)))
    assert a.to(ttnn.TILE_LAYOUT).layout == ttnn.TILE_LAYOUT


def dtypes_on_the_host(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(32, 32)
    host = ttnn.from_torch(x, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT)
    t.check(ttnn.to_device(ttnn.to_dtype(host, ttnn.bfloat16), t.device), x)
    t.check(ttnn.to_device(ttnn.typecast(host, ttnn.bfloat16), t.device), x)


def padded_shapes(t: Env) -> None:
    """The padding that a tensor was made with can be read; a softmax leaves one that nobody knows."""
    from tests.tt_impl.env import raises
    from tt_impl.mock.storage.errors import ShadowError

    ttnn, x = t.ttnn, t.rand(30, 20)
    part = ttnn.get_device_tensors(t.put(x))[0]
    assert part.to_torch_with_padded_shape().float().equal(F.pad(x, (0, 12, 0, 2)))
    how = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device, pad_value=7.0)
    filled = ttnn.get_device_tensors(ttnn.from_torch(x, **how))[0]
    assert filled.to_torch_with_padded_shape().float().equal(F.pad(x, (0, 12, 0, 2), value=7.0))
    assert filled.cpu().to_torch_with_padded_shape().float().equal(F.pad(x, (0, 12, 0, 2), value=7.0))
    assert ttnn.to_torch(filled).float().equal(x)
    computed = ttnn.get_device_tensors(ttnn.softmax(t.put(x), dim=-1))[0]
    for unknown in (computed, ttnn.get_device_tensors(t.empty(30, 32))[0]):
        raises(ShadowError, unknown.to_torch_with_padded_shape, "padding")
    assert _with_padding(t, ttnn.softmax(t.put(x.new_zeros(32, 32)), dim=-1)).eq(1 / 32).all()  # there is none
    for dtype in ("bfloat16", "float32"):
        part = ttnn.get_device_tensors(ttnn.softmax(t.put(x, dtype=dtype), dim=-1))[0]
        rows = part.cpu().to_torch_with_padded_shape()[30:]
        assert bool(rows.isnan().all()), (dtype, rows)


def padding_that_comes_from_the_host(t: Env) -> None:
    """A copy to devices has below its rows, and beside its columns, what the host's tensor has there."""
    ttnn = t.ttnn
    for shape in ((30, 64), (64, 20), (30, 20)):
        x = t.rand(*shape)
        host = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, pad_value=7.0)
        part = ttnn.get_device_tensors(ttnn.to_device(host, t.device))[0]
        rows, columns = part.padded_shape
        wanted = F.pad(x, (0, columns - shape[1], 0, rows - shape[0]), value=7.0)
        assert part.to_torch_with_padded_shape().float().equal(wanted), shape


def padding_of_two_numbers(t: Env) -> None:
    """What fills up tiles is one number only if rows and columns that end inside of a tile have the same."""
    from tt_impl.mock.storage.padding import Padding, ends_inside
    from tt_impl.mock.storage.views import View

    padding, tile = Padding(1.0, 2.0), (32, 32)
    for shape, wanted in (((30, 64), 1.0), ((64, 20), 2.0), ((30, 20), None)):
        assert padding.single(View(shape, (32 if shape[0] == 30 else 64, 32 if shape[1] == 20 else 64), tile)) == wanted
    assert ends_inside(View((40, 50), (40, 64), None)) == (False, False)  # rows lie in no tiles
    assert Padding(3.0, 3.0).single(View((30, 20), (32, 32), tile)) == 3.0


def memory_that_nobody_has_written(t: Env) -> None:
    """It is NaN, and where integers have none their largest number, or -1 of signed ones."""
    for dtype, number in (("uint8", 255), ("uint16", 65535), ("uint32", 2**32 - 1), ("int32", -1)):
        made = t.ttnn.empty([32, 32], dtype=getattr(t.ttnn, dtype), layout=t.ttnn.TILE_LAYOUT, device=t.device)
        for value in t.shadow.values(made):
            assert bool((value == number).all()), (dtype, value.unique())


def specifications(t: Env) -> None:
    """A copy on the host keeps dtype, layout, tile, memory configuration and distribution."""
    ttnn = t.ttnn
    a = ttnn.to_memory_config(t.put(t.rand(60, 64)), ttnn.L1_MEMORY_CONFIG)
    for part in ttnn.get_device_tensors(a):
        assert part.cpu().spec == ttnn.from_device(part).spec == part.spec
    cut = t.put(t.rand(64, 128), (0, 1))
    assert str(cut.cpu().tensor_topology()) == str(cut.tensor_topology()) != str(a.tensor_topology())


def printed(t: Env) -> None:
    part = t.ttnn.get_device_tensors(t.put(torch.full((32, 32), 2.5)))[0]
    assert "2.5" in repr(part) and "2.5" in str(part)


def files(t: Env) -> None:
    """A dump of a device tensor holds its values; a load, and a cache of ``as_tensor``, give them back."""
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 128)
    mapper = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(2, 3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "doubled.tensorbin"
        ttnn.dump_tensor(path, ttnn.add(t.put(x), t.put(x)))
        t.check(ttnn.load_tensor(path, device=t.device), x * 2)
        assert ttnn.to_torch(ttnn.get_device_tensors(ttnn.load_tensor(path))[0]).float().equal(x * 2)
        for _ in ("written", "read"):
            cached = ttnn.as_tensor(
                x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device, mesh_mapper=mapper,
                memory_config=ttnn.DRAM_MEMORY_CONFIG, cache_file_name=Path(folder) / "weight",
            )  # fmt: skip
            t.check(cached, t.shards(x, (2, 3)))


def files_of_overlapped_tensors(t: Env) -> None:
    """Views of one buffer: the file holds its values, and a load puts them on the devices."""
    ttnn, packed = t.ttnn, torch.arange(2 * 512, dtype=torch.int32).reshape(1, 1024)
    cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))])
    fused = ttnn.from_torch(packed, dtype=ttnn.uint32, device=t.device, layout=ttnn.ROW_MAJOR_LAYOUT)
    views = {
        name: ttnn.OverlappedTensor(fused, [32, 32], [32, 16], cores, ttnn.bfloat16, [32, 32], offset, 1024)
        for name, offset in {"first": 0, "second": 1024}.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        file, other = (str(Path(folder) / f"{name}.overlappedtensorbin") for name in ("views", "others"))
        ttnn._ttnn.tensor.dump_overlapped_tensors(file, views)
        on_host = ttnn._ttnn.tensor.load_overlapped_tensors(file)["second"]
        assert on_host.byte_offset == 1024
        assert ttnn.to_torch(ttnn.get_device_tensors(on_host.fused_tensor)[0]).int().equal(packed)
        on_devices = ttnn._ttnn.tensor.load_overlapped_tensors(file, device=t.device)
        t.check(on_devices["first"].fused_tensor, packed)
        ttnn._ttnn.tensor.dump_overlapped_tensors(other, {"of the host": on_host})  # which still maps its own file
        again = ttnn._ttnn.tensor.load_overlapped_tensors(other, device=t.device)["of the host"]
        t.check(again.fused_tensor, packed)
        fields = ("tensor_shape", "shard_shape", "dtype", "tile_shape", "byte_offset", "total_size")
        assert [getattr(again, name) for name in fields] == [getattr(views["second"], name) for name in fields]


def values_while_a_graph_is_captured_without_dispatch(t: Env) -> None:
    """All buffers have the address 0 then, and still hold values of their own."""
    ttnn, x, y = t.ttnn, t.rand(32, 64), t.rand(32, 64)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    try:
        first, second = t.put(x), t.put(y)
        assert first.buffer_address() == second.buffer_address() == 0
        t.check(ttnn.add(first, second), x + y)
    finally:
        ttnn.graph.end_graph_capture()


def copies_to_the_host(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 128)
    a = t.put(x, (2, 3))
    host = ttnn.allocate_tensor_on_host(a.spec, t.device)
    ttnn.copy_device_to_host_tensor(a, host)
    composer = ttnn.ConcatMesh2dToTensor(t.device, mesh_shape=t.shape, dims=(2, 3))
    assert ttnn.to_torch(host, mesh_composer=composer).float().equal(x)


def parts_of_a_mesh(t: Env) -> None:
    """Single-device tensors joined again, and a host tensor spread over the mesh."""
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 128)
    a = t.put(x, (2, 3))
    t.check(ttnn.combine_device_tensors(tensors=ttnn.get_device_tensors(a)), t.shards(x, (2, 3)))
    joined = ttnn.aggregate_tensor(a, ttnn.concat_mesh_to_tensor_composer(t.device, 0))
    assert ttnn.to_torch(joined).float().equal(torch.cat(t.shards(x, (2, 3))))
    host = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    spread = ttnn.distribute_tensor(host, ttnn.ShardTensorToMesh(t.device, dim=3), t.device)
    t.check(spread, list(x.chunk(t.n, 3)))


def buffers(t: Env) -> None:
    ttnn = t.ttnn
    out = ttnn.from_buffer([1, 2, 3, 4, 5, 6], shape=[2, 3], dtype=ttnn.int32, device=t.device)
    t.check(out, torch.tensor([[1, 2, 3], [4, 5, 6]]))


CASES = collect(globals())
