"""Every parallel configuration of a mesh for a model, by predicted time; those that cannot run, and why.

Ranked are the factors cfg, sp and tp by the fastest of the ways to lay them out (axes, ring x ulysses, wiring).

cfg x sp x tp x (ring x ulysses) x mesh axes      one reading each
    x topology (Ring where the axes are wired as one, Linear) x links (1 .. what the mesh has)     one replay each
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from refsim.base.config import DiTParallelConfig, parse_parallel
from refsim.base.errors import RefsimError, UserError
from refsim.base.mesh import MeshSpec, Topology
from refsim.base.options import RunOptions
from refsim.base.padded import Padded
from refsim.models.figures import Execution
from refsim.models.registry import find, latent, spec_of
from refsim.timing.cost.fitted import Calibration
from refsim.timing.predict import advice, tt_dit
from refsim.timing.predict import estimate as estimates
from refsim.timing.predict.estimate import Estimate
from refsim.timing.predict.ranges import distinguishable
from refsim.timing.read.reading import Reading, read_published


@dataclass(frozen=True, order=True)
class Wiring:
    """How much of the fabric is used: ``links`` per hop at most, and wrap-around links or not."""

    links: int
    topology: str

    def __str__(self) -> str:
        return f"{self.topology} x{self.links}" if self.links else "-"

    def allowed(self, topology: str | None, links: int | None) -> bool:
        """Whether this wiring keeps to a topology and a number of links; one device, which needs neither, does."""
        return not self.links or (topology in (None, self.topology) and self.links <= (links or self.links))


@dataclass(frozen=True)
class Only:
    """What a plan is limited to.

    Attributes:
        attention: ``ring``, ``ulysses`` or ``usp``.
        topology: wirings with this topology, ``Ring`` or ``Linear``.
        links: wirings with at most so many links.
        tt_dit: what tt_dit can be asked to run (``tt_dit.py``); the others get its refusal as their reason.
    """

    attention: str | None = None
    topology: str | None = None
    links: int | None = None
    tt_dit: bool = False


@dataclass
class Candidate:
    """A configuration; ``seconds`` by wiring, of which ``estimate`` has the best; ``reason`` why it cannot run.

    ``rank`` is that of its factors (cfg, sp, tp); ``best`` if it is the fastest way to lay them out; ``apart`` unless
    it differs from the first of all by less than the model may err
    (:func:`refsim.timing.predict.ranges.distinguishable`).
    """

    text: str
    attention: str
    estimate: Estimate | None
    reason: str = ""
    rank: int = 0
    best: bool = False
    wiring: Wiring = Wiring(0, "Linear")
    seconds: dict[Wiring, float] = field(default_factory=dict)
    tt_dit_refusal: str = ""
    apart: bool = True
    padded: list[Padded] = field(default_factory=list)

    @property
    def savings(self) -> dict[str, float]:
        """Return the share of the denoising time that each improvement, alone, would save; largest first."""
        if self.estimate is None:
            return {}
        return advice.of_whole(self.estimate.timeline)


def configurations(mesh: MeshSpec) -> Iterator[DiTParallelConfig | str]:
    """Yield each (cfg, sp, tp, ring, ulysses, axes) that uses the whole mesh, once; as text if it fits no axes."""
    seen = set()
    n = mesh.num_devices
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    for cfg, tp in itertools.product((1, 2), divisors):
        if n % (cfg * tp):
            continue
        sp = n // cfg // tp
        fits = False
        for sp_axis, cfg_axis, ulysses in itertools.product((0, 1), (0, 1), (d for d in divisors if sp % d == 0)):
            text = f"cfg{cfg}@{cfg_axis}_sp{sp}@{sp_axis}_tp{tp}@{1 - sp_axis}"
            try:
                config = parse_parallel(text, mesh, attention="usp", ring=sp // ulysses, ulysses=ulysses)
            except UserError:
                continue
            fits = True
            if estimates.describe(config) not in seen:
                seen.add(estimates.describe(config))
                yield config
        if not fits:
            yield "_".join(f"{name}{f}" for name, f in (("cfg", cfg), ("sp", sp), ("tp", tp)) if f > 1)


def wirings(mesh: MeshSpec, reading: Reading) -> list[Wiring]:
    """Return what the collectives of a reading can be run with; one number of links and one topology for both axes."""
    moved = [op for op in reading.ops if op.kind == "collective"]
    if not moved:
        return [Wiring(0, "Linear")]
    most = max((mesh.links[op.axis] for op in moved if isinstance(op.axis, int)), default=1)
    ring = any(op.topology is Topology.RING for op in moved)
    return [Wiring(n, t) for n in range(1, most + 1) for t in (("Linear", "Ring") if ring else ("Linear",))]


def limits(mesh: MeshSpec) -> dict[str, str]:
    """Return the wirings that no configuration of the mesh can have, and why."""
    reasons = {}
    if mesh.num_devices == 1:
        return reasons
    for axis, (size, links) in enumerate(zip(mesh.shape, mesh.links, strict=True)):
        if size > 1:
            reasons[f"more than {links} link{'s' * (links > 1)} on axis {axis}"] = f"mesh {mesh} has no more"
        if size > 1 and mesh.topology(axis) is not Topology.RING:
            why = "two devices make no ring" if size == 2 else "no link leads from its last device to its first"
            reasons[f"Ring on axis {axis}"] = why
    return reasons


def plan(
    name: str,
    mesh: MeshSpec,
    *,
    size: str | None = None,
    only: Only = Only(),
    calibration: Calibration | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """Return the candidates that run, by rank, then those that do not.

    Args:
        only: what it is limited to.
        calibration: another one than the stored one.
    """
    if calibration:
        calibration.of(mesh.arch)  # refuses another chip's before anything is read
    name, model = find(name)
    size, shape = latent(model, size)
    candidates: list[Candidate] = []
    for parallel in configurations(mesh):
        if isinstance(parallel, str):
            candidates.append(Candidate(parallel, "ring", None, f"does not lie on the axes of {mesh}"))
            continue
        if only.attention not in (None, parallel.attention):
            continue
        text = estimates.describe(parallel)
        progress(text)
        try:
            reading = read_published(model, shape, RunOptions(mesh, parallel, dtype="bf16"), batch=parallel.cfg)
            chosen = [w for w in wirings(mesh, reading) if w.allowed(only.topology, only.links)]
            if not chosen:
                raise UserError(f"it communicates over no {only.topology}.")
            candidates.append(_candidate(name, mesh, parallel, size, reading, chosen, calibration))
        except (RefsimError, AssertionError) as error:
            why = error.with_flags if isinstance(error, RefsimError) else str(error)
            candidates.append(Candidate(text, parallel.attention, None, why))
            continue
        config = model.config
        fsdp = candidates[-1].estimate.memory.fsdp
        candidates[-1].tt_dit_refusal = tt_dit.refusal(
            spec_of(model).tt_dit, parallel, config["num_attention_heads"], fsdp
        )
    return ranked(only_tt_dit(candidates) if only.tt_dit else candidates)


def only_tt_dit(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Return the candidates with tt_dit's refusal as the reason of those it does not run."""
    for c in candidates:
        yield replace(c, reason=c.reason or c.tt_dit_refusal)


def _candidate(
    name: str,
    mesh: MeshSpec,
    parallel: DiTParallelConfig,
    size: str,
    reading: Reading,
    wirings: list[Wiring],
    calibration: Calibration | None = None,
) -> Candidate:
    """Return the candidate of one configuration; of equally fast wirings, fewer links and no ring are best."""
    made: dict[Wiring, Estimate] = {}
    for wiring in wirings:
        on = replace(mesh, links=tuple(min(n, wiring.links) for n in mesh.links)) if wiring.links else mesh
        wired = Execution(topology=None if wiring.topology == "Ring" else Topology.LINEAR)
        made[wiring] = estimates.estimate(
            name, on, parallel, size=size, reading=reading, execution=wired, calibration=calibration
        )
    least = min(e.order[1] for e in made.values())
    best = min(w for w, e in made.items() if math.isclose(e.order[1], least, rel_tol=1e-6))
    m = made[best].memory
    reason = "" if m.fits else f"needs {m.total / 1e9:.1f} GB of {m.capacity / 1e9:.1f} GB per device"
    seconds = {w: e.seconds for w, e in made.items()}
    text = estimates.describe(parallel)
    more = {"wiring": best, "seconds": seconds, "padded": reading.padded}
    return Candidate(text, parallel.attention, made[best], reason, **more)


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort factors (cfg, sp, tp) by their fastest layout, and keep all layouts of one set together, fastest first."""
    every = list(candidates)
    runs = [c for c in every if not c.reason and c.estimate]
    least: dict[tuple[int, int, int], tuple[float, float]] = {}
    for c in sorted(runs, key=lambda c: c.estimate.order):
        least.setdefault(_factors(c), c.estimate.order)
    order = list(least)
    runs.sort(key=lambda c: (order.index(_factors(c)), c.estimate.order))
    for c in runs:
        c.rank = 1 + order.index(_factors(c))
        c.best = c.estimate.order == least[_factors(c)]
        c.apart = c is runs[0] or distinguishable(runs[0].estimate.by_kind, c.estimate.by_kind, c.estimate.mesh.arch)
    for c in (refused := [c for c in every if c.reason or not c.estimate]):
        c.rank = 0
        c.best = False
    return [*runs, *sorted(refused, key=lambda c: c.estimate.seconds if c.estimate else 0.0)]


def _factors(c: Candidate) -> tuple[int, int, int]:
    parallel = c.estimate.parallel
    return parallel.cfg, parallel.sp, parallel.tp
