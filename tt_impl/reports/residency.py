"""Which models of a pipeline can stay in a device's DRAM, and which must be loaded when their turn comes.

    phase      clip_l   clip_g   t5    transformer   decoder
    DRAM      |---- models that stay, all the time --------|     weights and persistent buffers
              | + the model of the phase, if it is swapped |
              | + what that phase takes and gives back     |     transient peak

Of all choices that fit in every phase, the one that loads the fewest bytes per picture. ``refsim report memory`` makes
a table of the published systems, each with its whole pipeline, as ttnn's allocator has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from refsim.base.errors import RankFailure, UserError
from refsim.base.options import RunOptions
from refsim.files.tables import as_markdown
from refsim.models.registry import get_published, latent, spec_of
from tt_impl.reports import memory, systems
from tt_impl.reports.systems import Row, System, Table
from tt_impl.run.launch import Worker

SYSTEMS: tuple[System, ...] = (  # model, size, mesh, configuration
    ("sd35-large", "1024", "quietbox", "cfg2_sp2_tp2"),
    ("sd35-large", "1024", "galaxy", "cfg2_sp4_tp4"),
    ("sd35-large", "1024", "bh-qb", "cfg2_tp2"),
    ("sd35-large", "1024", "n150", "sp1"),
    ("flux1-dev", "1024", "t3k", "sp2_tp4"),
    ("flux1-dev", "1024", "galaxy", "sp4_tp8"),
    ("flux1-dev", "1024", "n300", "tp2"),
    ("wan22-t2v-a14b", "480p", "t3k", "sp2_tp4"),
    ("wan22-t2v-a14b", "480p", "bh-loudbox", "sp4_tp2"),
    ("wan22-t2v-a14b", "720p", "galaxy", "sp8_tp4"),
    ("wan22-t2v-a14b", "720p", "bh-galaxy", "sp8_tp4"),
    ("cogvideox-5b", "480p", "t3k", "sp2_tp4"),
)
_HEAD = (
    *("model", "mesh", "configuration", "weights", "persistent", "transient", "peak", "of", "headroom", "free block"),
    *("DRAM peak in", "L1 peak", "free", "L1 peak in", "verdict"),
)


@dataclass(frozen=True)
class Model:
    """A model of a pipeline, in bytes of one device: ``resident`` while it is there, ``working`` beside it then."""

    name: str
    resident: int
    working: int


@dataclass(frozen=True)
class Residency:
    """A choice.

    Attributes:
        stay, swapped: names of the models.
        peak, fullest: the most bytes that are held, and the phase in which they are.
        loaded: bytes of the swapped models, which are loaded once per picture.
    """

    stay: tuple[str, ...]
    swapped: tuple[str, ...]
    peak: int
    fullest: str
    loaded: int

    @property
    def sentence(self) -> str:
        if not self.swapped:
            return "all models stay"
        return f"swap {', '.join(self.swapped)} ({self.loaded / 2**20:.0f} MiB to load per picture)"


def peak_of(models: Sequence[Model], stay: Sequence[Model]) -> tuple[int, str]:
    """(bytes, phase) of the fullest phase if ``stay`` are there all the time."""
    resident = sum(model.resident for model in stay)
    phases = ((resident + model.working + (0 if model in stay else model.resident), model.name) for model in models)
    return max(phases, default=(0, ""))


def residency(models: Sequence[Model], total: int) -> Residency | None:
    """Find the choice that loads least, or None if some model does not fit by itself."""
    best: Residency | None = None
    for number in range(len(models), -1, -1):
        for stay in combinations(models, number):
            peak, fullest = peak_of(models, stay)
            swapped = [model for model in models if model not in stay]
            loaded = sum(model.resident for model in swapped)
            if peak <= total and (best is None or loaded < best.loaded):
                names = tuple(m.name for m in stay), tuple(m.name for m in swapped)
                best = Residency(*names, peak, fullest, loaded)
    return best


def measured(system: System, worker: Worker) -> Row:
    """Measure every stage of a system's pipeline: what ttnn allocated, or the sentence that says why nothing."""
    name, size, mesh, parallel = system
    _, model = get_published(name)
    options = RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")
    results: dict[str, Row] = {}
    stages = []
    for stage in memory.stages(model, latent(model, size)[1], options):
        key = f"{stage.model.name} {stage.shapes}"
        if key not in results:
            results[key] = _stage(stage, options, worker)
        stages.append({"stage": stage.name, "model": stage.model.name} | results[key])
    ran = next((s["ran"] for s in stages if "ran" in s), "")
    return {"system": list(system), "ran": ran, "stages": stages}


def _stage(stage: memory.Stage, options: RunOptions, worker: Worker) -> Row:
    if spec_of(stage.model).ttnn is None:
        return {"missing": "no counterpart in TTNN"}
    try:
        outcome = memory.plan(stage.model, options, stage.shapes, run=worker.execute)
    except (RankFailure, UserError) as failure:
        return systems.missing(failure)
    report = {key: value for key, value in outcome.report.items() if key != "model"}
    for group in report["groups"]:
        for key in ("build_s", "forward_s"):  # seconds differ from run to run
            group.pop(key, None)
    return {"ran": outcome.ran, "shapes": stage.shapes} | report


def _readme(rows: list[Row]) -> Iterator[str]:
    yield (
        "# Memory of whole models\n\nMade by `refsim report memory`; numbers: [memory.json](memory.json). ttnn's own "
        "allocator on mock meshes, one device, MiB of DRAM and KiB of one core's L1: all weights of all blocks are "
        "allocated (shapes only, bf16), then one forward of one block of each kind is run.\n\n"
        "*persistent*: what stays from one forward to the next, the collectives' ping-pong buffers by owner in the "
        "JSON; *transient*: what the forward takes and gives back, at most; *free block*: the largest one that is left "
        "after a forward; *L1 peak*: circular buffers, tensors and semaphores of the fullest core. The batch is what a "
        "step predicts at once on one cfg group (two prompts with guidance and no cfg2).\n\n## Transformers\n"
    )
    yield as_markdown(map(_transformer, rows), _HEAD)
    yield (
        "\n## Pipelines\n\nEvery stage under the same configuration. *held*: weights and persistent buffers, "
        "*working*: the transient peak beside them. Two experts are two models; a video's "
        "decoder is run for three of its passes, and the frames of further ones come on top. *swap*: the models that "
        "cannot stay, chosen so that the fewest bytes are loaded per picture.\n"
    )
    columns = ("model", "mesh", "configuration", "stage: held + working, MiB", "all held", "of", "swap")
    yield as_markdown(map(_pipeline, rows), columns)
    yield from _unfit(rows)


def _transformer(row: Row) -> list[str]:
    name, size, mesh, parallel = row["system"]
    label = [f"{name} {size}", mesh, parallel]
    stage = next(stage for stage in row["stages"] if stage["model"] == name)
    if "missing" in stage:
        return [*label, stage["missing"]]
    g = stage["groups"][0]
    l1 = stage["groups"][0]["l1"]
    sizes = [g["weights"], g["persistent"] - g["weights"], g["peak"] - g["persistent"], g["peak"], g["total"]]
    cells = [f"{n / memory.MIB:.1f}" for n in [*sizes, g["headroom"], g["largest_free"]]]
    cells += [_op(g["peak_op"]), f"{l1['peak'] / 1024:.0f} of {l1['total'] / 1024:.0f}", f"{l1['headroom'] / 1024:.0f}"]
    return [*label, *cells, _op(l1["peak_op"]), "fits" if stage["fits"] else "**does not fit**"]


def _pipeline(row: Row) -> list[str]:
    name, size, mesh, parallel = row["system"]
    label = [f"{name} {size}", mesh, parallel]
    parts = []
    there = []
    total = 0
    for stage in row["stages"]:
        if "missing" in stage:
            parts.append(f"{stage['stage']}: {stage['missing']}")
            continue
        group = stage["groups"][0]
        there.append(Model(stage["stage"], group["persistent"], group["peak"] - group["persistent"]))
        parts.append(f"{stage['stage']}: {there[-1].resident / memory.MIB:.0f} + {there[-1].working / memory.MIB:.0f}")
        total = group["total"]
    chosen = residency(there, total)
    choice = chosen.sentence if chosen else "**does not fit**"
    if not there:
        choice = "-"
    elif len(there) < len(row["stages"]):
        choice += " (of those measured)"
    resident = sum(model.resident for model in there)
    return [*label, "; ".join(parts), f"{resident / memory.MIB:.0f}", f"{total / memory.MIB:.0f}", choice]


def _unfit(rows: list[Row]) -> Iterator[str]:
    """List what does not fit, and what to shrink."""
    lines = []
    for row in rows:
        for stage in row["stages"]:
            if not stage.get("fits", True):
                lines.append(f"* {' '.join(row['system'])}, {stage['stage']}: {memory.verdict(stage)}")
    if lines:
        yield "\n## What does not fit\n"
        yield from lines


def _op(name: str) -> str:
    return name.rpartition(".")[2]


TABLE = Table(SYSTEMS, measured, _readme, "memory.json", "README.md")
