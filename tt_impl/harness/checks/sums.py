"""Sums that are spread over an axis: from the matmul that makes them to the collective that must add them up.

    x cut along its columns  @  weight cut along its rows  -->  every device holds a part of the sum
    part --> reshape, add, scale, ... --> reduce_scatter, all_reduce      right
    part --> all_gather --> sum over the gathered dim                     right
    part --> gelu, layer_norm, attention, ...                             wrong: not the function of the sum
    part --> all_gather --> gelu, layer_norm, ...                         wrong: not added up yet
    sum or mean of a dim that is cut --> rsqrt, ...                       wrong: that of one device's part of it
    part of one device --> host                                           wrong: one part only
    parts of all devices --> host                                         a note: the host has to add them up
    part + what all devices hold --> reduce_scatter                       wrong: counted once per device
    part + 1/n of what all devices hold --> reduce_scatter                right: counted once

Only weights that came from the host are known to be cut as ttnn says; what it says of results is often nominal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tt_impl.harness.checks import NOTE
from tt_impl.harness.checks.cuts import FROM_HOST, Cuts, cut_dims, is_dim
from tt_impl.harness.checks.fabric import groups
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.linear import Effect, bare, effect, number_of, operands
from tt_impl.harness.checks.reads import HOST, is_output, succeeded
from tt_impl.mock.log.events import Event, EventLog, TensorUse

_MATMULS = {
    **dict.fromkeys("linear matmul experimental.minimal_matmul experimental.minimal_matmul_split".split(), (0, 1)),
    "experimental.dit_minimal_matmul_addcmul_fused": (0, 1),
    "addmm": (1, 2),
}
"""Products of matrices, each with the places of what is multiplied by a weight and of the weight."""
_REDUCTIONS = frozenset({"sum", "mean"})
_SUMS_UP = frozenset({"reduce_scatter", "all_reduce"})
_ADDS_GATHERED = frozenset(
    "add fast_reduce_nc linear matmul mean moreh_mean moreh_sum sum".split()
    + "experimental.fast_reduce_nc experimental.deepseek_moe_fast_reduce_nc experimental.minimal_matmul".split()
)
"""What may add up the parts of one sum that were gathered: along a dim, slice by slice, or by a matrix of ones."""


@dataclass(frozen=True)
class _Part:
    """A part of a sum: over which axis it is spread, who made it, and who added what all devices hold.

    ``gathered``: every device holds all parts by now, side by side. ``reduced``: of a dim that is cut, not of a matmul.
    """

    axis: int
    made: Event
    added: Event | None = None
    gathered: Event | None = None
    reduced: bool = False

    @property
    def sentence(self) -> str:
        """What its maker does, as part of a sentence."""
        if self.reduced:
            return f"adds up a dim that is cut along axis {self.axis} of the mesh"
        return f"multiplies by a weight that is cut along axis {self.axis} in the dim that is summed over"


def partial_sums(log: EventLog) -> Iterator[Finding]:
    """Find parts of sums that are used as sums, and what is added to each part although it belongs to the sum once."""
    sums = _Sums()
    for event in succeeded(log):
        yield from sums.follow(event)
    for part, finding in sums.of_reductions:
        if part.made.number not in sums.crossed:
            yield finding
    for part, event, devices in sums.read.values():
        yield _left_by_the_host(event, part, devices)


class _Sums:
    """The parts of sums that a program has, while its calls are followed one by one.

    Attributes:
        read: by call that made parts, what the host read of them: the part, the first read, and the devices.
        of_reductions: what is found of sums and means over a dim that is cut. Welford's way uses those of each device
            and merges them afterwards, so they count only if no collective takes them along the axis.
        crossed: the calls that made parts which a collective took.
    """

    def __init__(self) -> None:
        self.read: dict[int, tuple[_Part, Event, set[int]]] = {}
        self.of_reductions: list[tuple[_Part, Finding]] = []
        self.crossed: set[int] = set()
        self._weights: dict[int, TensorUse] = {}
        self._parts: dict[int, _Part] = {}
        self._shares: dict[int, float] = {}
        self._cuts = Cuts()

    def follow(self, event: Event) -> Iterator[Finding]:
        """Find what a call does wrong with parts of sums, and take over what it makes of them."""
        if event.op in FROM_HOST and not event.inputs:
            self._weights |= {use.buffer: use for use in event.outputs}
        uses = [use for use in event.inputs if use.buffer in self._parts and not is_output(use)]
        part = self._parts[uses[0].buffer] if uses else None
        if part is not None and event.op in HOST:
            if part.gathered is None and not part.reduced:
                _, _, devices = self.read.setdefault(part.made.number, (part, event, set()))
                devices.update(*(use.devices for use in event.inputs))
        elif part is not None:
            does = self._effect(event, part, uses)
            if part.reduced:
                self.of_reductions += [(part, finding) for finding in _misused(event, part, does)]
            else:
                yield from _misused(event, part, does)
            if any(c["axis"] in (None, part.axis) for c in event.collectives):
                self.crossed |= {self._parts[use.buffer].made.number for use in uses}
            part = _onwards(event, part, does)
        if part is None and (made := self._made(event)) is not None:
            part, x = made
            does = self._effect(event, part, [x])
            if does is Effect.SPOILS:
                yield _nonlinear(event, part)
            part = {Effect.KEEPS: part, Effect.ADDS: replace(part, added=event), Effect.SPOILS: None}[does]
        share = self._share(event)
        for use in (*event.outputs, *(use for use in event.inputs if use.buffer in event.written)):
            self._parts.pop(use.buffer, None)
            self._shares[use.buffer] = share
            if part is not None:
                self._parts[use.buffer] = part
        self._cuts.follow(event)

    def _effect(self, event: Event, part: _Part, uses: list[TensorUse]) -> Effect:
        """Say what a call does with parts; a sum over columns is no part of what is beside other columns of its own."""
        others = [use for use in operands(event).values() if not any(use is part for part in uses)]
        if part.reduced and any(part.axis in self._cuts.of(use) for use in others):
            return Effect.SPOILS
        size = event.mesh[part.axis] if part.axis < len(event.mesh) else len(event.devices)
        wholes = [
            use
            for use in others
            if cut_dims(use)[part.axis] is None
            and not math.isclose(self._shares.get(use.buffer, 1.0) * size, 1.0, rel_tol=1e-2)
        ]
        return effect(event, uses, wholes)

    def _share(self, event: Event) -> float:
        """Return by which number the result of a call of one tensor was multiplied, along its way from the host."""
        uses = list(operands(event).values())
        if len(uses) != 1:
            return 1.0
        share = self._shares.get(uses[0].buffer, 1.0)
        number = number_of(event)
        if number is not None and bare(event) == "multiply":
            return share * number
        return share / number if number and bare(event) in ("div", "divide") else share

    def _made(self, event: Event) -> tuple[_Part, TensorUse] | None:
        """Return the part of a sum that a call makes, and of which operand: over a dim that is cut along an axis."""
        name = bare(event)
        uses = operands(event)
        if name in _REDUCTIONS and 0 in uses:
            dims = _dims(event, len(uses[0].shape))
            axes = [axis for axis, (_, dim) in self._cuts.of(uses[0]).items() if dim in dims]
            return (_Part(axes[0], event, reduced=True), uses[0]) if axes else None
        places = _MATMULS.get(name)
        if places is None or not {*places} <= uses.keys():
            return None
        x, weight = (uses[place] for place in places)
        placed = self._weights.get(weight.buffer)
        if placed is None or weight.tensor != placed.tensor or len(weight.shape) < 2:
            return None
        inner = -1 if event.options.get("transpose_b") else -2
        for axis, dim in enumerate(cut_dims(weight)):
            if is_dim(weight, dim, inner) and cut_dims(x)[axis] is not None:
                return _Part(axis, event), x
        return None


def _dims(event: Event, rank: int) -> set[int]:
    """Return the dims, counted from the last, that a reduction adds up."""
    dim = event.options.get("dim", event.options.get("1"))
    chosen = range(rank) if dim is None else dim if isinstance(dim, list) else [dim]
    return {one % rank - rank for one in chosen if isinstance(one, int)}


def _left_by_the_host(event: Event, part: _Part, devices: set[int]) -> Finding:
    """Say that parts of a sum are read to the host: some of them, or all, which the host can still add up."""
    made = part.made
    axes = [set(group) & devices for group in groups(made.mesh, made.devices, part.axis)]
    size = len(made.devices) // len(axes)
    cut = f"of {at(made)}, whose weight is cut along axis {part.axis} of the mesh in the dim that is summed over"
    if all(len(seen) in (0, size) for seen in axes):
        sentence = f"{event.op} reads parts of the sum {cut}: add all {size} of them up on the host."
        return Finding.of("partial-sum", event, sentence, NOTE)
    remedy = "reduce_scatter or all_reduce along it before"
    return Finding.of("partial-sum", event, f"{event.op} reads one part of {size} of the sum {cut}: {remedy}.")


def _onwards(event: Event, part: _Part, does: Effect) -> _Part | None:
    """Return what is left of a part after ``event``; None if it became a sum, or was reported."""
    crossed = {c["collective"] for c in event.collectives if c["axis"] in (None, part.axis)}
    if crossed == {"all_gather"} and not any("within" in c for c in event.collectives):
        return replace(part, gathered=event)
    if crossed or does is Effect.SPOILS or (part.gathered is not None and bare(event) in _ADDS_GATHERED):
        return None
    return replace(part, added=event) if does is Effect.ADDS and part.added is None else part


def _misused(event: Event, part: _Part, does: Effect) -> Iterator[Finding]:
    adds_up = part.gathered is not None and bare(event) in _ADDS_GATHERED and bare(event) not in _MATMULS
    if does is Effect.SPOILS and not adds_up:
        yield _nonlinear(event, part)
    elif part.added is not None and any(
        c["collective"] in _SUMS_UP and c["axis"] in (None, part.axis) for c in event.collectives
    ):
        yield Finding.of(
            "bias-summed", part.added,
            f"{part.added.op} adds on every device of axis {part.axis} what {at(event)} then adds up, once per device: "
            "add it after the sum, or on one device of the axis only.",
        )  # fmt: skip


def _nonlinear(event: Event, part: _Part) -> Finding:
    made = "it" if part.made is event and part.reduced else "this matmul" if part.made is event else at(part.made)
    remedy = "reduce_scatter or all_reduce along it before"
    if part.gathered is not None:
        remedy = f"what {at(part.gathered)} puts side by side has to be added up before"
    return Finding.of(
        "partial-sum", event,
        f"{event.op} takes for a sum what is part of one: {made} {part.sentence}; {remedy}.",
    )  # fmt: skip
