"""Calls of forms that no property draws and no model makes: each against its definition written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import each, spread

SIZE, BLOCK = 64, 32
RING = "ttnn.transformer.ring_joint_scaled_dot_product_attention"
PAGES = torch.tensor([[3, 0], [1, 2]])
"""Blocks of 32 tokens, two for each of two users, out of order."""


def cache_of_some_devices(t: Env) -> None:
    """Devices that are not among the coordinates keep what they have."""
    ttnn = t.ttnn
    cache, token = t.rand(2, 1, 64, SIZE), t.rand(1, 2, 1, SIZE)
    on_mesh = t.put(cache)
    chosen = {ttnn.MeshCoordinate(0, 1), ttnn.MeshCoordinate(1, t.shape[1] - 1)}
    ttnn.experimental.paged_update_cache(on_mesh, t.token(token), update_idxs=[5, 33], mesh_coords=chosen)
    written = cache.clone()
    written[0, :, 5] = token[0, 0]
    written[1, :, 33] = token[0, 1]
    assert t.shadow.emulated == {"ttnn.experimental.paged_update_cache(mesh_coords=)": 1}
    everywhere = {ttnn.MeshCoordinate(r, c) for r in range(t.shape[0]) for c in range(t.shape[1])}
    whole = t.put(cache)
    ttnn.experimental.paged_update_cache(whole, t.token(token), update_idxs=[5, 33], mesh_coords=everywhere)
    t.check(whole, written)
    assert sum(t.shadow.emulated.values()) == 1  # nothing takes the place of a call on all devices
    places = {1, 2 * t.shape[1] - 1}
    t.check(on_mesh, [written if rank in places else cache for rank in range(t.n)])


def prompt_of_a_user_that_is_left_out(t: Env) -> None:
    """A user of number -1 writes nothing."""
    pile, new = t.rand(4, 1, BLOCK, SIZE), t.rand(2, 1, BLOCK, SIZE)
    on_mesh = t.put(pile)
    t.ttnn.experimental.paged_fill_cache(
        on_mesh, t.put(new), t.integers(F.pad(PAGES, (0, 6), value=-1)),
        batch_idx_tensor=t.integers(torch.tensor([1, -1])),
    )  # fmt: skip
    wanted = pile.clone()
    wanted[1] = new[0]
    t.check(on_mesh, wanted)


def decoding_from_blocks_of_another_geometry(t: Env) -> None:
    """A pile of blocks [4, 2, 32, 64] read as blocks of one head and 64 tokens."""
    ttnn = t.ttnn
    table, at = torch.tensor([[2, 0], [3, 1]]), [90, 70]
    (q, qs), (k, ks), (v, vs) = spread(t, 1, 2, 8, SIZE), spread(t, 4, 2, BLOCK, SIZE), spread(t, 4, 2, BLOCK, SIZE)
    out = ttnn.transformer.paged_scaled_dot_product_attention_decode(
        q, k, v, t.integers(table), cur_pos_tensor=t.integers(torch.tensor(at)),
        paged_cache_geometry=ttnn.PagedCacheGeometryOverride(num_kv_heads=1, block_size=2 * BLOCK),
        program_config=t.sdpa_config(),
    )  # fmt: skip

    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = []
        for user, last in enumerate(at):
            keys, values = (x.reshape(4, 2 * BLOCK, SIZE)[table[user]].flatten(0, 1)[: last + 1] for x in (k, v))
            scores = q[0, user] @ keys.T / math.sqrt(SIZE)
            rows.append(scores.softmax(-1) @ values)
        return torch.stack(rows)[None]

    t.check(out, each(expected, qs, ks, vs), ulps=2)


def sum_over_the_axis_of_a_position(t: Env) -> None:
    """The overload of the asynchronous all-reduce that takes axis and mesh by position."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 64, 256)
    out = ttnn.experimental.all_reduce_async(
        x, 1, t.device, t.semaphores(2), t.semaphores(3), t.semaphores(2), ttnn.ReduceType.Sum, num_links=1,
        topology=t.linear,
    )  # fmt: skip
    wanted = [None] * t.n
    for group in t.groups(1):
        for rank in group:
            wanted[rank] = sum(parts[other] for other in group)
    t.check(out, wanted, ulps=2)


def prelu_with_a_list(t: Env) -> None:
    x, parts = spread(t, 1, 4, 33, 50)
    t.check(t.ttnn.prelu(x, [0.25]), each(lambda x: torch.where(x < 0, 0.25 * x, x), parts))


def squeezed_of_all_ones(t: Env) -> None:
    x, parts = spread(t, 1, 3, 1, 50)
    t.check(t.ttnn.squeeze(x), each(lambda x: x.squeeze(), parts))


def product_of_nothing(t: Env) -> None:
    """No rows: nothing is computed and nothing activated."""
    out = t.ttnn.linear(t.put(torch.zeros(1, 1, 0, 64)), t.put(t.rand(64, 96)), activation="relu")
    assert tuple(out.shape) == (1, 1, 0, 96)
    t.check(out, torch.zeros(1, 1, 0, 96))


def product_over_several_dims(t: Env) -> None:
    x, parts = spread(t, 2, 3, 32, 32)
    out = t.empty(1, 1, 32, 32)
    t.ttnn.prod(x, out, dims=[0, 1])
    t.check(out, each(lambda x: x.prod(0, keepdim=True).prod(1, keepdim=True), parts), ulps=4)


def product_with_what_is_no_number(t: Env) -> None:
    """NaN in a row of one operand makes that row NaN, and nothing else."""
    a, b = t.rand(1, 1, 64, 64), t.rand(64, 96)
    a[0, 0, 5, 7] = math.nan
    wanted = a @ b
    assert wanted[0, 0, 5].isnan().all() and wanted.isnan().sum() == 96
    t.check(t.ttnn.matmul(t.put(a), t.put(b)), wanted)


def views_of_a_tensor(t: Env) -> None:
    x, parts = spread(t, 1, 2, 64, 64)
    t.check(t.ttnn.experimental.view(x, (1, 1, 128, 64)), each(lambda x: x.reshape(1, 1, 128, 64), parts))


def places_and_running_sums(t: Env) -> None:
    """A place among all keeps dims of one; running sums of integers have digits that a float32 has not."""
    ttnn, x = t.ttnn, t.rand(2, 3, 32, 32).abs() + 0.5
    x = x.bfloat16().float()
    place = ttnn.argmax(t.put(x, layout="ROW_MAJOR"), keepdim=True)
    assert tuple(place.shape) == (1, 1, 1, 1)
    t.check(place, x.argmax().reshape(1, 1, 1, 1))
    steps = torch.ones(1, 1, 32, 32)
    steps[..., 0] = 2.0**24
    out = ttnn.cumsum(t.put(steps, dtype="float32"), dim=-1, dtype=ttnn.int32)
    t.check(out, steps.long().cumsum(-1))


def near_by_the_second_operand(t: Env) -> None:
    """The relative tolerance is of the second operand."""
    ten, eleven = (t.put(torch.full((1, 1, 32, 32), number)) for number in (10.0, 11.0))
    for pair, near in (((ten, eleven), 1.0), ((eleven, ten), 0.0)):
        t.check(t.ttnn.isclose(*pair, rtol=0.095), torch.full((1, 1, 32, 32), near))


def dims_that_go_and_shapes_by_name(t: Env) -> None:
    """Where rows have to move for it, too: one dim, several, and a shape that is told by keyword."""
    ttnn, x, y = t.ttnn, t.rand(2, 40, 1, 48), t.rand(1, 40, 1, 48)
    t.check(ttnn.squeeze(t.put(x), 2), x.squeeze(2), ulps=0)
    t.check(ttnn.squeeze(t.put(y), [0, 2]), y[0, :, 0], ulps=0)
    t.check(ttnn.reshape(input_tensor=t.put(y), shape=(1, 1, 48, 40)), y.reshape(1, 1, 48, 40), ulps=0)
    far = torch.tensor([[100.0, -100.0, 88.5, 3.0]])  # as far as the device goes
    t.check(ttnn.i1(t.put(far)), torch.special.i1(far.clamp(-88.5, 88.5)))


def number_of_no_dims(t: Env) -> None:
    x = t.put(torch.tensor(2.5))
    t.check(t.ttnn.max(x), torch.tensor(2.5))


def operands_by_their_keywords(t: Env) -> None:
    """Overloads call the same operand by several names."""
    ttnn, x, y, z = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64), t.rand(1, 2, 64, 64)
    a, b = t.put(x), t.put(y)
    for out, wanted in (
        (ttnn.pow(input_tensor=a, exponent=2), x**2),
        (ttnn.rsub(input_tensor_a=a, input_b=2.0), 2 - x),
        (ttnn.prelu(input_tensor_a=a, weight=0.5), torch.where(x < 0, 0.5 * x, x)),
        (ttnn.mac(input_tensor_a=a, value1=2.0, value2=3.0), 2 * x + 3),
        (ttnn.mac(input_tensor_a=a, value=2.0, input_tensor_c=b), 2 * x + y),
        (ttnn.mac(input_tensor_a=a, input_tensor_b=b, value=2.0), x * y + 2),
        (ttnn.experimental.view(t.put(z), 1, 1, 128, 64), z.reshape(1, 1, 128, 64)),
        (ttnn.add_(input_tensor_a=t.put(x), input_tensor_b=b), x + y),
    ):
        t.check(out, wanted, ulps=2)
    counts = t.put(torch.tensor([[3, -1, 5, 7]], dtype=torch.int32), dtype="int32", layout="ROW_MAJOR")
    ttnn.plus_one(counts, None, True)
    t.check(counts, torch.tensor([[4, -1, 6, 8]]))
    (gradient,) = ttnn.mul_bw(b, a, scalar=3.0)
    t.check(gradient, 3 * y, ulps=2)


def padding_goes_along(t: Env) -> None:
    """Padding is turned with rows and columns; a tensor that begins new tiles has zeros there."""
    ttnn = t.ttnn
    filled = ttnn.fill_implicit_tile_padding(t.put(t.rand(1, 1, 50, 50)), 7.0)
    turned = t.shadow.store.fills(ttnn.transpose(filled, 2, 3))
    assert (turned.rows, turned.columns) == (7.0, 7.0)
    wide = ttnn.transpose(ttnn.fill_implicit_tile_padding(t.put(t.rand(1, 50, 4, 64)), 7.0), 1, 2)
    fills = t.shadow.store.fills(wide)
    assert (fills.rows, fills.columns) == (0.0, 0.0)
    for options, left in (({}, 0.0), ({"pad_value": 5.0}, 5.0), ({"skip_padding_fill": True}, None)):
        fills = t.shadow.store.fills(ttnn.reshape(t.put(t.rand(1, 1, 40, 48)), (1, 1, 48, 40), **options))
        assert (fills.rows, fills.columns) == (left, left), options


def padding_that_operations_leave(t: Env) -> None:
    """What each makes of the numbers beyond the shape of its operands, below and on the right; None if nobody knows."""
    ttnn = t.ttnn
    value = t.rand(1, 1, 50, 50)
    sevens, zeros, twos = (ttnn.fill_implicit_tile_padding(t.put(value), fill) for fill in (7.0, 0.0, 2.0))
    unknown = ttnn.slice(t.put(t.rand(1, 1, 50, 64)), [0, 0, 0, 0], [1, 1, 50, 50])
    row = ttnn.fill_implicit_tile_padding(t.put(t.rand(1, 1, 1, 50)), 3.0)
    weight, heavy = t.put(t.rand(1, 1, 1, 50)), ttnn.add(t.put(t.rand(1, 1, 1, 50)), 1.0)
    wide = t.put(t.rand(1, 1, 50, 64))
    half = ttnn.matmul(zeros, sevens)  # rows of zeros, columns of nobody
    for number, (out, rows, columns) in enumerate((
        (ttnn.clone(sevens), 7.0, 7.0),
        (ttnn.squeeze(sevens, 0), 7.0, 7.0),
        (ttnn.to_memory_config(sevens, ttnn.L1_MEMORY_CONFIG), 7.0, 7.0),
        (ttnn.add(sevens, 1.0), 8.0, 8.0),
        (ttnn.add(1.0, sevens), 8.0, 8.0),
        (ttnn.multiply(sevens, twos), 14.0, 14.0),
        (ttnn.subtract(twos, sevens), -5.0, -5.0),
        (ttnn.where(zeros, sevens, twos), 2.0, 2.0),
        (ttnn.typecast(sevens, ttnn.float32), 7.0, 7.0),
        (ttnn.add(sevens, unknown), None, None),
        (ttnn.multiply(zeros, unknown), 0.0, 0.0),
        (ttnn.multiply(twos, unknown), None, None),
        (ttnn.add(sevens, row), None, 10.0),  # the row is repeated, and what lies below it is not
        (ttnn.tril(sevens), None, None),
        (half, 0.0, None),
        (ttnn.transpose(half, 2, 3), None, 0.0),
        (ttnn.transpose(half, -1, -2), None, 0.0),
        (ttnn.add(half, 1.0), 1.0, None),
        (ttnn.matmul(sevens, zeros), None, 0.0),
        (ttnn.matmul(zeros, zeros), 0.0, 0.0),
        (ttnn.matmul(half, half, transpose_a=True), None, None),
        (ttnn.matmul(half, half, transpose_b=True), 0.0, 0.0),
        (ttnn.linear(zeros, zeros, bias=weight), None, None),
        (ttnn.linear(zeros, zeros, activation="gelu"), None, None),
        (ttnn.softmax(sevens), None, 0.0),
        (ttnn.softmax(sevens, -1), None, 0.0),
        (ttnn.softmax(sevens, dim=3), None, 0.0),
        (ttnn.softmax(sevens, 2), None, None),
        (ttnn.softmax(sevens, dim=-2), None, None),
        (ttnn.softmax_in_place(ttnn.clone(sevens)), None, 0.0),
        (ttnn.softmax_in_place(ttnn.clone(sevens), dim=-1), None, 0.0),
        (ttnn.layer_norm(sevens, weight=weight), None, 0.0),
        (ttnn.layer_norm(sevens, weight=weight, bias=weight), None, 0.0),
        (ttnn.layer_norm(sevens, weight=weight, bias=heavy), None, None),
        (ttnn.rms_norm(sevens, weight=heavy), None, None),
        (ttnn.rms_norm(sevens), None, None),
        (ttnn.permute(zeros, (0, 1, 3, 2)), 0.0, 0.0),
        (ttnn.sum(wide, dim=-1, keepdim=True), None, None),
    )):  # fmt: skip
        fills = t.shadow.store.fills(out)
        assert (fills.rows, fills.columns) == (rows, columns), (number, fills)


def images_and_rings_with_numerics(t: Env) -> None:
    """Rounded as kernels do, a convolution and a ring are near what they are without, and not the same."""
    from tests.tt_impl.cases.values import attention, conv
    from tt_impl.mock.numerics import Numerics

    for case, op in ((conv.conv2d, "ttnn.conv2d"), (attention.ring_without_joint, RING)):
        t.shadow.numerics = Numerics("fast")
        with _near(t, 2.0**-4):
            case(t)
        assert t.shadow.numerics.rounded[op]


@contextmanager
def _near(t: Env, limit: float) -> Iterator[None]:
    """Let checks pass within ``limit`` of the largest value, and note that nothing is exact."""
    original = t.check

    def check(tensor: Any, expected: Any, ulps: float = 1.0) -> None:
        wanted = [expected] * t.n if isinstance(expected, Tensor) else expected
        for value, want in zip(t.shadow.values(tensor), wanted, strict=True):
            assert 0 < (value - want).abs().max() <= limit * want.abs().max() or bool(want.isnan().all())

    t.check = check
    try:
        yield
    finally:
        t.check = original


def norm_of_groups_in_shards(t: Env) -> None:
    """Channels of a core that fill no whole sticks: its weights begin at a new one."""
    ttnn, rows, channels, groups = t.ttnn, 64, 96, 6
    x, w, b = t.rand(1, 1, rows, channels), t.rand(channels), t.rand(channels)
    out, wanted = _sharded_norm(t, x, groups, w, b, ttnn.CoreGrid(x=2, y=2))
    t.check(out, wanted, ulps=2)
    x, w, b = t.rand(1, 1, rows, 80), t.rand(80), t.rand(80)
    out, wanted = _sharded_norm(t, x, 4, w, b, ttnn.CoreGrid(x=2, y=2))
    t.check(out, wanted, ulps=2)


def _sharded_norm(t: Env, x: Tensor, groups: int, w: Tensor, b: Tensor, grid: Any) -> tuple[Any, Tensor]:
    ttnn = t.ttnn
    rows, channels = x.shape[2:]
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid.x - 1, grid.y - 1))})
    shape = rows // grid.y, channels // grid.x
    spec = ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.BLOCK_SHARDED, ttnn.BufferType.L1, spec)
    on_mesh = ttnn.to_memory_config(t.put(x, layout="ROW_MAJOR"), config)
    packed = [ttnn.create_group_norm_weight_bias_rm(values, channels, grid.x) for values in (w, b)]
    mask = ttnn.create_group_norm_input_mask(channels, groups, grid.x, ttnn.bfloat16)
    weight, bias = (t.put(values, layout="ROW_MAJOR") for values in packed)
    out = ttnn.group_norm(
        on_mesh, num_groups=groups, epsilon=1e-5, input_mask=ttnn.to_device(mask, t.device), weight=weight, bias=bias,
        memory_config=config, core_grid=grid,
    )  # fmt: skip
    return out, F.group_norm(x.squeeze(1).mT, groups, w, b, 1e-5).mT.unsqueeze(1)


CASES = collect(globals())
