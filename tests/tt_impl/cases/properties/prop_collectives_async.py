"""Properties of collectives with semaphores and buffers: every overload, both axes, other values on every device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.cases.properties.prop_collectives import _over
from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, only, spread

AXES, SOME = st.sampled_from([0, 1]), st.booleans()
SHAPES = st.sampled_from([(1, 1, 32, 64), (2, 3, 64, 32)])
HALO = st.sampled_from([(1, 1), (2, 1), (0, 2), (1, 0)])
MODES = st.sampled_from(["zeros", "replicate"])


def _like(t: Env, x: Any, shape: Any) -> Any:
    return t.ttnn.zeros(tuple(shape), dtype=x.dtype, layout=x.layout, device=t.device)


@drawn(8, shape=SHAPES, axis=AXES, dim=st.sampled_from([1, 2, 3, -1]), dtype=st.sampled_from(["bfloat16", "float32"]),
       how=st.sampled_from(["buffer", "none", "mesh"]))  # fmt: skip
def gathers(t: Env, shape: tuple, axis: int, dim: int, dtype: str, how: str) -> None:
    """Into a buffer of the caller's, which is the result then, or into a new one."""
    gather, pair = t.ttnn.experimental.all_gather_async, t.semaphores(2)
    x, parts = spread(t, *shape, dtype=dtype)
    wanted = _over(t, axis, parts, lambda group, _: torch.cat(group, dim))
    common: dict[str, Any] = dict(num_links=1, barrier_semaphore=t.semaphores(1)[0])
    if how == "mesh":
        out = gather(x, dim, axis, t.device, t.linear, pair, **common)
    else:
        buffer = _like(t, x, wanted[0].shape) if how == "buffer" else None
        out = gather(x, buffer, dim, pair, topology=t.linear, cluster_axis=axis, **common)
        if how == "buffer":
            t.check(buffer, wanted, ulps=0)
    t.check(out, wanted, ulps=0)


@drawn(8, axis=AXES, dim=st.sampled_from([1, 2, 3, -1]), buffered=SOME, batch=st.sampled_from([1, 2]))
def scatters(t: Env, axis: int, dim: int, buffered: bool, batch: int) -> None:
    """The sum's part of each place; what the buffer between held, nobody may read."""
    x, parts = spread(t, batch, 4, 128, 128)
    wanted = _over(t, axis, parts, lambda group, place: sum(group).chunk(t.shape[axis], dim)[place])
    between = _like(t, x, (2, *parts[0].shape))
    buffers = [between, _like(t, x, wanted[0].shape)] if buffered else None
    out = t.ttnn.experimental.reduce_scatter_minimal_async(
        x, buffers, dim, t.semaphores(3), barrier_semaphore=t.semaphores(1)[0], num_links=1, topology=t.linear,
        cluster_axis=axis,
    )  # fmt: skip
    t.check(out, wanted, ulps=2)
    if buffers:
        t.check(buffers[1], wanted, ulps=2)
        assert all(value.isnan().all() for value in t.shadow.values(between))


@drawn(4, axis=AXES, dim=st.sampled_from([2, 3]), count=st.sampled_from([1, 2]), heads=st.sampled_from([1, 3]))
def gathers_of_several(t: Env, axis: int, dim: int, count: int, heads: int) -> None:
    """K and V of a ring, each into a buffer of its own."""
    tensors, parts = zip(*(spread(t, 1, heads, 64, 64) for _ in range(count)), strict=True)
    wanted = [_over(t, axis, part, lambda group, _: torch.cat(group, dim)) for part in parts]
    buffers = [_like(t, x, values[0].shape) for x, values in zip(tensors, wanted, strict=True)]
    outputs = t.ttnn.experimental.ring_attention_all_gather_async(
        list(tensors), buffers, dim, multi_device_global_semaphore=t.semaphores(2), num_links=1, cluster_axis=axis,
        mesh_device=t.device, topology=t.linear, subdevice_id=t.ttnn.SubDeviceId(0),
    )  # fmt: skip
    for out, buffer, values in zip(outputs, buffers, wanted, strict=True):
        t.check(out, values, ulps=0)
        t.check(buffer, values, ulps=0)


def _framed(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    """Zeros, or the first and the last row again."""
    first, last = x.narrow(dim, 0, 1), x.narrow(dim, x.shape[dim] - 1, 1)
    keep = 1.0 if mode == "replicate" else 0.0
    return torch.cat([first * keep] * before + [x] + [last * keep] * after, dim)


@drawn(8, axis=AXES, halo=HALO, mode=MODES, frames=st.sampled_from([1, 2]))
def borders_of_rows(t: Env, axis: int, halo: tuple[int, int], mode: str, frames: int) -> None:
    """Rows of the neighbours before and after; frames and channels stay."""
    x, parts = spread(t, 1, frames, 4, 6, 32)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    out = t.ttnn.experimental.neighbor_pad_async(
        x, [2], [halo[0]], [halo[1]], mode, [axis], t.semaphores(1), t.semaphores(1), num_links=[1], topology=t.linear
    )

    def padded(group: list[Tensor], place: int) -> Tensor:
        return _framed(torch.cat(group, 2), 2, *halo, mode).narrow(2, 4 * place, 4 + sum(halo))

    t.check(out, _over(t, axis, parts, padded), ulps=0)


@drawn(8, turned=SOME, down=HALO, across=HALO, mode=MODES, front=st.sampled_from([0, 0, 2]),
       missing=st.sampled_from([0, 0, 1, 5]))  # fmt: skip
def borders_with_corners(
    t: Env, turned: bool, down: tuple[int, int], across: tuple[int, int], mode: str, front: int, missing: int
) -> None:
    """Rows over one axis, columns over the other; the last rows may be no picture, and frames of zeros go before."""
    axes = (1, 0) if turned else (0, 1)
    rows, columns = 8, 6
    counts = t.shape[axes[0]], t.shape[axes[1]]
    x = t.rand(1, 2, rows * counts[0], columns * counts[1], 32)
    on_mesh = t.put(x, (3, 2) if turned else (2, 3), layout="ROW_MAJOR")
    logical = x.shape[2] - missing
    out = t.ttnn.experimental.neighbor_pad_async(
        on_mesh, [2, 3], [down[0], across[0]], [down[1], across[1]], mode, list(axes), t.semaphores(2),
        t.semaphores(1), num_links=[1, 1], topology=t.linear, logical_h=logical if missing else 0, t_front_pad=front,
    )  # fmt: skip
    around = _framed(_framed(x, 2, *down, mode), 3, *across, mode)
    wanted = []
    for device in range(t.n):
        place = divmod(device, t.shape[1])
        first = place[axes[0]] * rows, place[axes[1]] * columns
        part = around[:, :, first[0] : first[0] + rows + sum(down), first[1] : first[1] + columns + sum(across)].clone()
        own = part[:, :, down[0] : down[0] + rows]
        own[:, :, max(0, logical - first[0]) :] = 0.0
        wanted.append(F.pad(part, (0, 0) * 3 + (front, 0)))
    t.check(out, wanted, ulps=0)


@drawn(6, axis=AXES, first=st.integers(0, 6), kept=st.sampled_from([8, 16, 24]))
def frames_cut_anew(t: Env, axis: int, first: int, kept: int) -> None:
    """A stretch of all frames, in equal parts again."""
    size = 32 // t.shape[axis]
    x, parts = spread(t, size, 4, 4, 32)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    out = t.ttnn.experimental.slice_reshard_async(
        x, 0, first, kept, axis, t.semaphores(1)[0], t.semaphores(1)[0], num_links=1, topology=t.linear
    )
    wanted = _over(t, axis, parts, lambda g, place: torch.cat(g)[first : first + kept].chunk(len(g))[place])
    t.check(out, wanted, ulps=0)


@drawn(8, kernel=st.sampled_from([(1, 1, 1), (3, 3, 3), (2, 1, 3)]), stride=st.sampled_from([(1, 1, 1), (1, 2, 1)]),
       sides=st.sampled_from([(0, 0, 0), (0, 1, 1), (1, 0, 1)]), mode=MODES, block=st.sampled_from([32, 64]),
       groups=st.sampled_from([1, 2]))  # fmt: skip
def videos_convolved(t: Env, kernel: tuple, stride: tuple, sides: tuple, mode: str, block: int, groups: int) -> None:
    """Blocks of input channels change nothing; borders of zeros, or repeated."""
    only(groups == 1 or block == 32)
    ttnn = t.ttnn
    x, parts = spread(t, 1, 4, 5, 6, 64)
    x = ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)
    weight, bias = t.rand(64, 64 // groups, *kernel, scale=0.1), t.rand(64)
    prepared = ttnn.experimental.prepare_conv3d_weights(
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16), C_in_block=block, device=t.device, groups=groups
    )
    config = ttnn.Conv3dConfig(
        weights_dtype=ttnn.bfloat16, output_layout=ttnn.ROW_MAJOR_LAYOUT, C_in_block=block,
        compute_with_storage_grid_size=t.device.compute_with_storage_grid_size(),
    )  # fmt: skip
    out = ttnn.experimental.conv3d(
        input_tensor=x, weight_tensor=prepared, bias_tensor=t.put(bias[None]), device=t.device, config=config,
        dtype=ttnn.bfloat16, output_channels=64, kernel_size=kernel, stride=stride, padding=sides, padding_mode=mode,
        groups=groups,
    )  # fmt: skip

    def convolved(part: Tensor) -> Tensor:
        for dim, side in zip((1, 2, 3), sides, strict=True):
            part = _framed(part, dim, side, side, mode)
        return F.conv3d(part.movedim(-1, 1), weight, bias, stride, groups=groups).movedim(1, -1)

    t.check(out, [convolved(part) for part in parts], ulps=2)


CASES = collect(globals())
