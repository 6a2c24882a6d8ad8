"""Whether predictions put published systems and wirings in the right order, and how far apart.

    systems   every two published figures of one model at one size, of different meshes or factors
    wirings   two ways to run one configuration that somebody compared, all else the same (``Pair``)

Kendall's tau of a model: pairs of systems in the right order less those in the wrong one, over all pairs. Ranges of
figures are made without the figures of the model that is judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from refsim.base.config import parse_parallel
from refsim.base.mesh import get_mesh
from refsim.files.keys import Document
from refsim.files.tables import as_markdown
from refsim.models.figures import Execution, Figure, Pair
from refsim.models.registry import figures, measured
from refsim.timing.predict import estimate as estimates

HALF_WIDTH = 0.30
"""A range is useful to a planner if it is no wider to either side than this share of the prediction."""


@dataclass(frozen=True)
class Run:
    """A published pipeline: measured and predicted seconds, and the range of the prediction."""

    model: str
    size: str
    mesh: str
    parallel: str
    arch: str
    measured: float
    predicted: float
    low: float
    high: float
    source: str

    KEYS = (
        *("model", "size", "mesh", "parallel", "arch", "measured", "predicted", "low", "high", "source"),
        *("inside", "half_width"),
    )

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def half_width(self) -> float:
        """Return half the width of the range as a share of the prediction."""
        return (self.high - self.low) / 2 / self.predicted


@dataclass(frozen=True)
class Compared:
    """Two runs: how much longer the first one takes than the second one, measured and predicted."""

    model: str
    size: str
    first: str
    second: str
    measured: float
    predicted: float
    source: str

    KEYS = ("model", "size", "first", "second", "measured", "predicted", "source", "right")

    @property
    def right(self) -> bool:
        """Whether the prediction has the right sign; runs that are predicted alike have none."""
        return (self.measured > 1) == (self.predicted > 1) and self.predicted != 1


def runs(progress: Callable[[str], None] = lambda text: None) -> list[Run]:
    """Return all published pipelines; some seconds are spent on each."""
    return [_run(known, progress) for known in figures().values()]


def others(progress: Callable[[str], None] = lambda text: None) -> list[Run]:
    """Return pipelines that no range is made of."""
    return [_run(known, progress) for known in measured() if isinstance(known, Figure) and not known.judged]


def _run(known: Figure, progress: Callable[[str], None]) -> Run:
    progress(f"{known.model} {known.size} on {known.mesh}, {known.parallel}, {known.source}")
    e = estimates.as_published(known)
    r = e.range(without=known.model) if known.of == "denoising" else e.total_range(without=known.model)
    where = (known.model, known.size, known.mesh, known.parallel)
    about = (*where, e.mesh.arch, known.seconds, e.seconds_of(known))
    return Run(*about, r.low, r.high, known.source)


def wirings(progress: Callable[[str], None] = lambda text: None) -> list[Compared]:
    """Return all published comparisons of two wirings or two configurations of one mesh."""
    compared = []
    for pair in (each for each in measured() if isinstance(each, Pair)):
        progress(f"{pair.model} {pair.size} on {pair.mesh}, {pair.first.value} and {pair.second.value}")
        on = get_mesh(pair.mesh)
        seconds = []
        names = []
        for text, topology in ((pair.parallel, pair.first), (pair.other or pair.parallel, pair.second)):
            execution = Execution(topology=topology, fuse=pair.fused)
            parallel = parse_parallel(text, on)
            e = estimates.estimate(pair.model, on, parallel, size=pair.size, execution=execution)
            seconds.append(e.total_seconds if pair.of == "pipeline" else e.seconds)
            names.append(f"{pair.mesh} {text} {topology.value}")
        ratio = seconds[0] / seconds[1]
        compared.append(Compared(pair.model, pair.size, names[0], names[1], pair.ratio, ratio, pair.source))
    return compared


def systems(known: Iterable[Run]) -> list[Compared]:
    """Return every two figures of a model at a size, the slower one first."""
    compared = []
    for (model, size), group in itertools.groupby(sorted(known, key=_kind), key=_kind):
        for a, b in itertools.combinations(sorted(group, key=lambda run: -run.measured), 2):
            if a.measured != b.measured:
                first, second = (f"{run.mesh} {run.parallel}" for run in (a, b))
                measured = a.measured / b.measured
                predicted = a.predicted / b.predicted
                compared.append(Compared(model, size, first, second, measured, predicted, "both figures"))
    return compared


def _kind(run: Run) -> tuple[str, str]:
    return run.model, run.size


def tau(compared: Iterable[Compared]) -> float:
    """Return Kendall's tau: 1 if all pairs are in the right order, -1 if none is; pairs that are predicted alike count
    for neither. NaN of no pairs.
    """
    signs = [0 if c.predicted == 1 else 1 if c.right else -1 for c in compared]
    return sum(signs) / len(signs) if signs else math.nan


@dataclass
class Ranking(Document):
    """Published pipelines and wirings, where no file is given.

    Attributes:
        chips: sums of the figures by chip.
        others: Pipelines of one more source, which no range is made of.
    """

    units: dict[str, str]
    figures: list[Run]
    chips: dict[str, dict[str, float]]
    others: list[Run]
    other_chips: dict[str, dict[str, float]]
    kendall_tau: dict[str, float]
    systems: list[Compared]
    wirings: list[Compared]


def document(known: list[Run], compared: list[Compared], more: list[Run] | None = None) -> Ranking:
    """Return everything: figures, systems, wirings, tau by model, and sums by chip."""
    pairs = systems(known)
    by_model = {model: [c for c in pairs if c.model == model] for model in dict.fromkeys(c.model for c in pairs)}
    taus = {model: tau(of_model) for model, of_model in by_model.items()}
    units = {"measured": "s, or a ratio", "predicted": "s, or a ratio"}
    others = more or []
    return Ranking(units, known, _chips(known), others, _chips(others), taus, pairs, compared)


def _chips(known: list[Run]) -> dict[str, dict[str, float]]:
    return {arch: _chip([r for r in known if r.arch == arch]) for arch in sorted({r.arch for r in known})}


def _chip(known: list[Run]) -> dict[str, float]:
    ratios = [r.predicted / r.measured for r in known]
    return {
        "figures": len(known),
        "inside": sum(r.inside for r in known),
        "narrow": sum(r.half_width <= HALF_WIDTH for r in known),
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
        "least": min(ratios),
        "most": max(ratios),
    }


_RATIOS = ("geometric_mean", "least", "most")


def markdown(known: list[Run], compared: list[Compared], more: list[Run] | None = None) -> str:
    """Return the tables."""
    ranking = document(known, compared)
    lines = [
        "# Order and size of published differences\n",
        "Predicted beside published by others; nothing is fitted on them but the host's seconds of a picture "
        "(Flux.1). *range*: 80 %, made without the figures of the model that is judged. Pipelines differ in what "
        "their authors count (steps, guidance, encoders, export): see each source.\n",
        _of_chips(known),
        "\n## Figures\n",
        _of_figures(known),
        "\n## Systems of one model\n",
        as_markdown(
            (
                (model, f"{value:+.2f}", sum(c.model == model for c in ranking.systems))
                for model, value in ranking.kendall_tau.items()
            ),
            ("model", "Kendall's tau", "pairs"),
        ),
    ]
    if more:
        lines += ["\n## Other figures\n", _OTHERS, _of_chips(more), "", _of_figures(more)]
    for title, rows in (("Pairs of systems", systems(known)), ("Pairs of wirings and configurations", compared)):
        lines += [f"\n## {title}\n", "Times as long the first takes as the second.\n", _pairs(rows)]
    return "\n".join(lines) + "\n"


_OTHERS = (
    "Of one day, in the table of one pull request; no range is made of them. What ran on P300 boards is left out, as "
    "those boards' clock is taken from it, and so is Mochi on T3000: what host, encoder and decoder take is taken from "
    "it. Wan's encoder ran on the host then, up to 27 s that are not predicted.\n"
)


def _of_chips(known: list[Run]) -> str:
    rows = (
        (arch, c["figures"], c["inside"], c["narrow"], *(f"{c[name]:.2f}" for name in _RATIOS))
        for arch, c in _chips(known).items()
    )
    ratios = ("predicted / published: mean", "least", "most")
    return as_markdown(rows, ("chip", "figures", "inside their range", "ranges within 30 %", *ratios))


def _of_figures(known: list[Run]) -> str:
    rows = (
        (
            *(f"{r.model} {r.size}", r.mesh, r.parallel, f"{r.measured:g}", f"{r.predicted:.2f}"),
            *(f"{r.low:.2f} to {r.high:.2f}", "yes" if r.inside else "no", r.source),
        )
        for r in known
    )
    columns = ("model", "system", "configuration", "published s", "predicted s", "range", "inside", "source")
    return as_markdown(rows, columns)


def _pairs(rows: Iterable[Compared]) -> str:
    return as_markdown(
        (
            (
                *(f"{c.model} {c.size}", c.first, c.second, f"{c.measured:.2f}", f"{c.predicted:.2f}"),
                *("yes" if c.right else "no", c.source),
            )
            for c in rows
        ),
        ("model", "first", "second", "published", "predicted", "right order", "source"),
    )
