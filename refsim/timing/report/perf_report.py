"""``reports/perf``: expected, desired and published time of every system, scaling, sweeps and hidden communication.

Everything here is a prediction but the columns *published* and *ttnn*. Two runs write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from refsim.base.config import parse_parallel
from refsim.base.errors import RefsimError
from refsim.base.mesh import MeshSpec, Topology, get_mesh
from refsim.base.options import RunOptions
from refsim.files import output
from refsim.files.tables import as_markdown
from refsim.models.registry import figures, published
from refsim.timing.cost.chips import get_chip
from refsim.timing.cost.fabric import Fabric
from refsim.timing.cost.fitted import get_params
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.predict import estimate as estimates
from refsim.timing.predict import plan as plans
from refsim.timing.predict.critical import critical_path
from refsim.timing.predict.device_memory import memory, read_ttnn
from refsim.timing.predict.estimate import Estimate
from refsim.timing.read.program import programs
from refsim.timing.read.reading import read_published
from refsim.timing.report import plots, ranking

Progress = Callable[[str], None]


SYSTEMS = {  # mesh: configurations of interest (SD3.5: with cfg2; Flux.1 and video: without, as tt_dit runs them)
    "n150": ("sp1",),
    "n300": ("cfg2", "sp2", "tp2"),
    "t3k": ("cfg2_sp2_tp2", "cfg2_tp4", "sp2_tp4"),
    "quietbox": ("cfg2_sp2_tp2", "sp2_tp4"),
    "tg": ("cfg2_sp4_tp4", "sp8_tp4"),
    "galaxy": ("cfg2_sp4_tp4", "sp8_tp4", "sp4_tp8"),
    "bh-p150": ("sp1",),
    "bh-qb": ("cfg2_tp2", "sp2_tp2"),
    "bh-loudbox": ("cfg2_sp2_tp2", "sp2_tp4"),
    "bh-galaxy": ("cfg2_sp4_tp4", "sp8_tp4"),
}
# Beyond the known systems: several Galaxies as one torus. No such mesh exists; links as inside a Galaxy.
SIMULATED = tuple(
    MeshSpec(f"sim-bh-{8 * rows}", f"{8 * rows} Blackholes, simulated", "blackhole", (rows, 8), (2, 2), (True, True))
    for rows in (8, 16, 32)
)


def reported() -> list[tuple[str, str]]:
    """Return the published models and sizes that have a table."""
    return [(model.name, size) for model in published().values() for size in model.reported]


def write(out: Path, ttnn_memory: Path, progress: Progress = lambda text: None) -> None:
    """Write ``*.md`` and ``*.svg`` into ``out``; ``ttnn_memory`` holds what ``refsim memory`` printed."""
    out.mkdir(parents=True, exist_ok=True)
    bars: dict[str, list[plots.System]] = {}
    for model, size in reported():
        rows = []
        branches = published()[model].branches
        for mesh, texts in SYSTEMS.items():
            for text in (text for text in texts if parse_parallel(text, get_mesh(mesh)).cfg <= branches):
                progress(f"{model} {size} on {mesh}, {text}")
                outcome = _try(model, size, get_mesh(mesh), text)
                rows.append((mesh, text, outcome))
                if not isinstance(outcome, str) and outcome[0].memory.fits:
                    known = figures().get((model, size, mesh, text))
                    e = outcome[0]
                    whole = (estimates.as_published(known).seconds_of(known), known.seconds) if known else None
                    bar = plots.System(f"{mesh} {text}", e.seconds, e.desired_seconds, whole)
                    bars.setdefault(f"{model} {size}", []).append(bar)
        output.write(out / f"{model}-{size}.md", _table(model, size, rows).encode())
    plots.systems(bars, out / "systems.svg")
    output.write(out / "published.md", _published(progress).encode())
    output.write(out / "memory.md", _memory(ttnn_memory, progress).encode())
    write_ranking(out, progress)
    _scaling(out, progress)
    _sweeps(out)
    output.write(out / "README.md", _index().encode())


def write_ranking(out: Path, progress: Progress = lambda text: None) -> None:
    """Write ``ranking.md`` into ``out``: published pipelines and wirings, in which order they are predicted."""
    out.mkdir(parents=True, exist_ok=True)
    text = ranking.markdown(ranking.runs(progress), ranking.wirings(progress), ranking.others(progress))
    output.write(out / "ranking.md", text.encode())


_SYSTEMS = (
    *("system", "configuration", "expected", "denoising", "overlapped", "desired", "ratio", "bound", "exposed"),
    "GB/device",
)
_PUBLISHED = (
    *("model", "system", "configuration", "wiring", "expected", "published", "ratio", "rank today", "rank of all"),
    "source",
)
_MEMORY = (
    *("model", "mesh", "configuration", "weights: account", "ttnn", "buffers: account", "ttnn"),
    *("transient: account", "ttnn", "total: account", "ttnn", "account / ttnn", "of"),
)
_SCALING = (
    *("model", "devices", "system", "fastest", "wiring", "s/step", "desired", "efficiency", "bound", "exposed"),
    "would help",
)
_HIDING = ("model", "arch", "ring", "tokens/device", "T_gather", "T_sdpa", "sum", "max", "overlapped", "hidden")


def _try(model: str, size: str, mesh: MeshSpec, text: str) -> tuple[Estimate, float] | str:
    """Return the estimate and the seconds of its critical path, or why there is none."""
    try:
        known = published()[model]
        parallel = parse_parallel(text, mesh)
        reading = read_published(known, known.sizes[size], RunOptions(mesh, parallel, dtype="bf16"), batch=parallel.cfg)
        estimate = estimates.estimate(model, mesh, parallel, size=size, reading=reading)
    except RefsimError as error:
        return error.with_flags
    path = critical_path(programs(reading.ops), reading.ops, estimate.machine)
    return estimate, estimate.at_power_limit(path.ns) / 1e9 * estimate.forwards_per_step * estimate.steps


def _table(model: str, size: str, rows: list[tuple[str, str, tuple[Estimate, float] | str]]) -> str:
    known = published()[model]
    branches = " with guidance" if known.branches == 2 else ""
    text = [
        f"# {model} {size}, {known.steps} steps{branches}\n",
        "Seconds, predicted. *expected*: the whole pipeline with today's kernels; *denoising*: that part of it; "
        "*overlapped*: denoising if every collective ran as soon as what it reads is there (not with fsdp); "
        "*desired*: denoising at the roofline, all communication hidden, and its ratio to expected; *exposed*: share "
        "of denoising in which only the fabric works. Published times: [published.md](published.md).\n",
    ]
    lines: list[tuple[object, ...]] = []
    for mesh, parallel, outcome in rows:
        system = get_mesh(mesh).system
        if isinstance(outcome, str):
            lines.append((system, parallel, f"cannot run: {outcome}"))
            continue
        e, overlapped = outcome
        m = e.memory
        memory = f"{m.total / 1e9:.1f}{' fsdp' if m.fsdp else ''}{'' if m.fits else ' DOES NOT FIT'}"
        beside = "-" if m.fsdp else f"{overlapped:.2f}"
        lines.append(
            (
                *(system, estimates.describe(e.parallel), f"{e.total_seconds:.2f}", f"{e.seconds:.2f}", beside),
                *(f"{e.desired_seconds:.2f}", f"{e.seconds / e.desired_seconds:.1f}", e.bound),
                *(f"{e.timeline.exposed_ns / e.timeline.ns:.0%}", memory),
            )
        )
    return "\n".join([*text, as_markdown(lines, _SYSTEMS)]) + "\n"


def _published(progress: Progress) -> str:
    """Tabulate each published time beside the prediction with the wiring it was run with, and where a plan ranks it."""
    text = [
        "# Predicted and published\n",
        "Seconds of the whole pipeline; nothing is fitted on them but one number, the host's seconds of a picture, "
        "which come from what Flux.1's rows leave at no steps. *expected*: fused, and in the chunks of attention, as "
        "the published run was; plans take today's. *rank*: of the published factors in the plan for "
        "their mesh with the topology they were run with, among what tt_dit can be asked to run today (no Ulysses; "
        "`refsim plan --today`), and among all schemes.\n",
    ]
    rows = []
    for known in figures().values():
        model = known.model
        size = known.size
        on = get_mesh(known.mesh)
        progress(f"plan of {model} {size} on {on.name}")
        e = estimates.as_published(known)
        topology = known.run.topology.value
        every = plans.plan(model, on, size=size, only=plans.Only(topology=topology))
        tt_dit_runs = plans.ranked(plans.only_tt_dit(every))
        ranks = []
        for candidates in (tt_dit_runs, every):
            rank = next(c.rank for c in candidates if c.text == estimates.describe(e.parallel))
            ranks.append(f"{rank} of {max(c.rank for c in candidates)}" if rank else "cannot run")
        wiring = f"{topology} x{max(on.links)}"
        rows.append(
            (
                *(f"{model} {size}", on.system, estimates.describe(e.parallel), wiring, f"{e.seconds_of(known):.2f}"),
                *(f"{known.seconds:g}", f"{e.seconds_of(known) / known.seconds:.2f}", *ranks, known.source),
            )
        )
    return "\n".join([*text, as_markdown(rows, _PUBLISHED)]) + "\n"


def _memory(folder: Path, progress: Progress) -> str:
    """Tabulate the account of ``memory.py`` beside ttnn's own allocation."""
    text = [
        "# Memory: the account and ttnn's own allocation\n",
        "GB (1e9 bytes) of the fullest device, one forward. *ttnn*: what its allocator gave out on a mock mesh, "
        "measured by `refsim memory --json`; *account*: from the ops read off the model.\n",
    ]
    rows = []
    for path in sorted(folder.glob("*.json")):
        progress(f"memory of {path.stem}")
        t = read_ttnn(path)
        same = (n for n, m in published().items() if m.config.get("num_layers") == t.model.get("num_layers"))
        name = next(same)
        options = RunOptions(t.mesh, t.parallel, dtype="bf16")
        reading = read_published(published()[name], published()[name].sizes["1024"], options, batch=t.parallel.cfg)
        m = memory(reading, get_chip(t.mesh.arch), t.parallel)
        pairs = [(m.weights, t.weights), (m.buffers, t.buffers), (m.activations, t.transient), (m.total, t.total)]
        cells = (f"{size / 1e9:.3f}" for pair in pairs for size in pair)
        label = (f"{name} 1024", t.mesh.name, estimates.describe(t.parallel))
        rows.append((*label, *cells, f"{m.total / t.total:.3f}", f"{t.capacity / 1e9:.2f}"))
    return "\n".join([*text, as_markdown(rows, _MEMORY)]) + "\n"


def _scaling(out: Path, progress: Progress) -> None:
    """Tabulate devices against seconds per step, real and simulated systems, each with its best ring configuration."""
    chosen = {"sd35-large": "1024", "wan22-t2v-a14b": "720p"}
    meshes = [get_mesh(m) for m in ("bh-p150", "bh-qb", "bh-loudbox", "bh-galaxy")] + list(SIMULATED)
    text = [
        "# Scaling, Blackhole\n",
        "Seconds per denoising step of the fastest configuration (ring attention, any cfg, sp, tp and axes). 64 "
        "devices and more are **simulated systems**, several Galaxies as one torus: predictions only. *efficiency*: "
        "devices times seconds against the smallest system.\n",
    ]
    lines: dict[str, list[tuple[int, float, float]]] = {}
    notes: list[str] = []
    rows: list[tuple[object, ...]] = []
    for model, size in chosen.items():
        points = lines.setdefault(f"{model} {size}", [])
        smallest = None
        for mesh in meshes:
            progress(f"{model} {size} on {mesh.name}")
            candidates = plans.plan(model, mesh, size=size, only=plans.Only(attention="ring"))
            mark = f"{mesh.system}**" if mesh in SIMULATED else mesh.system
            label = (f"{model} {size}", mesh.num_devices, f"{'**' * (mesh in SIMULATED)}{mark}")
            best = candidates[0]
            if best.reason:
                rows.append((*label, f"cannot run: {best.reason}"))
                continue
            e = best.estimate
            step = e.seconds / e.steps
            ideal = e.desired_seconds / e.steps
            points.append((mesh.num_devices, step, ideal))
            efficiency = points[0][0] * points[0][1] / (mesh.num_devices * step)
            smallest = smallest or best
            if round(efficiency, 2) > 1:
                notes.append(
                    f"\n{model} {size}, {efficiency:.0%} on {mesh.num_devices} devices: {above(smallest, best)}"
                )
            saving, share = next(iter(best.savings.items()))
            rows.append(
                (
                    *(*label, f"{best.text}{' fsdp' * e.memory.fsdp}", best.wiring, f"{step:.3f}", f"{ideal:.3f}"),
                    *(f"{efficiency:.0%}", e.bound, f"{e.timeline.exposed_ns / e.timeline.ns:.0%}"),
                    f"{saving} -{share:.0%}",
                )
            )
    text.append(as_markdown(rows, _SCALING))
    output.write(out / "scaling.md", ("\n".join([*text, *notes, "\n![scaling](scaling.svg)\n"])).encode())
    plots.scaling(lines, out / "scaling.svg")


def above(smallest: plans.Candidate, best: plans.Candidate) -> str:
    """Say why a system takes fewer device seconds than the smallest one: the classes of operations that became less,
    and what of the smallest one's configuration makes them long.
    """
    a = smallest.estimate
    b = best.estimate
    before, after = ({k: s * e.mesh.num_devices / e.steps for k, s in e.by_kind.items()} for e in (a, b))
    why: dict[str, list[str]] = {"sdpa": [], "collective": []}
    if a.parallel.sp > 1 and b.parallel.sp == 1:
        why["sdpa"].append("ring attention leaves a row of cores to its transfer")
    cores, more = (get_chip(e.mesh.arch, galaxy=e.mesh.num_devices >= 32).num_cores for e in (a, b))
    if cores < more:
        why["sdpa"].append(f"{cores} cores a chip, not {more}")
    if a.memory.fsdp and not b.memory.fsdp:
        why["collective"].append("weights do not fit whole and are gathered for every block")
    if (smallest.wiring.topology, best.wiring.topology) == ("Linear", "Ring"):
        why["collective"].append("no Ring lets it run beside a matmul")
    less = [k for k in before if before[k] - after.get(k, 0.0) > 0.01 * sum(before.values())]
    spent = (f"{before[k]:.1f} instead of {after.get(k, 0.0):.1f} on {k}" for k in less)
    reasons = (f" ({', '.join(why[k])})" if why.get(k) else "" for k in less)
    parts = " and ".join(map("".join, zip(spent, reasons, strict=True)))
    slow = b.timeline.throttling
    slower = a.timeline.throttling
    limit = f" The chips' power limit makes its step {slower:.2f} times as long, that of this one {slow:.2f} times."
    return (
        f"a step of the smallest system, {smallest.text}, takes more device seconds: {parts}.{limit * (slower > slow)}"
    )


def hiding(arch: str, size: int, rows: int, heads: int, width: int, chunks: tuple[int, int]) -> tuple[float, ...]:
    """Return (T_gather, T_sdpa, sum, max, overlapped) in ms of one ring attention with ``rows`` tokens per device."""
    chip = get_chip(arch, galaxy=True)
    params = get_params(arch)
    fabric = Fabric(
        chip, size, {"wormhole_b0": 4, "blackhole": 2}[arch], Topology.RING if size > 2 else Topology.LINEAR
    )
    arrivals = (0.0, *fabric.arrivals(2 * heads * rows * width * 2))
    cores = chip.num_cores - min(chip.cores)
    step = sdpa(chip, params, 1, heads, rows, rows, width, SDPAConfig("HiFi2", cores, *chunks)).ns
    now = 0.0
    for there in arrivals:
        now = max(now, there) + step
    gather = arrivals[-1]
    computed = step * size
    return tuple(t / 1e6 for t in (gather, computed, gather + computed, max(gather, computed), now))


def _sweeps(out: Path) -> None:
    text = [
        "# Ring attention: ring size, chunk size, hidden communication\n",
        "One layer, ms, on a Galaxy. *overlapped* is the replay (a step starts when its shard is there); *sum* nothing "
        "hidden, *max* everything.\n",
    ]
    bars = {}
    rows = []
    for name, tokens, heads, width in (
        ("SD3.5-L 1024", 4096, 10, 64),
        ("Wan 480p", 32760, 10, 128),
        ("Wan 720p", 75600, 10, 128),
    ):
        for arch in ("wormhole_b0", "blackhole"):
            for size in (2, 4, 8, 16, 32):
                tokens_each = -(-tokens // size // 32) * 32
                gather, sdpa, total, longest, now = hiding(arch, size, tokens_each, heads, width, (256, 512))
                hidden = (total - now) / min(gather, sdpa)
                bars.setdefault((name, arch), []).append((size, gather, sdpa, now))
                times = (f"{ms:.3f}" for ms in (gather, sdpa, total, longest, now))
                rows.append((name, arch, size, tokens_each, *times, f"{hidden:.0%}"))
    text += [
        as_markdown(rows, _HIDING),
        "\n![hiding](hiding.svg)\n",
        "## Query chunk\n",
        "ms of one layer, overlapped. Of the chunk sizes the model sees how many whole query chunks each core gets; "
        "the key chunk has no effect in it.\n",
        as_markdown(_chunks(), ("arch", "q chunk", "SD3.5-L 1024, ring 4", "Wan 480p, ring 8", "Wan 720p, ring 8")),
    ]
    output.write(out / "ring.md", ("\n".join(text) + "\n").encode())
    plots.hiding(bars, out / "hiding.svg")


def _chunks() -> Iterator[tuple[object, ...]]:
    shapes = ((4, 1024, 64), (8, 4096, 128), (8, 9472, 128))
    for arch in ("wormhole_b0", "blackhole"):
        for q in (32, 64, 128, 256, 512):
            yield arch, q, *(f"{hiding(arch, n, rows, 10, width, (q, 512))[4]:.3f}" for n, rows, width in shapes)


def _index() -> str:
    links = "\n".join(f"- [{m} {s}]({m}-{s}.md)" for m, s in reported())
    return (
        "# Predicted performance\n\nMade by `refsim report perf`; the error of the model on measured operations: "
        "`refsim bench accuracy TRACES`; on published pipelines: [published.md](published.md).\n\n"
        f"{links}\n- [predicted and published](published.md)\n"
        "- [order and size of published differences](ranking.md)\n- [memory beside ttnn's allocator](memory.md)\n"
        "- [scaling over devices](scaling.md)\n- [ring size, query chunk, hidden communication](ring.md)\n\n"
        "![all systems](systems.svg)\n\nLeft out: configurations that do not fit in a device's memory.\n"
    )
