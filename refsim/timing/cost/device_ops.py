"""Price a device operation of ttnn by its name and its tensors, whoever called it; what cannot be priced says why.

The name is ttnn's own, as profilers and captures of its graph have it (``MatmulDeviceOperation``). An operation whose
class is known but that has no formula of its own is priced as its class, and that is said (``Priced.measured``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from refsim.base.mesh import Topology
from refsim.timing.cost import ops
from refsim.timing.cost.chips import Chip, get_chip
from refsim.timing.cost.fabric import Fabric
from refsim.timing.cost.fitted import get_params
from refsim.timing.cost.matmul import MatmulConfig, matmul
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.fit import measured
from refsim.timing.fit.measured import Sample
from refsim.timing.read.op_names import OpName, op_name, plain
from refsim.timing.read.tensors import BYTES, Tensor_


class Unpriced(Exception):
    """The model has no price for an operation; the text says why."""


@dataclass(frozen=True)
class Wires:
    """What a collective runs on: ``size`` devices of a mesh axis (0: nobody says), links per hop, Ring or Linear, a
    Galaxy or not.
    """

    size: int = 1
    links: int = 1
    ring: bool = False
    galaxy: bool = False


@dataclass(frozen=True)
class DeviceOp:
    """One device operation; tensors of four dims, tile padding included, on one device."""

    name: str
    arch: str
    cores: int
    fidelity: str
    inputs: tuple[Tensor_, ...]
    outputs: tuple[Tensor_, ...]
    attributes: str = ""
    wires: Wires = field(default_factory=Wires)
    causal: bool = False


@dataclass(frozen=True)
class Priced:
    """``ns`` on the device; ``measured``: predictions of this operation have been compared with measurements."""

    ns: float
    kind: str
    bound: str
    measured: bool


def price(op: DeviceOp, params: ops.Params | None = None) -> Priced:
    """Return the predicted time of an operation.

    Args:
        params: those of another calibration than the stored one.

    Raises:
        Unpriced: the model has no formula for it, or not for these arguments.
    """
    chip, params = get_chip(op.arch, galaxy=op.wires.galaxy), params or get_params(op.arch)
    known = op_name(op.name)
    if known is None:
        raise Unpriced("no formula")
    if not op.inputs or not op.outputs or any(t.numel == 0 for t in op.inputs[:1]):
        raise Unpriced("it has no tensor to read or to write")
    if strange := [t.dtype for t in (*op.inputs, *op.outputs) if t.dtype not in BYTES]:
        raise Unpriced(f"no size of dtype '{strange[0]}'")
    if known.kind == "collective":
        return Priced(_collective(chip, op, known.code), "collective", "fabric", known.compared)
    if known.kind == "sdpa":
        return _attention(chip, params, op, known)
    if known.code.startswith("AllGather"):
        return _gathered_matmul(chip, params, op)
    if known.kind in ("matmul", "conv") and len(op.inputs) < 2:
        raise Unpriced("a product of one operand")
    sample = Sample(
        "", op.arch, _code(op, known), 0.0, 1, op.cores or chip.num_cores, op.fidelity or "HiFi4", op.inputs,
        _written(op, known.kind), attributes=op.attributes.replace(",", ";"),
        **(_minimal(chip, op) if known.code == "MinimalMatmulOp" else {}),
    )  # fmt: skip
    try:
        cost = measured.predict(chip, params, sample)
    except measured.Unsaid as missing:
        raise Unpriced(f"{known.kind} whose attributes do not say {missing}") from missing
    return Priced(cost.ns, known.kind, cost.bound, known.compared)


def _code(op: DeviceOp, known: OpName) -> str:
    """What the formula is told; an operation that is priced like another one keeps a name with a term of its own."""
    return "RotaryEmbedding" if plain(op.name).startswith("rotaryembedding") else known.code


def _written(op: DeviceOp, kind: str) -> Tensor_:
    """The result; several ones of a layout operation (heads of q, k and v) as one."""
    if kind != "layout" or len(op.outputs) == 1:
        return op.outputs[-1]
    return replace(op.outputs[0], shape=(1, 1, 1, sum(t.numel for t in op.outputs)))


def _minimal(chip: Chip, op: DeviceOp) -> dict[str, tuple[int, ...]]:
    """Blocks and grid of minimal_matmul: those it was told, or else its own, the longer side of M and N on the
    longer side of the chip's cores.
    """
    m, n = math.prod(op.inputs[0].shape[:-1]), op.inputs[1].shape[3]
    grid = re.search(r"compute_with_storage_grid_size=\(?(?:x=)?(\d+)[-,;]\s*(?:y=)?(\d+)", op.attributes)
    cores = (int(grid[1]), int(grid[2])) if grid else chip.cores
    blocks = re.search(r"M_block_size=(\d+)[,;]\s*K_block_size=(\d+)[,;]\s*N_block_size=(\d+)", op.attributes)
    block = tuple(int(size) for size in blocks.groups()) if blocks else (8, 8, 8)
    return {"grid": cores if m > n else cores[::-1], "block": block}


def _fabric(chip: Chip, op: DeviceOp) -> Fabric:
    return Fabric(chip, op.wires.size, op.wires.links, Topology.RING if op.wires.ring else Topology.LINEAR)


def _collective(chip: Chip, op: DeviceOp, name: str) -> float:
    if not op.wires.size:
        raise Unpriced("a collective of nobody knows how many devices")
    brought = op.inputs if plain(op.name).startswith("ringattention") else op.inputs[:1]
    return _fabric(chip, op).collective_ns(name, sum(t.nbytes for t in brought))


def _attention(chip: Chip, params: ops.Params, op: DeviceOp, known: OpName) -> Priced:
    chunks = re.search(r"q_chunk_size=(\d+)[,;]\s*k_chunk_size=(\d+)", op.attributes)
    if chunks is None:
        raise Unpriced("attention without chunk sizes")
    if len(op.inputs) < 3:
        raise Unpriced("attention without keys and values")
    (batch, heads, rows, width), keys = op.inputs[0].shape, op.inputs[1].shape[2]
    grid = re.search(r"compute_with_storage_grid_size=\(x=(\d+);y=(\d+)\)", op.attributes)
    cores = min(op.cores or chip.num_cores, int(grid[1]) * int(grid[2])) if grid else op.cores or None
    causal = op.causal or "is_causal': 'true" in op.attributes
    k, v = op.inputs[1:3]
    config = SDPAConfig(op.fidelity or "HiFi2", cores, int(chunks[1]), int(chunks[2]), causal, v.shape[3], k.dtype)
    joint = _joint_rows(op) if "Joint" in known.code else 0
    if known.code != "RingJointSDPA":
        cost = sdpa(chip, params, batch, heads, rows + joint, keys + joint, width, config)
        return Priced(cost.ns, "sdpa", cost.bound, known.compared)
    if not op.wires.size:
        raise Unpriced("ring attention of nobody knows how many devices")
    # Cores hand the keys on in step: on the diagonal they skip chunks, but wait for the one that has the last rows.
    # ttnn names is_cross since June 2026; a ring that is causal without it had the kernel of before.
    serial = "is_causal': 'true" in op.attributes and "is_cross" not in op.attributes
    config = replace(config, causal=False, serial=serial)
    whole = sdpa(chip, params, batch, heads, rows + joint, keys, width, config)
    last = sdpa(chip, params, batch, heads, rows + joint, keys + joint, width, config)
    steps = [[*[whole] * (op.wires.size - 1), last]]
    if causal and "is_balanced': 'true" in op.attributes:  # each device has an early and a late part of the rows
        half = replace(whole, ns=(whole.ns - params.launch_ns) / 2 + params.launch_ns)
        steps = [[whole, *[half] * (op.wires.size - 1)]]
    elif causal:  # a device takes its own shard and those before it; the mean of all devices
        steps = [[whole] * (before + 1) for before in range(op.wires.size)]
    arrivals = (0.0, *_fabric(chip, op).arrivals(sum(t.nbytes for t in op.inputs[1:3])))
    ends = [_ring_ns(device, arrivals, params.launch_ns) for device in steps]
    late = any(there > sum(c.ns for c in steps[-1][:i]) for i, there in enumerate(arrivals))
    return Priced(sum(ends) / len(ends), "sdpa", "fabric" if late else whole.bound, known.compared)


def _joint_rows(op: DeviceOp) -> int:
    """Return the rows of the prompt, the fourth tensor; without a prompt that is the buffer of gathered keys."""
    if len(op.inputs) < 4 or op.inputs[3].shape[2] >= op.wires.size * op.inputs[1].shape[2] > op.inputs[1].shape[2]:
        return 0
    return op.inputs[3].shape[2]


def _ring_ns(steps: list[ops.Cost], arrivals: tuple[float, ...], launch_ns: float) -> float:
    """Return when the last step ends; a step starts when its shard is there, and the program is launched once."""
    now = 0.0
    for i, cost in enumerate(steps):
        now = max(now, arrivals[min(i, len(arrivals) - 1)]) + cost.ns - (launch_ns if i else 0.0)
    return now


def _gathered_matmul(chip: Chip, params: ops.Params, op: DeviceOp) -> Priced:
    """An all-gather of what a matmul takes, both at once: tt_dit's fused linear."""
    if len(op.inputs) < 2 or not op.wires.size:
        raise Unpriced("a fused gather and matmul without a weight or without a ring size")
    x, w = op.inputs[:2]
    m, k, n = x.numel // x.shape[3], w.shape[2], w.shape[3]
    grid = (chip.cores[0], chip.cores[1] - 1)  # the last row's cores gather
    alone = matmul(
        chip, params, m, k, n, MatmulConfig(op.fidelity or "HiFi2", (x.dtype, w.dtype, op.outputs[-1].dtype), grid)
    )
    fabric = _fabric(chip, op)
    ring = fabric.topology is Topology.RING
    took = fabric.fused_gather_ns(m, k, 8) if ring else fabric.collective_ns("all_gather", x.nbytes)
    ns = fabric.gathered_matmul_ns(alone.ns, took)
    return Priced(ns, "matmul", "fabric" if took > alone.ns else alone.bound, ring)


def profiled(path: Path, arch: str | None = None) -> list[tuple[DeviceOp, float]]:
    """Return the distinct operations of a profiler's CSV with their mean kernel time in ns."""
    from refsim.timing.read import profile

    return [(of_row(row), row.ns) for row in profile.distinct(profile.read(path, arch)).itertuples()]


def of_row(row: Any) -> DeviceOp:
    """Return the operation of a row of :func:`refsim.timing.read.profile.read`'s table.

    A collective whose file does not say its ring is as large as what it gathers is larger than what it is given, or of
    size 0; links that are not named are one.
    """
    text, known = row.attributes, op_name(row.op)
    found = {name: re.search(rf"'{name}': '(\d+)'", text) for name in ("ring_size", "num_links")}
    size, links = (int(m[1]) if m else 0 for m in found.values())
    if not size and known and known.code == "all_gather" and row.inputs and row.outputs:
        size = row.outputs[0].numel // max(row.inputs[0].numel, 1)
    wires = Wires(size, links or 1, "Topology::Ring" in text)
    return DeviceOp(row.op, row.arch, row.cores, row.fidelity, row.inputs, row.outputs, text, wires)
