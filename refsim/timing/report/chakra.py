"""A prediction as Chakra execution traces, one file a rank, for simulators that take workloads in MLCommons' form.

    launch --> matmul --> launch --> collective --> launch --> ...                  a device runs in order
    launch --+--> recv ---> recv ---.
             +--> send ---> send ---+--> launch                                     ring attention: a shard a message,
             '--> sdpa ---> sdpa ---'                                               each step after the one it needs
    launch --> collective, first part --+--> the rest --+--> launch                 fused: what runs beside each other
                                        '--> matmul ----'                           is cut where the second one starts

A node waits (``data_deps``) for what it waits for in the prediction. Times are rounded so that what follows each other
still meets: along the chain that ends last, durations add up to the predicted forward, to the us. On a Line of more
than two devices the inner ones have their shards before the outer ones, and the prediction is that of the outer ones.

A file is a ``GlobalMetadata`` and then ``Node`` after ``Node``, each after its length, in protobuf's encoding (schema
``et_def.proto`` of MLCommons Chakra, version 0.0.4). ``comm_size`` is what this rank brings, ``tensor_size`` what an
op reads and writes; ``num_ops`` its FLOP, or the elements it makes; ``comm_groups.json`` the ranks of each ``pg_name``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError
from refsim.files import output
from refsim.runtime.group import parallel_groups
from refsim.timing.predict.estimate import Estimate, describe
from refsim.timing.predict.replay import Span
from refsim.timing.read.recorder import Op
from refsim.timing.read.tensors import BYTES
from refsim.timing.report.predicted_trace import name, read_bytes

COMP = 4
SEND = 5
RECV = 6
COLLECTIVE = 7
"""``NodeType`` of the schema."""
_COLLECTIVES = {
    "all_reduce": 0, "all_gather": 2, "gather_weights": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7
}  # fmt: skip
"""``CollectiveCommType`` of the schema."""
_INT32 = 7
_INT64 = 9
_UINT64 = 13
_BOOL = 27
_STRING = 29
_FIELDS = {
    "is_cpu_op": _BOOL, "comm_type": _INT64, "comm_size": _INT64, "num_ops": _INT64, "tensor_size": _UINT64,
    "comm_src": _INT32, "comm_dst": _INT32, "comm_tag": _INT32,
}  # fmt: skip
"""The field of ``AttributeProto`` in which readers look for an attribute; texts are strings."""


@dataclass
class Node:
    """One node of a rank's trace; ``start`` and ``end`` in us from the start of the forward."""

    id: int
    name: str
    type: int
    start: int
    end: int
    deps: list[int]
    attributes: dict[str, Any]
    op: Op | None

    def encoded(self) -> bytes:
        op = self.op
        parts = [_number(1, self.id), _text(2, self.name), _number(3, self.type)]
        parts += [_text(5, b"".join(map(_varint, self.deps)))] if self.deps else []
        parts += [_number(6, self.start), _number(7, self.end - self.start)]
        for number, shapes in ((8, op.inputs), (9, (op.output,))) if op else ():
            types = [f"Tensor({op.dtype})"] * len(shapes)
            parts.append(_text(number, _text(2, json.dumps(shapes)) + _text(3, json.dumps(types))))
        return b"".join(parts + [_text(10, _attribute(*item)) for item in self.attributes.items()])


def write(estimate: Estimate, folder: Path) -> None:
    """Write ``forward.RANK.et`` for every rank and ``comm_groups.json`` into ``folder``, which is made if need be."""
    parallel = describe(estimate.parallel)
    about = {
        "title": f"{estimate.model} {estimate.size} on {estimate.mesh}, {parallel}: one forward, predicted",
        "forwards": f"{estimate.forwards_per_step} a step, {estimate.steps} steps",
    }
    head = _text(1, "0.0.4") + b"".join(_text(2, _attribute(*item)) for item in about.items())
    contents = {}
    for rank in range(estimate.mesh.num_devices):
        messages = [head, *(node.encoded() for node in nodes(estimate, rank))]
        contents[f"forward.{rank}.et"] = b"".join(_varint(len(message)) + message for message in messages)
    numbers = {number: list(ranks) for ranks, number in _group_numbers(estimate).items()}
    contents["comm_groups.json"] = json.dumps(numbers).encode()
    folder.mkdir(exist_ok=True)
    for file, content in contents.items():
        output.write(folder / file, content, "--chakra")


def nodes(estimate: Estimate, rank: int) -> list[Node]:
    """Return what a rank does in one forward; a node waits only for some before it.

    Raises:
        UserError: it has a collective that the schema does not know.
    """
    return _Rank(estimate, rank).run()


def _group_numbers(estimate: Estimate) -> dict[tuple[int, ...], str]:
    """Return the number of each group of ranks, which is how readers want its name."""
    ranks = range(estimate.mesh.num_devices)
    groups = [parallel_groups(estimate.mesh, estimate.parallel, rank).values() for rank in ranks]
    every = sorted({group.ranks for of_rank in groups for group in of_rank})
    return {members: str(number) for number, members in enumerate(every, start=1)}


class _Rank:
    """One rank's trace under way; ``last`` are the nodes that the next program waits for."""

    def __init__(self, estimate: Estimate, rank: int) -> None:
        self._estimate = estimate
        self._groups = parallel_groups(estimate.mesh, estimate.parallel, rank)
        self._numbers = _group_numbers(estimate)
        self._nodes: list[Node] = []
        self._last: list[int] = []
        self._tag = 0

    def run(self) -> list[Node]:
        spans = list(self._estimate.timeline.spans)
        while spans:
            s = spans.pop(0)
            if s.name == "ring_attention":
                steps = []
                while spans and spans[0].kind == "sdpa":
                    steps.append(spans.pop(0))
                self._ring(s, steps)
            elif spans and max(s.start, spans[0].start) < min(s.end, spans[0].end):
                beside = spans.pop(0)
                begun = self._span(s, self._last, until=beside.start)
                self._last = [self._span(s, [begun], since=beside.start), self._span(beside, [begun])]
            else:
                self._last = [self._span(s, self._last)]
        return self._nodes

    def _ring(self, s: Span, steps: list[Span]) -> None:
        """Add ring attention: a message is passed on once it is here, a step starts once its shard is here."""
        op = s.op
        group = self._groups[s.op.group]
        launched = self._last
        slow = self._estimate.timeline.slow
        messages = self._estimate.machine.fabric(op).messages(op.bytes)
        came: dict[int, list[int]] = {}  # shard -> the receives that brought it
        there: dict[int, float] = {}  # shard -> when all of it is there
        links: dict[tuple[int, int], tuple[float, list[int]]] = {}  # node type, neighbour -> free from when, after what
        for tag, m in sorted(enumerate(messages, self._tag), key=lambda item: item[1].start):
            if group.index not in (m.source, m.target):
                continue
            kind, other = (SEND, m.target) if group.index == m.source else (RECV, m.source)
            free, before = links.get((kind, other), (0.0, launched))
            start, end = (m.start * slow, m.sent * slow) if kind == SEND else (free, m.arrived * slow)
            about = {"comm_src": group.ranks[m.source], "comm_dst": group.ranks[m.target], "comm_tag": tag}
            about |= {"is_cpu_op": False, "comm_size": round(op.bytes * m.share)}
            before = [*before, *came.get(m.shard, ())] if kind == SEND else before
            node = self._add(Node(0, name(s), kind, s.start + start, s.start + end, before, about, op))
            links[kind, other] = end, [node]
            if kind == RECV:
                came.setdefault(m.shard, []).append(node)
                there[m.shard] = max(there.get(m.shard, 0.0), end)
        self._tag += len(messages)
        order = [launched, *(came[shard] for shard in sorted(there, key=there.__getitem__))]
        before = launched
        for step in steps:
            before = [self._span(step, [*before, *order[min(step.op.step, len(order) - 1)]])]
        self._last = [*before, *(node for _, after in links.values() for node in after)]

    def _span(self, s: Span, deps: list[int], *, since: float | None = None, until: float | None = None) -> int:
        """Add a program, or the part of it between two moments."""
        op = s.op
        start = s.start if since is None else since
        end = s.end if until is None else until
        if s.kind == "host":
            return self._add(Node(0, f"launch of {name(s)}", COMP, start, end, deps, {"is_cpu_op": True}, None))
        share = (end - start) / (s.end - s.start)
        called = name(s) + ("" if until is None else ", first part") + ("" if since is None else ", the rest")
        about: dict[str, Any] = {"is_cpu_op": False}
        if s.kind != "collective":
            made = math.prod(op.output)
            moved = read_bytes(op) + made * BYTES.get(op.dtype, 0.0)
            about |= {"num_ops": round((s.flops or made) * share), "tensor_size": round(moved * share)}
            return self._add(Node(0, called, COMP, start, end, deps, about, op))
        if op.name not in _COLLECTIVES:
            known = ", ".join(_COLLECTIVES)
            raise UserError(f"Chakra has no name for the collective {op.name} (it has {known}); leave out --chakra.")
        about |= {"comm_type": _COLLECTIVES[op.name], "comm_size": round(op.bytes * share)}
        about["pg_name"] = self._numbers[self._groups[op.group].ranks]
        return self._add(Node(0, called, COLLECTIVE, start, end, deps, about, op))

    def _add(self, node: Node) -> int:
        """Add a node whose times are in ns, round them, and return its number."""
        node.id = len(self._nodes)
        node.deps = sorted(set(node.deps))
        node.start = round(node.start / 1000)
        node.end = round(node.end / 1000)
        self._nodes.append(node)
        return node.id


def _varint(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _attribute(key: str, value: str | int) -> bytes:
    """Return an ``AttributeProto``."""
    return _text(1, key) + (_text(_STRING, value) if isinstance(value, str) else _number(_FIELDS[key], int(value)))
