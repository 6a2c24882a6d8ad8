"""What the programs of buffer policies are made of: operations, threads, links, and the fabric they run on.

A device has one thread, or with ``Fabric.workers`` a thread that computes and one per outgoing link that sends and
passes on. Threads of a device know of each other by flags only; within a call all of them run at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from refsim.base.errors import UserError
from refsim.base.mesh import Topology


class Place(NamedTuple):
    """A region of a buffer of one rank."""

    buffer: str
    region: int


class Link(NamedTuple):
    """An ordered way from one rank to another; ``channel`` tells those between the same two ranks apart."""

    source: int
    to: int
    channel: int


NOWHERE = Link(-1, -1, -1)


@dataclass(frozen=True)
class Op:
    """One operation of a thread.

    ``send`` puts version ``version`` into ``place`` of the rank at the other end of ``link``, out of ``source`` here,
    once that rank has given credit ``n``; ``read`` computes on ``place``, which must hold ``version``; ``write`` fills
    it locally; ``arrived`` waits for the n-th arrival on ``link``, ``sent`` until n sends have left on it; ``credit``
    frees room for the n-th transfer on ``link``; ``signal`` raises a flag (the first of ``flags``) to n + 1 and
    ``wait`` waits until all ``flags`` are that high; ``work`` is the rest of a layer, or with n an attention step. An
    attention step is cut into the n pieces of K and V that ``read`` reads one of.
    """

    kind: str
    layer: int
    step: int
    place: Place | None = None
    version: tuple[int, int] = (0, 0)
    source: Place | None = None
    n: int = 0
    link: Link = NOWHERE
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" {self.place.buffer}[shard {self.version[1]}]" if self.place else ""
        return f"{self.kind} of layer {self.layer}, step {self.step}{where}"


@dataclass
class Thread:
    """What one thread of a device does, in order; ``name`` is empty for the one that computes."""

    rank: int
    ops: list[Op] = field(default_factory=list)
    name: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank}" + (f" ({self.name})" if self.name else "")


Program = list[Thread]
"""The computing threads by rank, then the workers."""


@dataclass(frozen=True)
class Fabric:
    """How shards travel along the axis.

    Attributes:
        topology: on a Ring all shards travel to the right, on a Line each goes both ways to the ends.
        links: each carries its own slice of every shard, in its own time.
        split: on a Ring shards go both ways, half as far; of an even ring the farthest one comes half from each side.
        workers: sends and passing on have threads of their own, one per outgoing link.
    """

    topology: Topology = Topology.RING
    links: int = 1
    split: bool = False
    workers: bool = False

    def __post_init__(self) -> None:
        if self.links < 1:
            raise UserError(f"a fabric has 1 link or more, not {self.links}.")
        if self.split and self.topology is not Topology.RING:
            raise UserError("only a ring can be split, since on a line every shard goes both ways; leave one out.")

    def __str__(self) -> str:
        parts = ["split ring" if self.split else "ring" if self.topology is Topology.RING else "line"]
        parts += [f"{self.links} links"] if self.links > 1 else []
        return ", ".join(parts + (["workers"] if self.workers else []))

    @classmethod
    def of(cls, text: str) -> Fabric:
        """Read a fabric from what it is as text: ``split ring, 2 links, workers``.

        Raises:
            UserError: a part of it says nothing.
        """
        kind, *parts = (part.strip() for part in text.split(","))
        links = [part.split()[0] for part in parts if re.fullmatch(r"[1-9]\d* links?", part)]
        if kind not in ("ring", "line", "split ring") or set(parts) - {f"{n} links" for n in links} - {"workers"}:
            raise UserError(
                f"'{text}' is no fabric; begin with ring, line or split ring, then, with commas, '2 links', 'workers'."
            )
        topology = Topology.LINEAR if kind == "line" else Topology.RING
        return cls(topology, int(links[0]) if links else 1, kind == "split ring", "workers" in parts)

    @property
    def slices(self) -> int:
        """Return the pieces of a shard that travel apart."""
        return self.links * (2 if self.split else 1)


@dataclass(frozen=True)
class Stream:
    """The shards that pass a rank in one direction (+1: to the right)."""

    rank: int
    ranks: int
    direction: int
    fabric: Fabric

    @property
    def hops(self) -> int:
        """Return how far a shard goes."""
        n = self.ranks
        if self.fabric.split:
            return n // 2
        return n - 1 if self.direction > 0 or self.fabric.topology is not Topology.RING else 0

    def shard(self, step: int) -> int | None:
        """Return the shard that is here at ``step``, None if none is."""
        shard = self.rank - self.direction * step
        if self.fabric.topology is Topology.RING:
            return shard % self.ranks if step <= self.hops else None
        return shard if 0 <= shard < self.ranks else None

    def passes_on(self, step: int) -> bool:
        """Whether the next rank gets the shard of ``step`` as well."""
        to = self.rank + self.direction
        there = self.fabric.topology is Topology.RING or 0 <= to < self.ranks
        return self.shard(step) is not None and there and step < self.hops

    def slices(self, step: int, channel: int) -> list[int]:
        """Return the slices of a shard that ``channel`` brings here at ``step``."""
        if not self.fabric.split:
            return [channel]
        halves = [2 * channel, 2 * channel + 1]
        if self.ranks % 2 == 0 and step == self.hops:
            return halves[:1] if self.direction > 0 else halves[1:]
        return halves

    def link(self, channel: int, *, incoming: bool) -> Link:
        """Return the link by which the shards come, or on which they go on."""
        here = self.rank
        channel = 2 * channel + (self.direction < 0)
        if incoming:
            return Link((here - self.direction) % self.ranks, here, channel)
        return Link(here, (here + self.direction) % self.ranks, channel)


def streams(rank: int, ranks: int, fabric: Fabric) -> list[Stream]:
    """Return the directions in which shards pass a rank."""
    both = [Stream(rank, ranks, direction, fabric) for direction in (1, -1)]
    return [stream for stream in both if stream.hops]


def steps(passing: list[Stream]) -> Iterator[int]:
    """Yield the steps at which something is here, or may be."""
    yield from range(1 + max(stream.hops for stream in passing))
