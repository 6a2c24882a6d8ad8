"""``reports/perf``: expected, desired and published time of every system, scaling, sweeps and hidden communication.

Everything here is a prediction but the column *published*. Two runs write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from refsim.config import parse_parallel
from refsim.errors import RefsimError
from refsim.mesh import MeshSpec, Topology, get_mesh
from refsim.models.published import PUBLISHED
from refsim.timing import estimate as estimates
from refsim.timing import ops, plots
from refsim.timing.calibration import get_params
from refsim.timing.chips import get_chip
from refsim.timing.estimate import Estimate
from refsim.timing.fabric import Fabric


@dataclass(frozen=True)
class Published:
    """A figure measured by others, of the whole pipeline."""

    seconds: float
    steps: int
    source: str


PUBLISHED_SECONDS = {
    ("sd35-large", "1024", "quietbox", "cfg2_sp2_tp2"): Published(12.2, 20, "tt_dit StableDiffusion35.md@02e73163"),
    ("sd35-large", "1024", "galaxy", "cfg2_sp4_tp4"): Published(5.6, 20, "tt_dit StableDiffusion35.md@02e73163"),
    ("wan22-t2v-a14b", "480p", "t3k", "sp2_tp4"): Published(735, 40, "tt_dit Wan2_2.md@511bc4d0"),
}
SYSTEMS = {  # mesh: configurations of interest (SD3.5: with cfg2; the video models: without, as tt_dit runs them)
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
MODELS = (("sd35-large", "1024"), ("wan22-t2v-a14b", "480p"), ("wan22-t2v-a14b", "720p"), ("cogvideox-5b", "480p"))
# Beyond the known systems: several Galaxies as one torus. No such mesh exists; links as inside a Galaxy.
SIMULATED = tuple(
    MeshSpec(f"sim-bh-{8 * rows}", f"{8 * rows} Blackholes, simulated", "blackhole", (rows, 8), (2, 2), (True, True))
    for rows in (8, 16, 32)
)


def write(out: Path, progress: Callable[[str], None] = lambda text: None) -> None:
    """Writes ``*.md`` and ``*.svg`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for model, size in MODELS:
        rows = []
        for mesh, texts in SYSTEMS.items():
            for text in texts:
                progress(f"{model} {size} on {mesh}, {text}")
                rows.append((mesh, text, _try(model, size, get_mesh(mesh), text)))
        (out / f"{model}-{size}.md").write_text(_table(model, size, rows), encoding="utf-8")
    _scaling(out, progress)
    _sweeps(out)
    (out / "README.md").write_text(_index(), encoding="utf-8")


def _try(model: str, size: str, mesh: MeshSpec, text: str) -> Estimate | str:
    try:
        return estimates.estimate(model, mesh, parse_parallel(text, mesh), size=size)
    except RefsimError as error:
        return str(error)


def _table(model: str, size: str, rows: list[tuple[str, str, Estimate | str]]) -> str:
    steps = estimates.STEPS[PUBLISHED[model].config["_class_name"]]
    text = [
        f"# {model} {size}, {steps} steps with guidance\n",
        "Seconds. *expected*: the pipeline as far as it is modelled (video decoders are not), predicted for today's "
        "kernels; *denoising*: that part of it; *desired*: denoising at the roofline, communication hidden, and its "
        "ratio to expected; *published*: measured by others, and its ratio.\n",
        "| system | configuration | expected | denoising | desired | ratio | published | ratio | bound | exposed | "
        "GB/device |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mesh, parallel, e in rows:
        system = get_mesh(mesh).system
        if isinstance(e, str):
            text.append(f"| {system} | {parallel} | cannot run: {e} | | | | | | | | |")
            continue
        known = PUBLISHED_SECONDS.get((model, size, mesh, parallel))
        told = f"{known.seconds:g} ({known.source})" if known else ""
        ratio = f"{e.total_seconds / known.seconds:.2f}" if known else ""
        m = e.memory
        held = f"{m.total / 1e9:.1f}{' fsdp' if m.fsdp else ''}{'' if m.fits else ' DOES NOT FIT'}"
        text.append(
            f"| {system} | {estimates.describe(e.parallel)} | {e.total_seconds:.2f} | {e.seconds:.2f} | "
            f"{e.desired_seconds:.2f} | {e.seconds / e.desired_seconds:.1f} | {told} | {ratio} | {e.bound} | "
            f"{e.timeline.exposed_ns / e.timeline.ns:.0%} | {held} |"
        )
    return "\n".join(text) + "\n"


def _scaling(out: Path, progress: Callable[[str], None]) -> None:
    """Devices against seconds per step, real systems and simulated ones."""
    cases = {
        "sd35-large": [("bh-p150", "sp1"), ("bh-qb", "cfg2_tp2"), ("bh-loudbox", "cfg2_sp2_tp2"),
                       ("bh-galaxy", "cfg2_sp4_tp4"), (SIMULATED[0], "cfg2_sp8_tp4"), (SIMULATED[1], "cfg2_sp8_tp8"),
                       (SIMULATED[2], "cfg2_sp16_tp8")],
        "wan22-t2v-a14b": [("bh-qb", "sp2_tp2"), ("bh-loudbox", "sp2_tp4"), ("bh-galaxy", "sp8_tp4"),
                           (SIMULATED[0], "sp8_tp8"), (SIMULATED[1], "sp16_tp8"), (SIMULATED[2], "sp32_tp8")],
    }  # fmt: skip
    text = [
        "# Scaling, Blackhole\n",
        "Seconds per denoising step. 64 devices and more are **simulated systems**: predictions only.\n",
        "| model | devices | system | configuration | expected s/step | desired s/step | bound | exposed comm. |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for model, chosen in cases.items():
        size = "720p" if model.startswith("wan") else "1024"
        for mesh, parallel in chosen:
            on = get_mesh(mesh)
            progress(f"{model} {size} on {on.name}, {parallel}")
            e = _try(model, size, on, parallel)
            mark = " (simulated)" if on.name.startswith("sim-") else ""
            if isinstance(e, str):
                text.append(
                    f"| {model} {size} | {on.num_devices} | {on.system}{mark} | {parallel} | cannot run: {e} | | | |"
                )
                continue
            step, ideal = e.seconds / e.steps, e.desired_seconds / e.steps
            lines.setdefault(f"{model} {size}", []).append((on.num_devices, step, ideal))
            text.append(
                f"| {model} {size} | {on.num_devices} | {on.system}{mark} | {parallel} | {step:.3f} | {ideal:.3f} | "
                f"{e.bound} | {e.timeline.exposed_ns / e.timeline.ns:.0%} |"
            )
    (out / "scaling.md").write_text("\n".join([*text, "\n![scaling](scaling.svg)\n"]), encoding="utf-8")
    plots.scaling(lines, out / "scaling.svg")


def hiding(arch: str, size: int, rows: int, heads: int, width: int, chunks: tuple[int, int]) -> tuple[float, ...]:
    """(T_gather, T_sdpa, sum, max, overlapped) in ms of one ring attention with ``rows`` tokens per device."""
    chip, params = get_chip(arch, galaxy=True), get_params(arch)
    fabric = Fabric(
        chip, size, {"wormhole_b0": 4, "blackhole": 2}[arch], Topology.RING if size > 2 else Topology.LINEAR
    )
    arrivals = (0.0, *fabric.arrivals(2 * heads * rows * width * 2))
    cores = chip.num_cores - min(chip.cores)
    step = ops.sdpa(chip, params, 1, heads, rows, rows, width, cores=cores, q_chunk=chunks[0], k_chunk=chunks[1]).ns
    now = 0.0
    for there in arrivals:
        now = max(now, there) + step
    gather, sdpa = arrivals[-1], step * size
    return tuple(t / 1e6 for t in (gather, sdpa, gather + sdpa, max(gather, sdpa), now))


def _sweeps(out: Path) -> None:
    text = [
        "# Ring attention: ring size, chunk size, hidden communication\n",
        "One layer, ms, on a Galaxy. *overlapped* is the replay (a step starts when its shard is there); *sum* nothing "
        "hidden, *max* everything.\n",
        "| model | arch | ring | tokens/device | T_gather | T_sdpa | sum | max | overlapped | hidden |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    bars = {}
    for name, tokens, heads, width in (
        ("SD3.5-L 1024", 4096, 10, 64),
        ("Wan 480p", 32760, 10, 128),
        ("Wan 720p", 75600, 10, 128),
    ):
        for arch in ("wormhole_b0", "blackhole"):
            for size in (2, 4, 8, 16, 32):
                rows = -(-tokens // size // 32) * 32
                gather, sdpa, total, longest, now = hiding(arch, size, rows, heads, width, (256, 512))
                hidden = (total - now) / min(gather, sdpa)
                bars.setdefault((name, arch), []).append((size, gather, sdpa, now))
                text.append(
                    f"| {name} | {arch} | {size} | {rows} | {gather:.3f} | {sdpa:.3f} | {total:.3f} | {longest:.3f} | "
                    f"{now:.3f} | {hidden:.0%} |"
                )
    text += [
        "\n![hiding](hiding.svg)\n",
        "| arch | q chunk | k chunk | Wan 480p ring 8, overlapped ms |",
        "|---|---|---|---|",
    ]
    for arch in ("wormhole_b0", "blackhole"):
        for q in (64, 128, 256, 512):
            for k in (128, 256, 512):
                text.append(f"| {arch} | {q} | {k} | {hiding(arch, 8, 4096, 10, 128, (q, k))[4]:.3f} |")
    (out / "ring.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    plots.hiding(bars, out / "hiding.svg")


def _index() -> str:
    links = "\n".join(f"- [{m} {s}]({m}-{s}.md)" for m, s in MODELS)
    return (
        "# Predicted performance\n\nMade by `refsim report perf`; its error: `python -m benchmarks.accuracy TRACES`."
        f"\n\n{links}\n- [scaling over devices](scaling.md)\n- [ring size, chunk size, hiding](ring.md)\n"
    )
