"""Price a device operation of ttnn by its name and its tensors, whoever called it; what cannot be priced says why.

    name ---> class, and what has a formula of its own (``op_names.py``) ---> ``FORMULAS`` ---> ``Cost``

An operation with a class but no formula of its own is priced as its class, and ``Priced.measured`` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from refsim.base.mesh import Topology
from refsim.timing.cost import ops
from refsim.timing.cost.chips import CYCLES_PER_TILE, Chip, get_chip
from refsim.timing.cost.fabric import Fabric, fused_ns
from refsim.timing.cost.fitted import get_params
from refsim.timing.cost.matmul import MatmulConfig, MulticastConfig, batched_matmul, matmul, multicast_matmul
from refsim.timing.cost.ops import Cost, Params
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.read.device_op import Cut, DeviceOp
from refsim.timing.read.op_names import op_name, plain
from refsim.timing.read.tensors import BYTES, OpTensor


class Unpriced(Exception):
    """The model has no price for an operation; the text says why."""


@dataclass(frozen=True)
class Priced:
    """``ns`` on the device; ``measured``: predictions of this operation have been compared with measurements."""

    ns: float
    kind: str
    bound: str
    measured: bool


def price(op: DeviceOp, params: Params | None = None) -> Priced:
    """Return the predicted time of an operation; see :func:`cost_of`."""
    cost = cost_of(op, params)
    known = op_name(op.name)
    assert known is not None
    return Priced(cost.ns, known.kind, cost.bound, known.compared and (op.wires.ring or known.code != _ON_RINGS))


def cost_of(op: DeviceOp, params: Params | None = None) -> Cost:
    """Return what an operation costs on its chip.

    Args:
        params: those of another calibration than the stored one.

    Raises:
        Unpriced: the model has no formula for it, or not for these arguments.
    """
    chip = get_chip(op.arch, galaxy=op.wires.galaxy)
    params = params or get_params(op.arch)
    known = op_name(op.name)
    if known is None:
        raise Unpriced("no formula")
    if not op.inputs or not op.outputs or any(t.numel == 0 for t in op.inputs[:1]):
        raise Unpriced("it has no tensor to read or to write")
    if strange := [t.dtype for t in (*op.inputs, *op.outputs) if t.dtype not in BYTES]:
        raise Unpriced(f"no size of dtype '{strange[0]}'")
    formula = FORMULAS.get(known.code) or FORMULAS[known.kind]
    return formula(chip, params, op)


def _cores(chip: Chip, op: DeviceOp) -> int:
    return op.cores or chip.num_cores


def _fidelity(op: DeviceOp) -> str:
    return op.fidelity if op.fidelity in CYCLES_PER_TILE else "HiFi4"


def _numbers(op: DeviceOp, *names: str) -> tuple[int, ...] | None:
    """Return the numbers of attributes that stand one after the other, None if they do not."""
    match = re.search("[;,]".join(rf"{name}=(\d+)" for name in names), op.attributes)
    return tuple(map(int, match.groups())) if match else None


@dataclass(frozen=True)
class _Moved:
    """What an operation without products moves.

    Attributes:
        x, out, written: its first operand, its result, and what of it is written to memory.
        elements: of the largest tensor that it goes through.
        whole: it reads all of its operands.
        nbytes: read from and written to DRAM.
        local: all of it lies in the L1 of the cores that use it.
    """

    x: OpTensor
    out: OpTensor
    written: OpTensor
    elements: int
    whole: bool
    nbytes: float
    local: bool


def _moved(op: DeviceOp) -> _Moved:
    """Return what is moved: of a layout operation several results (heads of q, k and v) count as one, a slice is read,
    or written, as large as it is, and an embedding reads the rows it is asked for.
    """
    name = plain(op.name)
    x = op.inputs[0]
    out = op.outputs[-1]
    operands = op.inputs
    whole = True
    written = out
    if (known := op_name(op.name)) and known.kind == "layout":
        if len(op.outputs) > 1:
            out = replace(op.outputs[0], shape=(1, 1, 1, sum(t.numel for t in op.outputs)))
        written = x if name == "slicewrite" else out
        operands = op.inputs if name == "concat" else op.inputs[:1]
        whole = x.numel <= written.numel
    if whole:
        read = sum(t.nbytes for t in operands if t.numel <= 4 * out.numel and not t.in_l1)
    else:
        read = out.numel * BYTES[x.dtype] * (not x.in_l1)
    if name.startswith("rotaryembedding") and len(op.inputs) > 2:  # each head reads the tables again
        read += 2 * (x.shape[1] - 1) * op.inputs[1].nbytes
    nbytes = read + (0.0 if out.in_l1 else written.nbytes)
    elements = max(x.numel if whole else 0, written.numel)
    return _Moved(x, out, written, elements, whole, nbytes, all(t.sharded for t in (*op.inputs, out)))


def _tile_by_tile(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    m = _moved(op)
    return ops.by_tiles(chip, params, m.elements, m.nbytes, cores=_cores(chip, op), sharded=m.local)


def _norm(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    m = _moved(op)
    return ops.by_tiles(chip, params, m.x.numel, m.nbytes, width=m.x.shape[3], cores=_cores(chip, op))


def _reshape(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    m = _moved(op)
    if not (m.x.layout == m.out.layout == "TILE" and m.x.shape[3] != m.out.shape[3]):
        return _tile_by_tile(chip, params, op)
    wider = m.x.shape[3] // m.out.shape[3]  # a tile's rows come from as many tiles
    sources = min(32, wider if wider > 1 else m.out.rows)
    return ops.by_tiles(chip, params, m.out.numel, m.nbytes, cores=_cores(chip, op), sources=sources)


def _copy(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    m = _moved(op)
    cores = _cores(chip, op)
    if m.local:
        untilized = -(-m.x.numel // 1024) if m.x.layout == "TILE" and m.out.layout != "TILE" else 0
        return ops.l1_copy(chip, params, max(m.x.nbytes, m.out.nbytes), cores, untilized)
    return ops.copy(chip, params, m.nbytes, max(m.x.pages if m.whole else 0, m.written.pages), cores)


def _operands(op: DeviceOp) -> tuple[OpTensor, OpTensor, OpTensor]:
    """Return both operands and the result of a product."""
    if len(op.inputs) < 2:
        raise Unpriced("a product of one operand")
    return op.inputs[0], op.inputs[1], op.outputs[-1]


def _multicast(op: DeviceOp) -> MulticastConfig:
    """Return how ttnn.matmul carries out a product, but for its cores."""
    x, w, out = _operands(op)
    config = MulticastConfig((1, 1), _fidelity(op), (x.dtype, w.dtype, out.dtype), places=(x.place, w.place, out.place))
    return replace(config, spills="packer_l1_acc=0" in op.attributes)


def _convolution(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price a convolution on the cores and in the blocks that its attributes name."""
    _, w, out = _operands(op)
    m = out.shape[0] * out.shape[1] * out.shape[2]
    k = w.shape[2]
    n = out.shape[3]
    names = (
        *("num_cores_nhw", "num_cores_c_in", "num_cores_c_out", "per_core_out_matrix_height_ntile"),
        *("act_block_h_ntiles", "act_block_w_ntiles", "out_subblock_h_ntiles", "out_subblock_w_ntiles"),
    )
    numbers = {name: _numbers(op, name) for name in names}
    if missing := [name for name in names if numbers[name] is None]:
        raise Unpriced(f"conv whose attributes do not say {missing[0]}")
    row_cores, input_parts, column_cores, rows, height, width, h, v = (each[0] for each in numbers.values() if each)
    blocks = -(-rows // height) * -(-ops.tiles(k) // width) if column_cores > 1 else 0
    config = replace(
        _multicast(op), grid=(row_cores, column_cores), dtype=w.dtype, kb=width, sub=(h, v),
        tilized=rows * ops.tiles(k) // input_parts, handed_on=blocks,
    )  # fmt: skip
    return multicast_matmul(chip, params, m, k, n, config)


def _matmul(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price ttnn.matmul on the cores and in the blocks that it names, or else in its own choice."""
    x, w, _ = _operands(op)
    config = _multicast(op)
    batch = x.shape[0] * x.shape[1]
    m = x.shape[2]
    k = x.shape[3]
    n = w.shape[3]
    if block := _numbers(op, "in0_block_w", "out_subblock_h", "out_subblock_w"):
        config = replace(config, kb=block[0], sub=block[1:])
    if per_core := _numbers(op, "per_core_M", "per_core_N"):
        return _configured(chip, params, op, config, per_core)
    if w.shape[0] * w.shape[1] > 1:
        sizes = (batch, m, k, n)
        cores = _cores(chip, op)
        return batched_matmul(chip, params, sizes, cores=cores, fidelity=config.fidelity, dtype=config.dtype)
    grid = op.cut.grid if op.cut else _grid(_cores(chip, op), batch * m, n)
    return multicast_matmul(chip, params, batch * m, k, n, replace(config, grid=grid))


def _configured(chip: Chip, params: Params, op: DeviceOp, config: MulticastConfig, per_core: tuple[int, ...]) -> Cost:
    """Price a product whose program says how many tiles of M and of N a core has (``per_core``).

    Products of a batch that are not one matrix (``fuse_batch=0``) run one after the other in one program. A first
    operand that serves them all is read once and stays in L1 (``reuse_in0_in_CB`` of ttnn's 1-D program factory).
    """
    x, w = op.inputs[:2]
    products = max(x.shape[0] * x.shape[1], w.shape[0] * w.shape[1])
    rows = x.shape[2]
    k = x.shape[3]
    n = w.shape[3]
    if "fuse_batch=1" in op.attributes:
        products, rows = 1, products * rows
    grid = -(-ops.tiles(rows) // per_core[0]), -(-ops.tiles(n) // per_core[1])
    config = replace(config, grid=grid, out_block=_numbers(op, "out_block_h", "out_block_w") or per_core)
    first = multicast_matmul(chip, params, rows, k, n, config)
    rest = first
    if products > x.shape[0] * x.shape[1]:
        rest = multicast_matmul(chip, params, rows, k, n, replace(config, places=("own", *config.places[1:])))
    more = products - 1
    return replace(
        first, ns=first.ns + more * (rest.ns - params.launch_ns), compute_ns=first.compute_ns + more * rest.compute_ns,
        dram_ns=first.dram_ns + more * rest.dram_ns, ideal_ns=first.ideal_ns + more * rest.ideal_ns,
    )  # fmt: skip


def _grid(cores: int, m: int, n: int) -> tuple[int, int]:
    """Return the cores for M and N: one side alone where its tiles make that count (1-D), else fewest tiles a core."""
    mt = ops.tiles(m)
    nt = ops.tiles(n)
    if cores == -(-mt // -(-mt // cores)):
        return cores, 1
    if cores == -(-nt // -(-nt // cores)):
        return 1, cores
    sides = [(a, cores // a) for a in range(1, cores + 1) if cores % a == 0]
    return min(sides, key=lambda s: -(-mt // s[0]) * -(-nt // s[1]))


def _minimal_matmul(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price minimal_matmul in the blocks and on the cores it was given, or else its own: the longer side of M and N on
    the longer side of the chip's cores.
    """
    x, w, out = _operands(op)
    rows = math.prod(x.shape[:-1])
    n = w.shape[3]
    block = _numbers(op, "M_block_size", r"\s*K_block_size", r"\s*N_block_size") or (8, 8, 8)
    grid = re.search(r"compute_with_storage_grid_size=\(?(?:x=)?(\d+)[-,;]\s*(?:y=)?(\d+)", op.attributes)
    cores = (int(grid[1]), int(grid[2])) if grid else chip.cores
    cut = op.cut or Cut(cores if rows > n else cores[::-1], block)
    config = MatmulConfig(_fidelity(op), (x.dtype, w.dtype, out.dtype), cut.grid, cut.block, cut.sub)
    return matmul(chip, params, x.shape[2], x.shape[3], n, config, batch=x.shape[0] * x.shape[1])


def _fabric(chip: Chip, op: DeviceOp) -> Fabric:
    return Fabric(chip, op.wires.size, op.wires.links, Topology.RING if op.wires.ring else Topology.LINEAR)


def _collective(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    known = op_name(op.name)
    if not op.wires.size or known is None:
        raise Unpriced("a collective of nobody knows how many devices")
    brought = op.inputs if plain(op.name).startswith("ringattention") else op.inputs[:1]
    ns = _fabric(chip, op).collective_ns(known.code, sum(t.nbytes for t in brought))
    return Cost(ns, "fabric", 0.0, 0.0, 0.0)


def _gathered_matmul(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price an all-gather of what a matmul takes, both at once: tt_dit's fused linear."""
    if len(op.inputs) < 2 or not op.wires.size:
        raise Unpriced("a fused gather and matmul without a weight or without a ring size")
    x, w = op.inputs[:2]
    m = x.numel // x.shape[3]
    k = w.shape[2]
    n = w.shape[3]
    cut = op.cut or Cut((chip.cores[0], chip.cores[1] - 1))  # the last row's cores gather
    dtypes = (x.dtype, w.dtype, op.outputs[-1].dtype)
    alone = matmul(chip, params, m, k, n, MatmulConfig(op.fidelity or "HiFi2", dtypes, cut.grid, cut.block, cut.sub))
    fabric = _fabric(chip, op)
    if op.wires.ring:
        took = fabric.fused_gather_ns(m, k, cut.block[1])
    else:
        took = fabric.collective_ns("all_gather", x.nbytes)
    ns = fabric.gathered_matmul_ns(alone.ns, took)
    return replace(alone, ns=ns, bound="fabric" if took > alone.ns else alone.bound)


def _scattered_matmul(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price a matmul with the reduce-scatter of what it makes, cut up as a published table says."""
    x, w, _ = _operands(op)
    if op.cut is None:
        raise Unpriced("a fused matmul and scatter without its blocks")
    m = x.shape[2]
    k = x.shape[3]
    n = w.shape[3]
    alone = matmul(chip, params, m, k, n, MatmulConfig(op.fidelity, "bf16", op.cut.grid, op.cut.block, op.cut.sub))
    fabric = _fabric(chip, op)
    took = fabric.fused_scatter_ns(m, n, op.cut.grid)
    parts = fabric.fused_parts(m, op.cut.grid, op.cut.block)
    bound = "fabric" if took > alone.ns else alone.bound
    return replace(alone, ns=fused_ns(alone.ns, took, parts), bound=bound)


def _attention_config(chip: Chip, op: DeviceOp) -> SDPAConfig:
    chunks = _numbers(op, "q_chunk_size", r"\s*k_chunk_size")
    if chunks is None:
        raise Unpriced("attention without chunk sizes")
    if len(op.inputs) < 3:
        raise Unpriced("attention without keys and values")
    grid = re.search(r"compute_with_storage_grid_size=\(x=(\d+);y=(\d+)\)", op.attributes)
    cores = min(_cores(chip, op), int(grid[1]) * int(grid[2])) if grid else op.cores or None
    causal = op.causal or "is_causal': 'true" in op.attributes
    k, v = op.inputs[1:3]
    return SDPAConfig(op.fidelity or "HiFi2", cores, chunks[0], chunks[1], causal, v.shape[3], k.dtype)


def _attention(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price attention on one device; joint attention has the prompt's rows beside the others."""
    config = _attention_config(chip, op)
    joint = _joint_rows(op) if plain(op.name) == "jointsdpa" else 0
    batch, heads, rows, width = op.inputs[0].shape
    keys = op.inputs[1].shape[2]
    return sdpa(chip, params, batch, heads, rows + joint, keys + joint, width, config)


def _ring_attention(chip: Chip, params: Params, op: DeviceOp) -> Cost:
    """Price a ring's attention, shard after shard as they come; the mean of its devices."""
    config = _attention_config(chip, op)
    joint = _joint_rows(op)
    batch, heads, rows, width = op.inputs[0].shape
    keys = op.inputs[1].shape[2]
    if not op.wires.size:
        raise Unpriced("ring attention of nobody knows how many devices")
    # Cores hand the keys on in step: on the diagonal they skip chunks, but wait for the one that has the last rows.
    # ttnn names is_cross since June 2026; a ring that is causal without it had the kernel of before.
    serial = "is_causal': 'true" in op.attributes and "is_cross" not in op.attributes
    causal = config.causal
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
    return replace(whole, ns=sum(ends) / len(ends), bound="fabric" if late else whole.bound)


def _joint_rows(op: DeviceOp) -> int:
    """Return the rows of the prompt, the fourth tensor; without a prompt that is the buffer of gathered keys."""
    if len(op.inputs) < 4 or op.inputs[3].shape[2] >= op.wires.size * op.inputs[1].shape[2] > op.inputs[1].shape[2]:
        return 0
    return op.inputs[3].shape[2]


def _ring_ns(steps: list[Cost], arrivals: tuple[float, ...], launch_ns: float) -> float:
    """Return when the last step ends; a step starts when its shard is there, and the program is launched once."""
    now = 0.0
    for i, cost in enumerate(steps):
        now = max(now, arrivals[min(i, len(arrivals) - 1)]) + cost.ns - (launch_ns if i else 0.0)
    return now


Formula = Callable[[Chip, Params, DeviceOp], Cost]
_ON_RINGS = "AllGatherMinimalMatmulAsyncOp"
"""What has been compared with measurements on Rings alone."""
_COPIES = (
    "Move", "Copy", "Halo", "Slice", "SliceWrite", "PaddedSlice", "Concat", "InterleavedToSharded",
    "ShardedToInterleaved", "Reshard", "Permute",
)  # fmt: skip
FORMULAS: dict[str, Formula] = {
    "matmul": _matmul,
    "conv": _convolution,
    "norm": _norm,
    "elementwise": _tile_by_tile,
    "layout": _tile_by_tile,
    "collective": _collective,
    "sdpa": _attention,
    "MinimalMatmulOp": _minimal_matmul,
    _ON_RINGS: _gathered_matmul,
    "matmul_reduce_scatter": _scattered_matmul,
    "RingJointSDPA": _ring_attention,
    "ReshapeDeviceOperation": _reshape,
    "UpsampleOperation": _copy,
    **{f"{name}DeviceOperation": _copy for name in _COPIES},
}
"""By class, and by the name of what has a formula of its own (both as in ``op_names.py``)."""
