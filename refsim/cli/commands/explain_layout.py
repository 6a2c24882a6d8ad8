"""What a parallel configuration puts on every device of a mesh: shards, rings and their order, buffers, bytes.

All of it as JSON values; shapes, buffers and bytes are those of a model read on meta tensors (no arithmetic).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.mesh import Topology
from refsim.base.options import RunOptions
from refsim.base.padded import Padded
from refsim.files.keys import Document, Sometimes
from refsim.models.spec import Published
from refsim.parallel.kv_ring import Stream, streams
from refsim.runtime.group import Group, parallel_groups

GROUPS = ("cfg", "sp", "tp", "ring", "ulysses")


@dataclass
class DeviceShare:
    """What a device has: its index in every group; of a model the first row and head, and those after the last."""

    rank: int
    coord: tuple[int, ...]
    cfg: int
    sp: int
    tp: int
    ring: int
    ulysses: int
    token_rows: Sometimes[list[int]] = None
    heads: Sometimes[list[int]] = None

    @property
    def ranges(self) -> list[str]:
        """Return the device's rows and heads in words, where they are known."""
        named = (("rows", self.token_rows), ("heads", self.heads))
        return [f"{name} {ends[0]}..{ends[1] - 1}" for name, ends in named if ends is not None]


@dataclass
class Layout(Document):
    """Sizes are of one device; what follows ``ring`` is there where a model is given.

    Attributes:
        groups: Name, mesh axis, topology, links, and the ranks in the order of shards.
        ring: Whose keys each member attends to at each step, and which ranks send them.
        padded: What is padded, with what it adds.
        collectives: Of rank 0 in a forward: ``bytes`` it brings, ``steps``, ``bytes_per_step`` it sends in a direction.
    """

    mesh: str
    shape: tuple[int, ...]
    parallel: str
    attention: str
    devices: list[DeviceShare]
    groups: list[dict[str, Any]]
    ring: list[dict[str, Any]]
    model: Sometimes[str] = None
    latent: Sometimes[tuple[int, ...]] = None
    dtype: Sometimes[str] = None
    per_device: Sometimes[dict[str, int]] = None
    buffers: Sometimes[list[dict[str, Any]]] = None
    collectives: Sometimes[list[dict[str, Any]]] = None
    padded: Sometimes[list[Padded]] = None


def layout_of(options: RunOptions, model: Published | None = None, size: tuple[int, ...] | None = None) -> Layout:
    """Describe a configuration.

    Args:
        options: mesh, factors, attention and storage dtype.
        model, size: a published model and the latent it is run on; without them there are no shapes and no bytes.
    """
    mesh = options.mesh
    config = options.parallel
    by_rank = [parallel_groups(mesh, config, rank) for rank in range(mesh.num_devices)]
    devices = [
        DeviceShare(rank, mesh.coord(rank), **{name: groups[name].index for name in GROUPS})
        for rank, groups in enumerate(by_rank)
    ]
    ring = _visits(by_rank[0]["ring"], by_rank) if config.ring > 1 else []
    layout = Layout(mesh.name, mesh.shape, str(config), config.attention, devices, _distinct(by_rank), ring)
    if model is not None and size is not None:
        _add_model(layout, options, model, size)
    return layout


def _distinct(by_rank: list[dict[str, Group]]) -> list[dict[str, Any]]:
    """Return every group of two or more once, by name and ranks."""
    seen: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    for groups in by_rank:
        for name in GROUPS:
            group = groups[name]
            if group.size > 1:
                seen[name, group.ranks] = {
                    "name": name,
                    "axis": group.axis,
                    "topology": group.topology.value if group.topology else None,
                    "links": group.num_links,
                    "ranks": list(group.ranks),
                }
    return sorted(seen.values(), key=lambda group: (GROUPS.index(group["name"]), group["ranks"]))


def _visits(ring: Group, by_rank: list[dict[str, Group]]) -> list[dict[str, Any]]:
    """Return whose keys each member of the first ring attends to at each step, and who sends to it."""
    visits = []
    for index, rank in enumerate(ring.ranks):
        group = by_rank[rank]["ring"]
        steps = []
        for step in range(group.size):
            arriving = [s for s in streams(group) if s.shard(step) is not None][: 1 if step == 0 else None]
            if arriving:
                steps.append(
                    {"step": step, "shards": [s.shard(step) for s in arriving], "from": _sources(group, arriving, step)}
                )
        visits.append({"member": index, "rank": rank, "steps": steps})
    return visits


def _sources(group: Group, arriving: list[Stream], step: int) -> list[int]:
    """Return the ranks that send what is attended at a step; none at step 0, which has the member's own keys."""
    return [group.ranks[s.source] for s in arriving] if step else []


def _add_model(layout: Layout, options: RunOptions, model: Published, size: tuple[int, ...]) -> None:
    """Add what a model has: rows and heads of every device, buffers, collectives."""
    from refsim.timing.read.reading import read_published

    config = options.parallel
    reading = read_published(model, size, options, batch=max(config.cfg, 1))
    attention = [op for op in reading.ops if op.kind == "sdpa" and op.step in (-1, 0)]
    shapes = {}
    if attention:
        (batch, heads, _, width), (_, _, keys, _) = attention[0].inputs
        rows = keys // config.ulysses
        per_device = heads * config.ulysses
        shapes = {"batch": batch, "token_rows": rows, "heads": per_device, "head_dim": width}
        for device in layout.devices:
            device.token_rows = [device.sp * rows, (device.sp + 1) * rows]
            device.heads = [device.tp * per_device, (device.tp + 1) * per_device]
    layout.model = model.name
    layout.latent = size
    layout.dtype = options.dtype
    layout.per_device = shapes | {"weights_bytes": reading.weights_bytes, "buffer_bytes": reading.buffer_bytes}
    layout.buffers = _buffers(options, reading.ops)
    layout.collectives = _collectives(reading.ops)
    layout.padded = reading.padded


def _buffers(options: RunOptions, ops: list[Any]) -> list[dict[str, Any]]:
    """Return the persistent buffers of ring attention on one device: name, slots and bytes of each."""
    moved = next((op for op in ops if op.kind == "collective" and op.name == "ring_attention" and op.size > 1), None)
    if moved is None:
        return []
    group = parallel_groups(options.mesh, options.parallel, 0)["ring"]
    each = moved.bytes // 2
    if options.ring_order == "gather":
        return [{"name": f"ring.{n}.gathered", "slots": 1, "bytes": each * group.size} for n in "kv"]
    return [{"name": f"ring.{n}{s.name}", "slots": 2, "bytes": each} for s in streams(group) for n in "kv"]


def _per_step(op: Any) -> int:
    """Return the bytes that one device sends in one step of a collective: all that it brings, or one member's part."""
    return op.bytes // op.size if op.name in ("reduce_scatter", "all_to_all", "all_reduce") else op.bytes


def _collectives(ops: list[Any]) -> list[dict[str, Any]]:
    """Return the collectives of one forward, equal ones counted together, the most bytes first."""
    counted: dict[tuple[Any, ...], dict[str, Any]] = {}
    for op in ops:
        if op.kind == "collective" and op.size > 1:
            topology = op.topology.value if isinstance(op.topology, Topology) else op.topology
            key = op.name, str(op.axis), op.inputs, topology
            row = counted.setdefault(
                key,
                {
                    "name": op.name,
                    "axis": op.axis,
                    "members": op.size,
                    "topology": topology,
                    "shapes": [list(shape) for shape in op.inputs],
                    "bytes": op.bytes,
                    "steps": op.size - 1,
                    "bytes_per_step": _per_step(op),
                    "count": 0,
                },
            )
            row["count"] += 1
    return sorted(counted.values(), key=lambda row: -row["bytes"] * row["count"])
