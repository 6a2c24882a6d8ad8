"""Ring joint attention at the shapes of upstream's own tests (models/tt_dit/tests/unit/test_ring_joint_attention.py).

The operation runs with its published sizes, grids and chunks; values are computed, and judged on every device,
for a sample of its query rows: a row attends to all keys, and rows do not depend on each other.

Legend: B batch, H heads, N tokens of the whole, L joint tokens, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env

TILE = 32
SAMPLE = 8
SEED = 0


@dataclass(frozen=True)
class Shape:
    """Sizes as published: heads and tokens before they are filled up; Wan keeps a column of cores free, not a row."""

    heads: int
    n: int
    l: int
    size: int
    column: bool = False
    batch: int = 1


@dataclass(frozen=True)
class Setup:
    """Devices of the ring and across it, links, chunks of Q and K, and the published bounds of PCC and MSE."""

    ring: int
    across: int
    links: int
    chunks: tuple[int, int]
    pcc: float
    mse: float


SHAPES = {
    "wan_720p": Shape(40, 75600, 0, 128, column=True),
    "wan_480p": Shape(40, 32760, 0, 128, column=True),
    "mochi": Shape(24, 44520, 118, 128),
    "flux": Shape(24, 4096, 512, 128),
    "sd35": Shape(38, 4096, 333, 64),
}

SETUPS = {
    "t3k": {
        "wan_720p": Setup(2, 4, 1, (256, 256), 0.9994, 7.5e-5),
        "wan_480p": Setup(2, 4, 1, (256, 256), 0.9996, 5e-5),
        "mochi": Setup(2, 4, 1, (128, 512), 0.9995, 6e-5),
        "flux": Setup(2, 4, 1, (128, 512), 0.9997, 2.2e-5),
        "sd35": Setup(2, 2, 1, (256, 512), 0.9997, 3.5e-5),
    },
    "tg": {
        "wan_720p": Setup(8, 4, 4, (256, 256), 0.9993, 8e-5),
        "wan_480p": Setup(8, 4, 4, (128, 512), 0.9995, 6e-5),
        "mochi": Setup(8, 4, 4, (128, 512), 0.9994, 7e-5),
        "flux": Setup(8, 4, 4, (128, 256), 0.9997, 3e-5),
        "sd35": Setup(4, 4, 4, (256, 512), 0.9997, 4e-5),
    },
    "bh-qb": {
        "wan_720p": Setup(2, 2, 2, (128, 512), 0.9994, 7e-5),
        "wan_480p": Setup(2, 2, 2, (128, 512), 0.9996, 5e-5),
        "mochi": Setup(2, 2, 2, (128, 512), 0.9995, 6e-5),
        "flux": Setup(2, 2, 2, (128, 512), 0.9997, 2.2e-5),
        "sd35": Setup(2, 2, 2, (256, 512), 0.9997, 3.5e-5),
    },
    "bh-galaxy": {
        "wan_720p": Setup(8, 4, 2, (128, 512), 0.9993, 8e-5),
        "wan_480p": Setup(8, 4, 2, (256, 256), 0.9995, 6e-5),
        "mochi": Setup(8, 4, 2, (128, 512), 0.9994, 7e-5),
        "flux": Setup(8, 4, 2, (64, 512), 0.9997, 3e-5),
        "sd35": Setup(4, 4, 2, (128, 512), 0.9997, 4e-5),
    },
}

SWEEP = {
    "unaligned_chunk": Shape(24, 4224, 128, 128),
    "few_heads": Shape(2, 3072, 0, 128),
    "tiny_joint": Shape(2, 4000, 2, 128),
    "long": Shape(24, 8192, 0, 128),
    "long_unaligned": Shape(24, 8200, 64, 128),
    "mid": Shape(16, 1024, 256, 128),
    "mid_small_head": Shape(16, 1056, 128, 64),
    "wide_head": Shape(8, 2048, 0, 256),
    "mid_unaligned": Shape(8, 2176, 128, 128),
    "short": Shape(4, 512, 64, 128),
    "four_heads": Shape(4, 4096, 128, 128),
    "tiny": Shape(2, 256, 16, 64),
}
"""On T3K, four devices in the ring and two across."""
SWEPT = Setup(4, 2, 1, (64, 128), 0.994, math.inf)


def _values(t: Env, *shape: int) -> Tensor:
    """Upstream's inputs: normal, one in a thousand ten times as large; as bfloat16 holds them."""
    x = torch.empty(shape, dtype=torch.bfloat16).normal_(generator=t.random)
    where = torch.randint(max(x.numel(), 1), (x.numel() // 1000,), generator=t.random)
    x.view(-1)[where] += 10 * torch.randn(where.shape, generator=t.random).bfloat16()
    return x


def _on_submesh(t: Env, shape: tuple[int, int]) -> Env:
    if shape == t.shape:
        return t
    part = Env(t.mesh, t.shadow)
    part.device, part.shape = t.device.create_submesh(t.ttnn.MeshShape(*shape)), shape
    return part


def _rows(count: int) -> Tensor:
    """The sample among ``count`` rows of a device, the first and the last included; all if there are few."""
    if count <= SAMPLE:
        return torch.arange(count)
    inside = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + count))[: SAMPLE - 2]
    return torch.cat([torch.tensor([0, count - 1]), inside]).unique()


def _close(name: str, found: Tensor, wanted: Tensor, setup: Setup) -> None:
    """By the published bounds, and within what rounding to bfloat16 can do."""
    a, b = found - found.mean(), wanted - wanted.mean()
    pcc = F.cosine_similarity(a.flatten().double(), b.flatten().double(), 0).item()
    mse = (found - wanted).square().mean().item()
    assert pcc >= max(setup.pcc, 0.99999) and mse <= setup.mse, f"{name}: PCC {pcc}, MSE {mse}"


def run(t: Env, shape: Shape, setup: Setup) -> None:
    """Run the operation on the mesh and judge each device's rows, and each replica of the joint ones."""
    from tests.tt_impl.only_rows import only_rows

    ttnn = t.ttnn
    ring_axis = t.shape.index(setup.ring) if setup.ring in t.shape else 0
    sizes = (setup.ring, setup.across) if ring_axis == 0 else (setup.across, setup.ring)
    t = _on_submesh(t, sizes)
    heads = math.ceil(shape.heads / setup.across) * setup.across
    padded = math.ceil(shape.n / (TILE * setup.ring)) * TILE * setup.ring
    inputs = [_values(t, shape.batch, heads, shape.n, shape.size) for _ in range(3)]
    joint = [_values(t, shape.batch, heads, shape.l, shape.size) for _ in range(3)]
    cut, whole = ((2, 1), (None, 1)) if ring_axis == 0 else ((1, 2), (1, None))
    held = [t.put(F.pad(x, (0, 0, 0, padded - shape.n)), cut) for x in inputs]
    held += [t.put(x, whole) for x in joint]
    with only_rows(_rows):
        out, rear, _ = ttnn.transformer.ring_joint_scaled_dot_product_attention(
            *held, **_arguments(t, shape, setup, ring_axis, (heads // setup.across, padded))
        )
    _judge(t, setup, shape, (inputs, joint), (out, rear), ring_axis)


def _arguments(t: Env, shape: Shape, setup: Setup, ring_axis: int, local: tuple[int, int]) -> dict[str, Any]:
    ttnn, (x, y) = t.ttnn, t.mesh.grid
    heads, padded = local
    free = (x - 1, 0) if shape.column else (0, y - 1)
    return dict(
        persistent_output_buffer_k=t.empty(shape.batch, heads, padded, shape.size),
        persistent_output_buffer_v=t.empty(shape.batch, heads, padded, shape.size),
        joint_strategy="rear",
        logical_n=shape.n,
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(x - 1, y) if shape.column else (x, y - 1),
            q_chunk_size=setup.chunks[0],
            k_chunk_size=setup.chunks[1],
            exp_approx_mode=False,
        ),
        dim=2,
        multi_device_global_semaphore=t.semaphores(2),
        num_links=setup.links,
        cluster_axis=ring_axis,
        mesh_device=t.device,
        topology=t.linear,
        subdevice_id=ttnn.SubDeviceId(0),
        ccl_core_grid_offset=ttnn.CoreCoord(*free),
        use_column_major_ccl=shape.column,
    )


def _judge(
    t: Env,
    setup: Setup,
    shape: Shape,
    given: tuple[list[Tensor], list[Tensor]],
    found: tuple[Any, Any],
    ring_axis: int,
) -> None:
    """Every device's sampled rows against torch on all keys of its heads."""
    (q, k, v), (joint_q, joint_k, joint_v) = given
    out, rear = (t.shadow.values(x) for x in found)
    rows = out[0].shape[2]
    for place in range(setup.across):
        heads = slice(place * out[0].shape[1], (place + 1) * out[0].shape[1])
        keys, values = (torch.cat([x[:, heads], y[:, heads]], 2).float() for x, y in ((k, joint_k), (v, joint_v)))
        for step in range(setup.ring):
            device = step * t.shape[1] + place if ring_axis == 0 else place * t.shape[1] + step
            local = _rows(rows)
            local = local[local + step * rows < shape.n]
            wanted = F.scaled_dot_product_attention(q[:, heads, local + step * rows].float(), keys, values)
            _close(f"device {device}", out[device][:, :, local], wanted, setup)
            if shape.l:
                some = _rows(shape.l)
                wanted = F.scaled_dot_product_attention(joint_q[:, heads, some].float(), keys, values)
                _close(f"device {device}, joint rows", rear[device][:, :, some], wanted, setup)


def _case(shape: Shape, setup: Setup) -> Callable[[Env], None]:
    return lambda t: run(t, shape, setup)


CASES = {
    f"{mesh}_{name}": _case(SHAPES[name], setup) for mesh, setups in SETUPS.items() for name, setup in setups.items()
} | {f"t3k_{name}": _case(shape, SWEPT) for name, shape in SWEEP.items()}
