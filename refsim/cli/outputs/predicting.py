"""``refsim time``, ``plan`` and ``calibrate``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from refsim.cli.outputs.base import Document, Object, Sometimes


class Range(Object):
    low: float
    high: float
    share: float
    """How likely a measurement lies inside."""
    partly_fitted: list[str]


class Allocated(Object):
    ran: str
    weights: float
    buffers: float
    transient: float
    capacity: float


class MemoryGb(Object):
    """1e9 bytes per device."""

    weights: float
    activations: float
    buffers: float
    capacity: float
    fsdp: bool
    fits: bool
    ttnn: Sometimes[Allocated]


class Predicted(Object):
    model: str
    timing_only: bool
    size: str
    mesh: str
    parallel: str
    steps: int
    forwards_per_step: int
    topology: str
    links: list[int] | int
    weights: str
    fidelity: str
    calibration: str
    units: dict[str, str]
    seconds: float
    """Of the denoising loop."""
    seconds_range: Range
    total_seconds: float
    """With encoders and decoder."""
    total_seconds_range: Range
    stages: dict[str, float]
    seconds_per_step: float
    desired_seconds: float
    """Of the denoising loop at the roofline."""
    utilisation: float
    bound: str
    throttling: float
    """Times as long as without the power limit of the chips."""
    beyond_kernels: float
    """Times as long as kernels and gaps alone, as public loops on the chip were; the power limit is not in it."""
    exposed_communication: float
    """Share of the time in which links are waited for."""
    by_kind: dict[str, float]
    by_bound: dict[str, float]
    memory_gb: MemoryGb


class CriticalPath(Object):
    """Seconds of the denoising loop if every collective ran as soon as what it reads is there."""

    overlapped_seconds: float
    dependencies_alone_seconds: float
    by_kind: dict[str, float]


class Layer(Object):
    layers: str
    op: str
    kind: str
    inputs: list[list[int]]
    count: int
    seconds: float
    share: float
    bound: str
    by_bound: dict[str, float]
    would_save: dict[str, float]
    advice: str


class OpClass(Object):
    op_class: Annotated[str, Field(alias="class")]
    reference_s: float
    ttnn_s: float
    ratio: float | None
    ops: list[dict[str, Any]]


class InTtnn(Object):
    """The model's own program in TTNN, priced by the same timing model."""

    ran: str
    seconds: float
    reference_seconds: float
    classes: list[OpClass]
    unpriced: list[dict[str, Any]]


class Time(Document, Predicted):
    critical_path: CriticalPath
    unclassified: dict[str, int]
    """Norms and softmaxes that are priced as loose operations, with their number."""
    ttnn: Sometimes[InTtnn]
    layers: Sometimes[list[Layer]]


class DoesNotFit(Document):
    """A configuration that does not fit the devices' memory; exit code 1."""

    model: str
    size: str
    mesh: str
    parallel: str
    topology: str
    links: list[int]
    memory_gb: MemoryGb
    seconds: None


class Planned(Predicted):
    rank: int
    best_of_rank: bool
    distinguishable_from_first: bool
    would_save: dict[str, float]
    seconds_by_wiring: dict[str, float]
    tt_dit: Annotated[str, Field(alias="tt_dit_today")]
    """``runs``, or why tt_dit cannot be asked to run it today."""


class Infeasible(Object):
    parallel: Sometimes[str]
    wiring: Sometimes[str]
    reason: str


class Plan(Document):
    plans: list[Planned]
    infeasible: list[Infeasible]


class HeldOut(Object):
    shapes: int
    mape_before: float | None
    mape_after: float | None


class Calibration(Document):
    arch: str
    params: dict[str, float]
    determined: dict[str, int]
    """Fitted parameters, with how many operations say something of each."""
    kept: list[str]
    files: Annotated[list[str], Field(alias="from")]
    fitted_shapes: int
    held_out: HeldOut
    unclassified: dict[str, int]
