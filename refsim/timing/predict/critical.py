"""The critical path: what the ops of a forward wait for, and what they would take if nothing else held them up.

    today       matmul a |====|  gather b    |======|  matmul c (reads a) |====|     one after the other
    overlapped  matmul a |====|  matmul c |====|                                     a collective starts when what it
                gather b    |======|                                                 reads is there, beside the compute

Programs keep their order on two resources, compute and each mesh axis; fused pairs and ring attention stay one program.
Walking back from the end, each program waited for one of its sources or for its resource: that chain is the critical
path. Weights that are gathered (fsdp) wait for nothing and are not in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from refsim.timing.predict.replay import Machine, replay
from refsim.timing.read.recorder import Op


@dataclass
class CriticalPath:
    """How long a forward takes with collectives beside the compute: ``ns``; ``chain_ns`` with no wait for resources.

    ``by_kind`` shares out ``ns``: what the chain that ends last is made of.
    """

    ns: float = 0.0
    chain_ns: float = 0.0
    by_kind: dict[str, float] = field(default_factory=dict)


@dataclass
class _Unit:
    """Programs that run as one: ``ops`` of them, on a resource, for ``ns``."""

    ops: list[Op]
    resource: str
    ns: float

    @property
    def kind(self) -> str:
        kinds = [op.kind for op in self.ops]
        return next((k for k in kinds if k != "collective"), "collective")


def critical_path(programs: list[Op], read: list[Op], m: Machine) -> CriticalPath:
    """Return the critical path of the ``programs`` that the ops ``read`` off the model became."""
    units = list(_units(programs, m))
    sources = _sources(units, read)
    free_at: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, -1))
    end = [0.0] * len(units)
    chain = [0.0] * len(units)
    before = [-1] * len(units)
    for i, unit in enumerate(units):
        waits = [free_at[unit.resource], *((end[s], s) for s in sources[i])]
        start, before[i] = max(waits)
        end[i] = start + unit.ns
        chain[i] = max((chain[s] for s in sources[i]), default=0.0) + unit.ns
        free_at[unit.resource] = (end[i], i)
    path = CriticalPath(max(end, default=0.0), max(chain, default=0.0))
    kinds: dict[str, float] = defaultdict(float)
    i = max(range(len(units)), key=end.__getitem__, default=-1)
    while i >= 0:
        kinds[units[i].kind] += units[i].ns
        i = before[i]
    path.by_kind = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    return path


def _units(programs: list[Op], m: Machine) -> Iterator[_Unit]:
    """Yield ring attention with its steps, pairs that the replay fuses, and every other program on its own."""
    known: dict[tuple[Op, ...], float] = {}

    def took(*ops: Op) -> float:
        key = tuple(replace(op, id=-1, reads=(), stage="", ring=min(op.ring, 0)) for op in ops)
        if key not in known:
            known[key] = replay(list(ops), m).ns
        return known[key]

    i = 0
    while i < len(programs):
        op = programs[i]
        ops = [programs[i]]
        following = programs[i + 1] if i + 1 < len(programs) else None
        if op.name == "ring_attention":
            while i + len(ops) < len(programs) and programs[i + len(ops)].ring == op.ring:
                if programs[i + len(ops)].kind != "sdpa":
                    break
                ops.append(programs[i + len(ops)])
        elif following is not None and "collective" in (op.kind, following.kind) and following.ring < 0:
            apart = took(op) + took(following)
            if took(op, following) < apart * (1 - 1e-9):
                ops.append(following)
        alone = op.kind == "collective" and len(ops) == 1
        yield _Unit(ops, f"axis {op.axis}" if alone else "compute", took(*ops))
        i += len(ops)


def _sources(units: list[_Unit], read: list[Op]) -> list[set[int]]:
    """Return the units that each unit waits for; an op that became no program of its own hands on what it read."""
    reads = {op.id: op.reads for op in read}
    made: dict[int, int] = {}  # op -> the last unit that has it so far
    every: list[set[int]] = []
    for i, unit in enumerate(units):
        sources = set()
        todo = [r for op in unit.ops for r in (op.id, *op.reads)]
        seen = set()
        while todo:
            op = todo.pop()
            if op in seen:
                continue
            seen.add(op)
            if op in made:
                sources.add(made[op])
            elif op in reads and op not in {o.id for o in unit.ops}:
                todo += reads[op]
        every.append(sources)
        for each in unit.ops:
            made[each.id] = i
    return every
