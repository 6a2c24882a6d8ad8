"""Every parallel configuration of a mesh for a model, ranked by predicted time; those that cannot run, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from refsim.config import DiTParallelConfig, parse_parallel
from refsim.errors import RefsimError, UserError
from refsim.mesh import MeshSpec
from refsim.timing import estimate as estimates
from refsim.timing.estimate import Estimate
from refsim.timing.reading import read_published

_HELP = {
    "compute": "faster kernels or more devices",
    "fabric": "more links, a Ring, fused collectives, or less tensor parallelism",
    "dram": "fused elementwise ops and norms",
    "noc": "larger tensors per device: less tensor and sequence parallelism, or merged linears",
    "launch": "fewer, larger programs",
    "host": "a trace of the whole step",
}


@dataclass
class Candidate:
    text: str
    attention: str
    estimate: Estimate | None
    reason: str = ""
    rank: int = 0

    @property
    def helps(self) -> str:
        return _HELP[self.estimate.bound] if self.estimate else ""


def configurations(mesh: MeshSpec) -> Iterator[DiTParallelConfig]:
    """Each (cfg, sp, tp, ring, ulysses, axes) that uses the mesh as a whole, once."""
    seen = set()
    n = mesh.num_devices
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    for cfg, tp in itertools.product((1, 2), divisors):
        if n % (cfg * tp):
            continue
        sp = n // cfg // tp
        for sp_axis, cfg_axis, ulysses in itertools.product((0, 1), (0, 1), (d for d in divisors if sp % d == 0)):
            text = f"cfg{cfg}@{cfg_axis}_sp{sp}@{sp_axis}_tp{tp}@{1 - sp_axis}"
            try:
                found = parse_parallel(text, mesh, attention="usp", ring=sp // ulysses, ulysses=ulysses)
            except UserError:
                continue  # the factors do not lie on these axes
            if estimates.describe(found) not in seen:
                seen.add(estimates.describe(found))
                yield found


def plan(
    name: str, mesh: MeshSpec, *, size: str | None = None, progress: Callable[[str], None] = lambda text: None
) -> list[Candidate]:
    """Candidates that run, fastest first, then those that do not."""
    name, model = estimates.find(name)
    size, shape = estimates.latent(model, size)
    found: list[Candidate] = []
    for parallel in configurations(mesh):
        text = estimates.describe(parallel)
        progress(text)
        try:
            reading = read_published(model, shape, mesh, parallel, batch=parallel.cfg)
            guess = estimates.estimate(name, mesh, parallel, size=size, reading=reading)
        except (RefsimError, AssertionError) as error:
            found.append(Candidate(text, parallel.attention, None, str(error)))
            continue
        m = guess.memory
        reason = "" if m.fits else f"needs {m.total / 1e9:.1f} GB of {m.capacity / 1e9:.1f} GB per device"
        found.append(Candidate(text, parallel.attention, guess, reason))
    return ranked(found)


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Fastest first; the same scheme mirrored takes the same time and shares its rank."""
    found = sorted(candidates, key=lambda c: (bool(c.reason), c.estimate.seconds if c.estimate else 0.0))
    rank, last = 0, 0.0
    for c in found:
        if not c.reason and c.estimate:
            rank += not math.isclose(c.estimate.seconds, last, rel_tol=1e-6)
            c.rank, last = rank, c.estimate.seconds
    return found
