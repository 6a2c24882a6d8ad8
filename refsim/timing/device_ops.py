"""Price a device operation of ttnn by its name and its tensors, whoever called it; what cannot be priced says why.

The name is ttnn's own, as profilers and captures of its graph have it (``MatmulDeviceOperation``). An operation whose
class is known but that has no formula of its own is priced as its class, and that is said (``Priced.measured``).
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from refsim.mesh import Topology
from refsim.timing import measured, ops
from refsim.timing.chips import Chip, get_chip
from refsim.timing.fabric import Fabric, fused_ns
from refsim.timing.fitted import get_params
from refsim.timing.matmul import MatmulConfig, matmul
from refsim.timing.measured import Sample, Tensor_

_AS: dict[str, dict[str, tuple[str, ...]]] = {
    "matmul": {
        "Matmul": ("MatmulDeviceOperation",),
        "MinimalMatmulOp": ("MinimalMatmulDeviceOperation", "MinimalMatmulSplitDeviceOperation"),
    },
    "norm": {
        "LayerNormDeviceOperation": (
            "LayerNormPreAllGatherDeviceOperation", "LayerNormPostAllGatherDeviceOperation",
            "FusedRMSNormPreAllGatherDeviceOperation", "FusedRMSNormPostAllGatherDeviceOperation",
            "PreAllGatherDeviceOperation", "PostAllGatherDeviceOperation",
        ),
        "SoftmaxDeviceOperation": (),
    },
    "elementwise": {
        "BinaryNgDeviceOperation": (
            "TernaryDeviceOperation", "RotaryEmbeddingLlamaDeviceOperation", "RotaryEmbeddingDeviceOperation",
        ),
        "UnaryDeviceOperation": (), "TypecastDeviceOperation": (), "BinaryDeviceOperation": (),
    },
    "layout": {
        "TilizeDeviceOperation": ("TilizeCodegenDeviceOperation",),
        "UntilizeDeviceOperation": ("UntilizeCodegenDeviceOperation",),
        "UntilizeWithUnpaddingDeviceOperation": (), "TilizeWithValPaddingDeviceOperation": (),
        "ReshapeDeviceOperation": ("ReshapeViewDeviceOperation",),
        "TransposeDeviceOperation": (
            "NlpCreateHeadsDeviceOperation", "NLPConcatHeadsDeviceOperation", "CreateQKVHeadsDeviceOperation",
            "ConcatenateHeadsDeviceOperation", "SplitFusedQKVAndSplitHeadsDeviceOperation",
            "CreateQKVHeadsSeparateTensorsDeviceOperation", "PadDeviceOperation",
        ),
        "CopyDeviceOperation": ("CloneOperation", "RepeatDeviceOperation"),
        "SliceDeviceOperation": ("SplitDeviceOperation", "MeshPartitionDeviceOperation"),
        "PermuteDeviceOperation": (), "ConcatDeviceOperation": (), "EmbeddingsDeviceOperation": (),
        "InterleavedToShardedDeviceOperation": (), "ShardedToInterleavedDeviceOperation": (),
        "ReshardDeviceOperation": (), "MoveDeviceOperation": (), "UpsampleOperation": (),
    },
}  # fmt: skip
"""By class: operations that the model has been compared with, and those that are priced like them."""
_CODES = {
    name: (kind, code, name == code or (kind == "matmul" and "Split" not in name))
    for kind, codes in _AS.items()
    for code, alike in codes.items()
    for name in (code, *alike)
}
_COLLECTIVES = {
    "AllGatherDeviceOperation": "all_gather",
    "AllGatherAsyncDeviceOperation": "all_gather",
    "RingAttentionAllGatherAsyncDeviceOperation": "all_gather",
    "ReduceScatterDeviceOperation": "reduce_scatter",
    "ReduceScatterMinimalAsyncDeviceOperation": "reduce_scatter",
    "AllReduceAsyncDeviceOperation": "all_reduce",
    "AllToAllAsyncDeviceOperation": "all_to_all",
    "AllToAllAsyncGenericDeviceOperation": "all_to_all",
}
_COMPARED = ("all_gather", "reduce_scatter")
"""Collectives that there are measurements of."""
_ATTENTION = ("SDPAOperation", "JointSDPADeviceOperation", "RingJointSDPADeviceOperation")
_GATHERED_MATMUL = ("AllGatherMinimalMatmulAsyncOp",)


class Unpriced(Exception):
    """The model has no price for an operation; the text says why."""


@dataclass(frozen=True)
class Wires:
    """What a collective runs on: ``size`` devices of a mesh axis, links per hop, Ring or Linear, a Galaxy or not."""

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


def price(op: DeviceOp) -> Priced:
    """Return the predicted time of an operation.

    Raises:
        Unpriced: the model has no formula for it, or not for these arguments.
    """
    chip, params = get_chip(op.arch, galaxy=op.wires.galaxy), get_params(op.arch)
    if not op.inputs or not op.outputs or any(t.numel == 0 for t in op.inputs[:1]):
        raise Unpriced("it has no tensor to read or to write")
    if op.name in _COLLECTIVES:
        return Priced(_collective(chip, op), "collective", "fabric", _COLLECTIVES[op.name] in _COMPARED)
    if op.name in _ATTENTION:
        return _attention(chip, params, op)
    if op.name in _GATHERED_MATMUL:
        return _gathered_matmul(chip, params, op)
    if op.name not in _CODES:
        raise Unpriced("no formula")
    kind, code, known = _CODES[op.name]
    cores = op.cores or chip.num_cores
    fidelity = op.fidelity or "HiFi4"
    sample = Sample(
        "", op.arch, code, 0.0, 1, cores, fidelity, op.inputs, _written(op, kind),
        attributes=op.attributes.replace(",", ";"), **(_minimal(chip, op) if code == "MinimalMatmulOp" else {}),
    )  # fmt: skip
    cost = measured.predict(chip, params, sample)
    return Priced(cost.ns, kind, cost.bound, known)


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


def _collective(chip: Chip, op: DeviceOp) -> float:
    name = _COLLECTIVES[op.name]
    brought = op.inputs if name == "all_gather" and op.name.startswith("RingAttention") else op.inputs[:1]
    return _fabric(chip, op).collective_ns(name, sum(t.nbytes for t in brought))


def _attention(chip: Chip, params: ops.Params, op: DeviceOp) -> Priced:
    if op.causal or "is_causal': 'true" in op.attributes:
        raise Unpriced("causal attention")
    (batch, heads, rows, width), keys = op.inputs[0].shape, op.inputs[1].shape[2]
    chunks = re.search(r"q_chunk_size=(\d+)[,;]\s*k_chunk_size=(\d+)", op.attributes)
    if chunks is None:
        raise Unpriced("attention without chunk sizes")
    q, k = (int(n) for n in chunks.groups())
    config = ops.SDPAConfig(op.fidelity or "HiFi2", op.cores or None, q, k)
    if op.name != "RingJointSDPADeviceOperation":
        joint = op.inputs[3].shape[2] if op.name.startswith("Joint") and len(op.inputs) > 3 else 0
        cost = ops.sdpa(chip, params, batch, heads, rows + joint, keys + joint, width, config)
        return Priced(cost.ns, "sdpa", cost.bound, False)
    joint = op.inputs[3].shape[2] if len(op.inputs) > 3 else 0
    arrivals = (0.0, *_fabric(chip, op).arrivals(sum(t.nbytes for t in op.inputs[1:3])))
    now, bound = 0.0, "compute"
    for step in range(op.wires.size):
        extra = joint if step == op.wires.size - 1 else 0
        cost = ops.sdpa(chip, params, batch, heads, rows + joint, keys + extra, width, config)
        there = arrivals[min(step, len(arrivals) - 1)]
        bound = "fabric" if there > now else bound
        now = max(now, there) + cost.ns - (params.launch_ns if step else 0.0)
    return Priced(now, "sdpa", bound, True)


def _gathered_matmul(chip: Chip, params: ops.Params, op: DeviceOp) -> Priced:
    """An all-gather of what a matmul takes, both at once: tt_dit's fused linear."""
    x, w = op.inputs[:2]
    m, k, n = x.numel // x.shape[3], w.shape[2], w.shape[3]
    grid = (chip.cores[0], chip.cores[1] - 1)  # the last row's cores gather
    alone = matmul(chip, params, m, k, n, MatmulConfig(op.fidelity or "HiFi2", w.dtype, grid))
    fabric = _fabric(chip, op)
    ring = fabric.topology is Topology.RING
    took = fabric.fused_gather_ns(m, k, 8) if ring else fabric.collective_ns("all_gather", x.nbytes)
    ns = fused_ns(alone.ns, took, op.wires.size)
    return Priced(ns, "matmul", "fabric" if took > alone.ns else alone.bound, ring)


def profiled(path: Path) -> list[tuple[DeviceOp, float]]:
    """Return the distinct operations of a profiler's CSV with their mean kernel time in ns."""
    groups: dict[DeviceOp, list[float]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row.get("DEVICE KERNEL DURATION [ns]"):
                groups[_of_row(row)].append(float(row["DEVICE KERNEL DURATION [ns]"]))
    return [(op, sum(found) / len(found)) for op, found in groups.items()]


def _of_row(row: dict[str, str]) -> DeviceOp:
    text = row["ATTRIBUTES"]
    found = {name: re.search(rf"'{name}': '(\d+)'", text) for name in ("ring_size", "num_links")}
    size, links = (int(m[1]) if m else 1 for m in found.values())
    inputs = tuple(t for i in range(8) if (t := measured.tensor_of(row, f"INPUT_{i}")))
    outputs = tuple(t for i in range(3) if (t := measured.tensor_of(row, f"OUTPUT_{i}")))
    return DeviceOp(
        row["OP CODE"], row["DEVICE ARCH"], int(row["CORE COUNT"]), row["MATH FIDELITY"], inputs, outputs, text,
        Wires(size, links, "Topology::Ring" in text),
    )  # fmt: skip
