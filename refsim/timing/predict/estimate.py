"""Seconds and bytes of a published model, or of a checkpoint's configuration, on a mesh."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from refsim.base.config import DiTParallelConfig, parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, Topology, get_mesh
from refsim.base.options import RunOptions
from refsim.models.figures import DEFAULT, Execution, Figure
from refsim.models.registry import find, latent, spec_of
from refsim.timing.cost import power
from refsim.timing.cost.fitted import Calibration, get_params
from refsim.timing.predict import loops, ranges, replay, stages
from refsim.timing.predict.device_memory import Memory, MemoryGb, memory
from refsim.timing.read.program import programs
from refsim.timing.read.reading import Reading, read_published
from refsim.timing.read.tensors import BYTES
from refsim.timing.read.tt_blocks import as_blocks


def machine_of(mesh: MeshSpec, execution: Execution, calibration: Calibration | None = None) -> replay.Machine:
    """Return a mesh as it is run; ``calibration``: another one than the stored one."""
    params = calibration.of(mesh.arch) if calibration else get_params(mesh.arch)
    if execution.loop and not calibration:
        params = replace(params, gap_ns=loops.gap_ns(mesh, params.gap_ns))
    return replay.machine(mesh, params, execution)


_UNITS = {"seconds": "s", "by_kind": "s", "by_bound": "s", "memory_gb": "1e9 bytes per device"}


@dataclass(kw_only=True)
class Predicted:
    """One configuration.

    Attributes:
        seconds: Of the denoising loop.
        total_seconds: With encoders and decoder.
        desired_seconds: Of the denoising loop at the roofline.
        throttling: Times as long as without the power limit of the chips.
        beyond_kernels: Times as long as kernels and gaps alone, as public loops on the chip were; the power limit is
            not in it.
        exposed_communication: Share of the time in which links are waited for.
    """

    model: str
    timing_only: bool
    size: str
    mesh: str
    parallel: str
    steps: int
    forwards_per_step: int
    topology: str
    links: tuple[int, ...] | int
    weights: str
    fidelity: str
    calibration: str
    units: dict[str, str] = field(default_factory=_UNITS.copy)
    seconds: float
    seconds_range: ranges.Range
    total_seconds: float
    total_seconds_range: ranges.Range
    stages: dict[str, float]
    seconds_per_step: float
    desired_seconds: float
    utilisation: float
    bound: str
    throttling: float
    beyond_kernels: float
    exposed_communication: float
    by_kind: dict[str, float]
    by_bound: dict[str, float]
    memory_gb: MemoryGb


@dataclass
class Estimate:
    """The denoising loop: ``seconds`` = ``steps`` x ``forwards`` x one forward; ``around`` runs before and after."""

    model: str
    size: str
    mesh: MeshSpec
    parallel: DiTParallelConfig
    steps: int
    forwards_per_step: int
    timeline: replay.Timeline
    memory: Memory
    flops: float
    peak_tflops: float
    around: dict[str, float]
    execution: Execution = DEFAULT
    fitted: Calibration | None = None

    @property
    def timing_only(self) -> bool:
        """Return whether the model can only be predicted: there is no numeric model of it."""
        return spec_of(find(self.model)[1]).timing_only

    @property
    def title(self) -> str:
        """Return what tables call the model."""
        return f"{self.model} (timing only)" if self.timing_only else self.model

    @property
    def calibration(self) -> str:
        """Return the version of a calibration that is not the stored one, or an empty text."""
        return self.fitted.version if self.fitted else ""

    @property
    def machine(self) -> replay.Machine:
        """Return the mesh as it was run."""
        return machine_of(self.mesh, self.execution, self.fitted)

    @property
    def total_seconds(self) -> float:
        """Return the seconds with the encoders and the decoder, as far as ``stages.py`` has them."""
        return self.seconds + sum(self.around.values())

    def seconds_of(self, figure: Figure) -> float:
        """Return the seconds of what a published figure is of."""
        return self.seconds if figure.of == "denoising" else self.total_seconds

    @property
    def forward_seconds(self) -> float:
        return self.timeline.ns / 1e9

    @property
    def seconds(self) -> float:
        return self.forward_seconds * self.forwards_per_step * self.steps

    @property
    def order(self) -> tuple[float, float]:
        """Return what to sort by: seconds, and of those at the power limit the seconds without it."""
        return float(f"{self.seconds:.9g}"), self.seconds / self.timeline.throttling

    def at_power_limit(self, ns: float) -> float:
        """Return the ns of a forward whose kernels and gaps take ``ns``."""
        return max(ns * self.timeline.beyond, power.least_ns(self.flops, self.mesh, self.execution.fidelity))

    @property
    def by_kind(self) -> dict[str, float]:
        """Return the seconds of denoising by class of operation."""
        return {k: v / 1e9 * self.forwards_per_step * self.steps for k, v in self.timeline.by_kind().items()}

    def range(self, without: str = "") -> ranges.Range:
        """Return the range of ``seconds``, four in five; ``without``: a model whose published seconds have no part."""
        kernels = ranges.forward(self.by_kind, self.mesh.arch)
        return ranges.widened(self.seconds, kernels, self.mesh.arch, without)

    def total_range(self, without: str = "") -> ranges.Range:
        """Return the range of ``total_seconds``; the stages around denoising err like any operation, but for the rest,
        which is the longer, the shorter the kernels of its source really are: they err as those here do.
        """
        computed = [s for stage, s in self.around.items() if stage != "rest"]
        stages_ = [(s, ranges.forward({"all": s}, self.mesh.arch)) for s in computed]
        whole = ranges.together([(self.seconds, ranges.forward(self.by_kind, self.mesh.arch)), *stages_])
        if self.execution.rest:
            rest = rest_range(self.execution.rest)
            ends = (whole.low + rest.high, whole.high + rest.low, self.total_seconds)
            whole = replace(whole, low=min(ends), high=max(ends))
        return ranges.widened(self.total_seconds, whole, self.mesh.arch, without)

    @property
    def topology(self) -> str:
        """Return the topology of each axis that has one, as it was run."""
        known = ((self.mesh.shape[axis], self.mesh.topology(axis)) for axis in (0, 1))
        run = (t if t is None or size == 2 else self.execution.topology or t for size, t in known)
        return " / ".join("none" if t is None else t.value for t in run)

    @property
    def desired_seconds(self) -> float:
        """Return the roofline: every op at its own roof, all communication hidden or, if longer, at link rate."""
        return self.timeline.ideal_ns / 1e9 * self.forwards_per_step * self.steps

    @property
    def utilisation(self) -> float:
        return self.flops / (self.timeline.ns * 1000 * self.peak_tflops)

    @property
    def bound(self) -> str:
        shares = self.timeline.by_bound()
        return max(shares, key=shares.__getitem__)

    def row(self) -> Predicted:
        """Return the same as a result."""
        t = self.timeline
        same = ("model", "timing_only", "size", "steps", "topology", "seconds", "total_seconds", "desired_seconds")
        same += ("utilisation", "bound", "by_kind")
        return Predicted(
            **{name: getattr(self, name) for name in same},
            mesh=self.mesh.name,
            parallel=describe(self.parallel),
            forwards_per_step=self.forwards_per_step,
            links=self.mesh.links,
            weights=self.execution.weights,
            fidelity=self.execution.fidelity,
            calibration=self.calibration or ranges.calibration_version(),
            seconds_range=self.range(),
            total_seconds_range=self.total_range(),
            stages=self.around | {"denoising": self.seconds},
            seconds_per_step=self.forward_seconds * self.forwards_per_step,
            throttling=t.throttling,
            beyond_kernels=t.beyond,
            exposed_communication=t.exposed_ns / t.ns,
            by_bound={k: v / 1e9 * self.forwards_per_step * self.steps for k, v in t.by_bound().items()},
            memory_gb=self.memory.gb(),
        )


def describe(p: DiTParallelConfig) -> str:
    """Return factors, axes and the attention group, e.g. ``cfg2@1_sp2@0_tp2@1``, ``... ring2 x ulysses2``."""
    parts = [("cfg", p.cfg_parallel), ("sp", p.sequence_parallel), ("tp", p.tensor_parallel)]
    named = [
        f"{n}{f.factor}" + (f"@{f.mesh_axis}" if isinstance(f.mesh_axis, int) else "") for n, f in parts if f.factor > 1
    ]
    text = "_".join(named) or "sp1"
    return text if p.ulysses == 1 else f"{text} ring{p.ring} x ulysses{p.ulysses}"


def estimate(
    name: str,
    mesh: MeshSpec,
    parallel: DiTParallelConfig,
    *,
    size: str | None = None,
    reading: Reading | None = None,
    execution: Execution = DEFAULT,
    calibration: Calibration | None = None,
) -> Estimate:
    """Estimate the denoising loop of ``name`` with guidance (branches side by side with cfg2, else one by one).

    Args:
        calibration: another one than the stored one.

    Raises:
        UserError: no such model or size, or cfg2 for a model that has no second branch.
    """
    name, model = find(name)
    size, shape = latent(model, size)
    batch = parallel.cfg
    if batch > model.branches:
        raise UserError(f"{name} predicts once a step, without a negative prompt; cfg{batch} has nothing to share out.")
    reading = reading or read_published(model, shape, RunOptions(mesh, parallel, dtype="bf16"), batch=batch)
    machine = machine_of(mesh, execution, calibration)
    # The few weights that no linear has (norms, embeddings) are counted like the others.
    reading = replace(reading, weights_bytes=round(reading.weights_bytes * BYTES[execution.weights] / BYTES["bf16"]))
    use = memory(reading, machine.chip, parallel, experts=model.experts, fsdp=execution.fsdp)
    ops = as_blocks(programs(reading.ops), execution.blocks, parallel.tp)
    timeline = replay.replay(ops, machine)
    if use.fsdp:
        axis = parallel.sequence_parallel.mesh_axis
        axis = axis if isinstance(axis, int) else 0
        whole = mesh.shape[axis] == parallel.sp
        topology = (mesh.topology(axis) if whole else None) or Topology.LINEAR
        replay.gather_weights(timeline, machine, reading.weights_bytes, parallel.sp, axis, topology, reading.blocks)
    total = sum(replay.flops(op) for op in ops)
    timeline = timeline.stretched(loops.factor(mesh.arch) if execution.loop else 1.0)
    timeline = timeline.throttled(power.least_ns(total, mesh, execution.fidelity))
    around = stages.around(model, shape, replace(machine, run=replace(execution, chunks=None)))
    if execution.rest:
        around |= {"rest": rest_seconds(execution.rest)}
    steps = execution.steps or model.steps
    peak = machine.chip.peak_tflops(execution.fidelity)
    return Estimate(
        name,
        size,
        mesh,
        parallel,
        steps,
        model.branches // batch,
        timeline,
        use,
        total,
        peak,
        around,
        execution,
        calibration,
    )


@cache
def as_published(figure: Figure) -> Estimate:
    """Return the estimate of what others measured, run as it was."""
    on = get_mesh(figure.mesh)
    parallel = parse_parallel(figure.parallel, on)
    return estimate(figure.model, on, parallel, size=figure.size, execution=figure.run)


def rest_seconds(figure: Figure) -> float:
    """Return what a published figure takes beyond what is predicted of it: host, encoders, decoder."""
    return figure.seconds - as_published(figure).seconds_of(figure)


def rest_range(figure: Figure) -> ranges.Range:
    """Return the range of ``rest_seconds``."""
    r = as_published(figure).total_range(without=figure.model)
    return ranges.Range(max(figure.seconds - r.high, 0.0), max(figure.seconds - r.low, 0.0))
