"""Every collective of ``refsim.ccl`` on one group, judged by what torch makes of all members' tensors in one place.

The numbers are whole and small, so that every order of additions gives the same bits, in bf16 too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.inputs import generator
from parity.kinds.base import CpuKind, Metrics
from parity.measure.thresholds import Threshold
from refsim.base.mesh import Topology
from refsim.ccl import all_gather, all_reduce, all_to_all, broadcast, neighbor_pad, reduce_scatter, shift
from refsim.pipelines.transformer import digest
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.group import Group, parallel_groups
from refsim.runtime.launch import Result

_CHUNK_BYTES = 100
"""Less than a third of what is sent at a time, which it does not divide: the last piece is shorter."""
_SAME = (
    Threshold("wrong_answers", 0, "sums of small whole numbers are exact, and everything else is copied"),
    Threshold("wrong_transfers", 0, "how much each member sends, to whom and into which buffer, is documented"),
)


class Collectives(CpuKind):
    """The group is that of sequence parallelism; every member's answers are judged."""

    thresholds: ClassVar = {"fp32": _SAME, "bf16": _SAME}

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        options = layout.options(case.dtype, **{"trace": True} | more)
        return launch.execute("parity.kinds.cpu.collectives:program", options, {"seed": seed})

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        """Count answers of all ranks that differ from torch's, and transfers that differ from what is documented."""
        size = case.layout.config().sp
        options = case.layout.options(case.dtype)
        whole = [draw(seed, member, size, options.storage) for member in range(size)]
        wrong = 0
        transfers = 0
        for rank, value in enumerate(result.values):
            group = parallel_groups(options.mesh, options.parallel, rank)["sp"]
            wanted = expected(whole, group.index)
            answers = value["digests"]
            if not shifts(group):
                del wanted["shift"]
            wrong += len(wanted.keys() ^ answers.keys())
            wrong += sum(answers[name] != digest(wanted[name]) for name in wanted.keys() & answers.keys())
            transfers += value["handed_over"] != handed_over(group)
            events = [event for event in result.trace if event["rank"] == rank]
            transfers += misplaced(events, group) + misled(events, group) + unlike_formula(events, group, whole[0])
        if size == 1:  # nobody to send to, nothing to compute
            transfers += len(result.collectives) + sum(result.bytes_by_collective.values())
            transfers += len(result.value["copied"])
        return {"wrong_answers": wrong, "wrong_transfers": transfers}


def program(device: Device, *, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run every collective that the group's topology allows."""
    group = device.groups["sp"]
    chunks = {"chunk_bytes": _CHUNK_BYTES}
    x = draw(seed, group.index, group.size, device.options.storage)
    results = {
        "all_gather": all_gather(device, x, group, dim=1, **chunks),
        "reduce_scatter": reduce_scatter(device, x, group, dim=2, **chunks),
        "all_reduce": all_reduce(device, x[1:], group, **chunks),
        "all_to_all": all_to_all(device, x, group, split_dim=0, concat_dim=1, **chunks),
        "broadcast": broadcast(device, x, group, root=group.size - 1, **chunks),
        "neighbor_pad": neighbor_pad(device, x, group, dim=1, by=2, **chunks),
    }
    if shifts(group):
        results["shift"] = shift(device, x, group, **chunks)
    # on one device a collective may answer with its argument, which several answers would then share
    answers = {name: x.clone(memory_format=torch.contiguous_format) for name, x in results.items()}
    memory = x.untyped_storage().data_ptr()
    answered = [(name, y) for name, y in results.items() if name != "neighbor_pad"]  # which has zeros to add, alone too
    copied = [name for name, y in answered if y.untyped_storage().data_ptr() != memory]
    digests = {name: digest(x) for name, x in answers.items()}
    handed = sum("hand-over" in use for use in device.uses.as_json()["uses"])
    return {"digests": digests, "copied": copied, "handed_over": handed}, answers


def shifts(group: Group) -> bool:
    """Whether a shift is possible: on a Ring, between two members, or alone."""
    return group.topology is Topology.RING or group.size <= 2


def handed_over(group: Group) -> int:
    """Count the buffers a member receives into and hands over: of a broadcast by the last member, and of a shift."""
    return (group.index != group.size - 1) + (group.size > 1 and shifts(group))


def misplaced(trace: list[dict[str, Any]], group: Group) -> int:
    """Count a member's borders that arrived in the buffer of the other side: that of the member before is [0]."""
    borders = [event for event in trace if event["collective"] == "neighbor_pad" and event["op"] == "recv"]
    sides = [(event["buffer"], int(group.ranks.index(event["peer"]) > group.index)) for event in borders]
    return sum(buffer != f"neighbor_pad.arrived[{side}]" for buffer, side in sides)


def misled(trace: list[dict[str, Any]], group: Group) -> int:
    """Count a member's sends that go elsewhere than is documented: to a neighbour, and on a Ring to the right only but
    for two arms of a broadcast and both borders; all_to_all sends at step d to the member that is d away.
    """
    wrong = 0
    n = group.size
    ring = group.topology is Topology.RING
    for event in trace:
        if event["op"] == "send":
            away = group.ranks.index(event["peer"]) - group.index
            name = _first(event)
            if name == "all_to_all":
                right = event["step"] == (away % n if ring else abs(away))
            elif ring and name not in ("broadcast", "neighbor_pad"):
                right = away % n == 1
            else:
                right = abs(away) == 1 or (ring and name == "broadcast" and abs(away) == n - 1)
            wrong += not right
    return wrong


def unlike_formula(trace: list[dict[str, Any]], group: Group, x: Tensor) -> int:
    """Count the collectives of which a member, with a tensor like ``x``, sends other bytes than is documented."""
    sent = Counter[str]()
    for event in trace:
        if event["op"] == "send":
            sent[_first(event)] += event["bytes"]
    n = group.size
    i = group.index
    size = x.nbytes
    row = x[:, :1].nbytes
    ring = group.topology is Topology.RING
    part = -(-x[1:].numel() // n) * x.element_size()
    gathered = n - 1 if ring else (i + 1) * (i < n - 1) + (n - i) * (i > 0)
    arm = n // 2  # of a broadcast by the last member of a Ring, to the right; the other one is as long or one shorter
    passed = (n > 1) + (n > 2) if i == n - 1 else int(i + 1 not in (arm, arm + 1))
    wanted = {
        "all_gather": gathered * size,
        "reduce_scatter": (n - 1) * size // n,
        "all_reduce": (n - 1 + gathered) * part,
        "all_to_all": (n - 1) * size // n,
        "broadcast": (passed if ring else i > 0) * size,
        "neighbor_pad": ((i > 0) + (i < n - 1)) * 2 * row,
        "shift": size if shifts(group) and n > 1 else 0,
    }
    return sum(sent[name] != count for name, count in wanted.items())


def _first(event: dict[str, Any]) -> str:
    """Return the collective that was called, in which others may run."""
    return event["collective"].partition("/")[0]


def expected(whole: list[Tensor], member: int) -> dict[str, Tensor]:
    """Return what ``member`` is to get, from the tensors of all."""
    size = len(whole)
    total = torch.stack(whole).sum(0)
    ends = torch.zeros_like(whole[0][:, :2])
    before = whole[member - 1][:, -2:] if member else ends
    after = whole[member + 1][:, :2] if member + 1 < size else ends
    return {
        "all_gather": torch.cat(whole, 1),
        "reduce_scatter": total.chunk(size, 2)[member],
        "all_reduce": total[1:],
        "all_to_all": torch.cat([x.chunk(size, 0)[member] for x in whole], 1),
        "broadcast": whole[-1],
        "neighbor_pad": torch.cat([before, whole[member], after], 1),
        "shift": whole[member - 1],
    }


def draw(seed: int, member: int, size: int, dtype: torch.dtype) -> Tensor:
    """Draw a member's tensor (2 size, 5, 7 size) of whole numbers from -8 to 8."""
    shape = 2 * size, 5, 7 * size
    return torch.randint(-8, 9, shape, generator=generator(seed, "collectives", member)).to(dtype)
