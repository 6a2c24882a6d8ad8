"""What ``refsim time`` and ``refsim plan`` print as JSON: a prediction, and what belongs to it alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from refsim.base.padded import Padded
from refsim.files.keys import Document, Key, Sometimes
from refsim.timing.predict.advice import Layer
from refsim.timing.predict.critical import critical_path
from refsim.timing.predict.device_memory import MemoryGb
from refsim.timing.predict.estimate import Estimate, Predicted
from refsim.timing.predict.plan import Candidate
from refsim.timing.read.program import programs
from refsim.timing.read.reading import Reading
from refsim.timing.report.side_by_side import OpClass


@dataclass
class CriticalPath:
    """Seconds of the denoising loop if every collective ran as soon as what it reads is there."""

    overlapped_seconds: float
    dependencies_alone_seconds: float
    by_kind: dict[str, float]

    @classmethod
    def of(cls, estimate: Estimate, reading: Reading) -> CriticalPath:
        """Return the critical path of the denoising loop, without the gathering of weights."""
        path = critical_path(programs(reading.ops), reading.ops, estimate.machine)
        overlapped = estimate.at_power_limit(path.ns)
        count = estimate.forwards_per_step * estimate.steps / 1e9
        by_kind = {kind: ns * count * overlapped / path.ns for kind, ns in path.by_kind.items()}
        return cls(overlapped * count, path.chain_ns * estimate.timeline.beyond * count, by_kind)


@dataclass
class InTtnn:
    """The model's own program in TTNN, priced by the same timing model.

    Attributes:
        ran: what was built.
        seconds: of the denoising loop.
        unpriced: ``op``, ``reason``, ``count`` in a forward; no part of the seconds.
    """

    ran: str
    seconds: float
    reference_seconds: float
    classes: list[OpClass]
    unpriced: list[dict[str, Any]]


@dataclass(kw_only=True)
class Time(Document, Predicted):
    """One configuration of one model.

    Attributes:
        unclassified: Norms and softmaxes that are priced as loose operations, with their number.
    """

    critical_path: CriticalPath
    unclassified: dict[str, int]
    ttnn: Sometimes[InTtnn] = None
    layers: Sometimes[list[Layer]] = None


@dataclass
class DoesNotFit(Document):
    """A configuration that does not fit the devices' memory; exit code 1."""

    model: str
    size: str
    mesh: str
    parallel: str
    topology: str
    links: tuple[int, ...]
    memory_gb: MemoryGb
    seconds: None = None

    @classmethod
    def of(cls, estimate: Estimate) -> DoesNotFit:
        """Leave the seconds out of a prediction."""
        row = estimate.row()
        return cls(row.model, row.size, row.mesh, row.parallel, row.topology, estimate.mesh.links, row.memory_gb)


@dataclass(kw_only=True)
class Planned(Predicted):
    """A configuration by rank.

    Attributes:
        tt_dit: ``runs``, or why tt_dit cannot be asked to run it today.
        padded: What is padded, with what it adds; ``seconds`` and ``memory_gb`` have it in them.
    """

    rank: int
    best_of_rank: bool
    distinguishable_from_first: bool
    would_save: dict[str, float]
    seconds_by_wiring: dict[str, float]
    tt_dit: Annotated[str, Key("tt_dit_today")]
    padded: list[Padded]

    @classmethod
    def of(cls, c: Candidate) -> Planned:
        """Return a candidate that runs."""
        wired = {"topology": c.wiring.topology, "links": c.wiring.links}
        return cls(
            **vars(c.estimate.row()) | wired,
            rank=c.rank,
            best_of_rank=c.best,
            distinguishable_from_first=c.apart,
            would_save=c.savings,
            seconds_by_wiring={str(wiring): seconds for wiring, seconds in c.seconds.items()},
            tt_dit=c.tt_dit_refusal or "runs",
            padded=c.padded,
        )


@dataclass
class Infeasible:
    """A configuration, or a wiring of the mesh, that cannot run."""

    parallel: Sometimes[str]
    wiring: Sometimes[str]
    reason: str


@dataclass
class Plan(Document):
    """What runs, by rank, and what does not."""

    plans: list[Planned]
    infeasible: list[Infeasible]

    @classmethod
    def of(cls, runs: list[Candidate], refused: list[Candidate], limits: dict[str, str], top: int) -> Plan:
        """Keep the first ``top`` ranks of what runs; ``limits``: wirings that the mesh does not have, and why."""
        infeasible = [Infeasible(c.text, None, c.reason) for c in refused]
        infeasible += [Infeasible(None, wiring, why) for wiring, why in limits.items()]
        return cls([Planned.of(c) for c in runs if c.rank <= top], infeasible)
