"""Replay of one device's programs on two resources, compute and fabric, and what bounds the whole.

    unfused      matmul |======|        reduce_scatter        |====|
    fused        matmul |======|                                        on a Ring: as long as the longer of the two,
                 scatter  |====|+one block                              and the last block of the other; the matmul
                                                                        leaves a row of cores to the gather's routers,
                                                                        two to the reduce-scatter's workers; a gather on
                                                                        Blackhole: fabric.py
    ring joint   sdpa   |s0|s1 |s2 |s3|                                 step i starts when shard i is there and the
    attention    gather |--1|--2|--3|                                   step before is done; one row of cores gathers

Devices run the same programs; a collective is as slow as its slowest member, so one device stands for all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from refsim.base.mesh import MeshSpec, Topology
from refsim.models.figures import DEFAULT, Execution
from refsim.timing.cost import history
from refsim.timing.cost import ops as cost
from refsim.timing.cost.chips import Chip, get_chip
from refsim.timing.cost.fabric import Fabric, fused_ns
from refsim.timing.cost.matmul import MatmulConfig, MulticastConfig, matmul, multicast_matmul, sliced_conv2d
from refsim.timing.cost.ops import Cost, Params
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.read.reading import Op, Shape
from refsim.timing.read.tensors import BYTES


@dataclass(frozen=True)
class Span:
    """One stretch of a resource, in ns from the start of the forward; ``op``: what runs, or what a gap is before.

    ``roof_ns``: what it would take at its roofline.
    """

    resource: str
    kind: str
    name: str
    stage: str
    start: float
    end: float
    bound: str
    flops: float = 0.0
    op: Op | None = None
    roof_ns: float = 0.0


@dataclass(frozen=True)
class Ran:
    """A program as a whole: ``kind`` is what it computes, ``ns`` has what it waits for inside; run ``count`` times;
    ``spans`` are the gap before it and its own.
    """

    kind: str
    name: str
    inputs: tuple[Shape, ...]
    ns: float
    count: int = 1
    spans: tuple[Span, ...] = ()


@dataclass
class Timeline:
    """A forward on one device. ``ns`` its length; ``ideal_ns`` the roofline with all communication hidden.

    ``programs`` and the gaps between them make up ``ns``. ``beyond``: times as long as by kernels and gaps alone, and
    ``throttling``: times as long as without ``power.py``; everything else has both.
    """

    spans: list[Span] = field(default_factory=list)
    programs: list[Ran] = field(default_factory=list)
    ns: float = 0.0
    ideal_compute_ns: float = 0.0
    ideal_fabric_ns: float = 0.0
    exposed_ns: float = 0.0
    hidden_ns: float = 0.0
    throttling: float = 1.0
    beyond: float = 1.0

    def throttled(self, least_ns: float) -> Timeline:
        """Return it as it runs where the whole takes ``least_ns`` at least."""
        slow = max(least_ns / self.ns, 1.0)
        return replace(self._longer(slow), throttling=self.throttling * slow)

    def stretched(self, beyond: float) -> Timeline:
        """Return it as a loop takes ``beyond`` times its kernels (``loops.py``)."""
        return replace(self._longer(beyond), beyond=self.beyond * beyond)

    def _longer(self, slow: float) -> Timeline:
        """Return it with all of it ``slow`` times as long."""
        if slow == 1.0:
            return self
        spans = {id(s): replace(s, start=s.start * slow, end=s.end * slow) for s in self.spans}
        programs = [replace(p, ns=p.ns * slow, spans=tuple(spans[id(s)] for s in p.spans)) for p in self.programs]
        return replace(
            self, spans=list(spans.values()), programs=programs, ns=self.ns * slow,
            exposed_ns=self.exposed_ns * slow, hidden_ns=self.hidden_ns * slow,
        )  # fmt: skip

    @property
    def slow(self) -> float:
        """Return how many times as long it is as by kernels and gaps alone."""
        return self.beyond * self.throttling

    @property
    def ideal_ns(self) -> float:
        return max(self.ideal_compute_ns, self.ideal_fabric_ns)

    def by_kind(self) -> dict[str, float]:
        """Return the ns on the critical path by op class; communication counts where nothing else runs."""
        ns: dict[str, float] = defaultdict(float)
        for s in self.spans:
            if s.resource != "fabric":
                ns[s.kind] += s.end - s.start
        ns["collective"] = self.exposed_ns
        return dict(ns)

    def by_bound(self) -> dict[str, float]:
        ns: dict[str, float] = defaultdict(float)
        for s in self.spans:
            if s.resource != "fabric":
                ns[s.bound] += s.end - s.start
        ns["fabric"] = self.exposed_ns
        return dict(ns)


_CHUNKS = {  # (blackhole, head width) -> (q, k): tt_dit's chunk maps, sp2/tp2 and up
    (False, 64): (256, 512),
    (True, 64): (128, 512),
    (False, 128): (256, 256),
    (True, 128): (128, 512),
}


@dataclass(frozen=True)
class Machine:
    """A mesh with its chips, the fitted parameters, and how it is run."""

    mesh: MeshSpec
    chip: Chip
    params: Params
    run: Execution = DEFAULT
    costs: dict[tuple[Any, ...], Cost] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of the programs so far: the blocks of a forward are alike."""

    def cost(self, op: Op, *, cores: int | None = None, grid: tuple[int, int] | None = None) -> Cost:
        """Return the cost of one program that is no collective, see :func:`op_cost`."""
        key = (op.kind, op.name, op.inputs, op.output, cores, grid)
        if key not in self.costs:
            self.costs[key] = op_cost(self, op, cores=cores, grid=grid)
        return self.costs[key]

    def fabric(self, op: Op) -> Fabric:
        axis = op.axis if isinstance(op.axis, int) else 0
        links = self.mesh.links[axis] or max(self.mesh.links) or 1
        topology = topology_of(op, self.run.topology)
        # Members that are not neighbours: as many groups lie between each other and share the hops.
        return history.as_on(self.run.day, Fabric(self.chip, op.size, links / op.stride, topology), op.name)


def topology_of(op: Op, chosen: Topology | None) -> Topology:
    """Return the topology a collective runs on: of two devices a Line, else ``chosen`` or what the axis has."""
    return Topology.LINEAR if op.size == 2 else chosen or op.topology or Topology.LINEAR


def machine(mesh: MeshSpec, params: Params, run: Execution = DEFAULT) -> Machine:
    """Return a mesh as it is run, with the chips of the day."""
    chip = get_chip(mesh.arch, galaxy=mesh.num_devices >= 32)
    return Machine(mesh, *history.clocked(run.day, mesh, chip, params), run)


CONV_PROGRAMS = 4
"""Of one slice of a convolution: padded slice, halo, conv2d, slice write."""
BLOCK = (8, 8, 8)
"""Tiles of M, K and N per block where tt_dit has no entry for a shape (``get_matmul_config``)."""


def op_cost(m: Machine, op: Op, *, cores: int | None = None, grid: tuple[int, int] | None = None) -> Cost:
    """Return the cost of one program that is no collective; ``grid``: cores for M and for N of a matmul."""
    if op.name == "conv2d":
        (pixels, cin), (cout, _, kernel) = op.inputs
        slices = min(16, max(math.isqrt(pixels) // 32, 1))  # as in tt_dit's tables: 4 at 128 x 128, 16 from 512 x 512
        c = sliced_conv2d(m.chip, m.params, pixels, cin, cout, kernel, slices=slices, fidelity="HiFi4")
        return replace(c, ns=c.ns + (CONV_PROGRAMS * slices - 1) * m.params.gap_ns)
    if op.kind == "matmul":
        x, w = op.inputs[:2]
        dtypes = ("bf16", m.run.weights, "bf16")
        if history.multicast_linears(m.run.day):
            slow = MulticastConfig(grid or m.chip.cores, m.run.fidelity, dtypes, busy=m.run.busy)
            return multicast_matmul(m.chip, m.params, math.prod(x[:-1]), x[-1], w[0], slow)
        config = MatmulConfig(m.run.fidelity, dtypes, grid, BLOCK)
        return matmul(m.chip, m.params, math.prod(x[:-1]), x[-1], w[0], config)
    if op.kind == "sdpa":
        b, h, rows, e = op.inputs[0]
        keys = op.inputs[1][2]
        q, k = m.run.chunks or _CHUNKS.get((m.chip.arch == "blackhole", e), (256, 256))
        config = SDPAConfig(m.run.fidelity, cores, q, k, serial=history.serial_attention(m.run.day))
        return sdpa(m.chip, m.params, b, h, rows, keys, e, config)
    elements = math.prod(op.output)
    read = [p for s in op.inputs if (p := math.prod(s)) > elements // 64] if op.kind != "layout" else [elements]
    if op.name == "create_heads":
        read = [3 * elements]
        elements = 3 * elements
    width = op.output[-1] if op.kind == "norm" else None
    if op.name == "statistics":
        return cost.by_tiles(m.chip, m.params, elements, elements * BYTES["bf16"], width=width)
    moved = (sum(read) + elements) * BYTES["bf16"]
    return cost.by_tiles(m.chip, m.params, max([*read, elements]), moved, width=width)


def flops(op: Op) -> float:
    if op.name == "conv2d":
        (pixels, cin), (cout, _, kernel) = op.inputs
        return 2.0 * pixels * cin * cout * kernel**2
    if op.kind == "matmul":
        return 2.0 * math.prod(op.inputs[0]) * op.inputs[1][0]
    if op.kind == "sdpa":
        b, h, rows, e = op.inputs[0]
        return 4.0 * b * h * rows * op.inputs[1][2] * e
    return 0.0


def replay(programs: list[Op], m: Machine) -> Timeline:
    """Lay programs out one after the other, but for what runs beside the fabric."""
    line = Timeline()
    now = 0.0
    i = 0
    while i < len(programs):
        op = programs[i]
        first = i
        at = len(line.spans)
        now += m.params.gap_ns
        begun = now
        line.spans.append(Span("compute", "host", "gap", op.stage, now - m.params.gap_ns, now, "host", op=op))
        following = programs[i + 1] if i + 1 < len(programs) else None
        if op.kind == "collective" and op.name == "ring_attention":
            steps = []
            while i + 1 < len(programs) and programs[i + 1].ring == op.ring and programs[i + 1].kind == "sdpa":
                i += 1
                steps.append(programs[i])
            now = _ring(line, m, op, steps, now)
        elif _fusable(m, op, following, "collective", "all_gather") and (
            end := _fused(line, m, op, following, now, gather_first=True)
        ):
            now = end
            i = i + 1
        elif (
            _fusable(m, op, following, "matmul", None)
            and following.name == "reduce_scatter"
            and (end := _fused(line, m, following, op, now, gather_first=False))
        ):
            now = end
            i = i + 1
        elif op.kind == "collective":
            took = m.fabric(op).collective_ns(op.name, op.bytes)
            line.ideal_fabric_ns += m.fabric(op).ideal_ns(op.name, op.bytes)
            line.exposed_ns += took
            line.spans.append(Span("fabric", "collective", op.name, op.stage, now, now + took, "fabric", op=op))
            now += took
        else:
            now = _compute(line, m, op, now)
        i += 1
        line.programs.append(_ran(programs[first:i], now - begun, line.spans[at:]))
    line.ns = now
    return line


def _ran(ops: list[Op], ns: float, spans: list[Span]) -> Ran:
    """Return the one program that ``ops`` are: a fused one is what it computes."""
    does = next((op for op in ops if op.kind != "collective"), ops[0])
    return Ran(does.kind, " + ".join(dict.fromkeys(op.name for op in ops)), does.inputs, ns, spans=tuple(spans))


def _compute(line: Timeline, m: Machine, op: Op, start: float, cores: int | None = None) -> float:
    c = m.cost(op, cores=cores)
    line.ideal_compute_ns += c.ideal_ns
    done = start + c.ns
    n_flops = flops(op)
    line.spans.append(Span("compute", op.kind, op.name, op.stage, start, done, c.bound, n_flops, op, c.ideal_ns))
    return done


def _fusable(m: Machine, op: Op, following: Op | None, kind: str, name: str | None) -> bool:
    if not m.run.fuse or following is None or op.kind != kind or (name and op.name != name):
        return False
    collective, linear = (op, following) if kind == "collective" else (following, op)
    large = linear.kind == "matmul" and math.prod(linear.inputs[0][:-1]) >= 256
    return collective.kind == "collective" and m.fabric(collective).topology is Topology.RING and large


def _fused(line: Timeline, m: Machine, op: Op, linear: Op, start: float, *, gather_first: bool) -> float | None:
    """Lay out an all-gather under the matmul that takes it, or a reduce-scatter under the one that feeds it; None if
    that is slower than one after the other (few rows).
    """
    x, y = m.chip.cores
    fabric = m.fabric(op)
    rows = math.prod(linear.inputs[0][:-1])
    k = linear.inputs[0][-1]
    n = linear.inputs[1][0]
    if gather_first:
        grid = (x, y - 1)
        c = m.cost(linear, grid=grid)
        took = fabric.fused_gather_ns(rows, k, BLOCK[1])
        whole = fabric.gathered_matmul_ns(c.ns, took)
    else:
        grid = (y - 2, x)
        c = m.cost(linear, grid=grid)
        took = fabric.fused_scatter_ns(rows, n, grid)
        whole = fused_ns(c.ns, took, fabric.fused_parts(rows, grid, BLOCK))
    apart = m.cost(linear)
    alone = fabric.collective_ns(op.name, op.bytes)
    if whole > apart.ns + alone + m.params.gap_ns:
        return None
    line.ideal_compute_ns += c.ideal_ns
    line.ideal_fabric_ns += fabric.ideal_ns(op.name, op.bytes)
    line.exposed_ns += whole - c.ns
    line.hidden_ns += took - (whole - c.ns)
    first, second = (start, start + whole - c.ns) if gather_first else (start + whole - took, start)
    beside = Span("fabric", "collective", op.name, op.stage, first, first + took, "fabric", op=op)
    done = second + c.ns
    n_flops = flops(linear)
    computed = Span("compute", "matmul", linear.name, op.stage, second, done, c.bound, n_flops, linear, c.ideal_ns)
    line.spans += [beside, computed] if gather_first else [computed, beside]
    return start + whole


def _ring(line: Timeline, m: Machine, op: Op, steps: list[Op], start: float) -> float:
    """Lay out ring joint attention as one program; its own row of cores gathers while the others attend."""
    fabric = m.fabric(op)
    arrivals = (0.0, *fabric.arrivals(op.bytes))
    line.ideal_fabric_ns += fabric.ideal_ns("all_gather", op.bytes)
    cores = m.chip.num_cores - min(m.chip.cores) if op.size > 1 else m.chip.num_cores
    line.spans.append(Span("fabric", "collective", op.name, op.stage, start, start + arrivals[-1], "fabric", op=op))
    now = start
    begun = start
    busy = 0.0
    for step in steps:
        there = start + arrivals[min(step.step, len(arrivals) - 1)]
        line.exposed_ns += max(there - now, 0.0)
        now = max(now, there)
        done = _compute(line, m, step, now, cores)
        if begun != now:  # one program: launched once
            line.spans[-1] = replace(line.spans[-1], end=done - m.params.launch_ns, bound="compute")
            done -= m.params.launch_ns
        busy += done - now
        now = done
    line.hidden_ns += max(arrivals[-1] - max(now - start - busy, 0.0), 0.0)
    return now


def gather_weights(
    line: Timeline, m: Machine, nbytes: float, size: int, axis: int, topology: Topology, blocks: int
) -> None:
    """Add what FSDP costs: a block's weights are gathered over ``axis`` before it runs, with nothing beside it."""
    topology = (m.run.topology or topology) if size > 2 else Topology.LINEAR
    fabric = history.as_on(m.run.day, Fabric(m.chip, size, m.mesh.links[axis] or 1, topology), "all_gather")
    each = fabric.collective_ns("all_gather", nbytes / size / blocks)
    brought = round(nbytes / size / blocks)
    op = Op("collective", "gather_weights", (), (), m.run.weights, "", axis, size, topology, brought, group="sp")
    for i in range(blocks):
        end = line.ns + each
        line.spans.append(Span("fabric", "collective", op.name, f"block {i}", line.ns, end, "fabric", op=op))
        line.programs.append(Ran("collective", op.name, (), each, spans=(line.spans[-1],)))
        line.ns += each
        line.exposed_ns += each
        line.ideal_fabric_ns += fabric.ideal_ns("all_gather", nbytes / size / blocks)
