"""``refsim bench``."""

from __future__ import annotations

from typing import Any

from refsim.cli.outputs.base import Document, Object, Sometimes


class Machine(Object):
    arch: str
    cores: int
    threads: int
    memory_gib: int
    python: str
    torch: str
    measured: str


class Setup(Object):
    ranks: int
    rows: int
    heads: int
    head_dim: int
    dtype: str
    math: str
    repetitions: int
    seed: int
    load_before: float


class Simulated(Setup):
    """``ratio``: the mesh's seconds over those of one process, the median over pairs."""

    scheme: str
    seconds: dict[str, float]
    ratio: float
    ratio_range: list[float]
    cpu_seconds: dict[str, float]
    """Of this process; of the mesh with its ranks."""
    cpu_ratio: float
    rel_rmse: dict[str, float]
    right: bool
    hazards: int
    sent_bytes: int


class Simulations(Document):
    machine: Machine
    records: list[Simulated]


class Peer(Object):
    """``ratio``: its seconds over refsim's; one that could not run has an ``error`` and no numbers."""

    name: str
    kind: str
    version: str
    error: Sometimes[str]
    seconds: Sometimes[float]
    threads_per_rank: Sometimes[int]
    ratio: Sometimes[float]
    ratio_range: Sometimes[list[float]]
    rel_rmse: Sometimes[float]
    right: Sometimes[bool]


class Peers(Document, Setup):
    machine: Machine
    one_process: dict[str, float]
    records: list[Peer]
    could_not_run: int
    wrong: int


class Ratio(Object):
    ratio: float
    range: list[float]


class Shifted(Object):
    ranks: int
    rounds: int
    seconds: dict[str, float]
    """Of one shift, by transport, and of a plain copy."""
    gb_per_s: dict[str, float]
    times_gloo: Ratio
    of_copy: Ratio
    right: bool


class Shift(Document, Shifted):
    machine: Machine
    mib: int


class Message(Shifted):
    mib: float


class Skipped(Object):
    sweep: str
    size: float
    sentence: str
    """Why."""


class Scale(Document):
    """Ring attention by ranks and by rows, and a ring shift by the size of its message."""

    machine: Machine
    ranks: list[Simulated]
    rows: list[Simulated]
    messages: list[Message]
    could_not_run: list[Skipped]
    wrong: int
    """Results that are not right, or with hazards."""


class WithHazards(Object):
    """``ratio``: with the search for hazards over without, the median over pairs."""

    ratio: float
    quartiles: list[float]
    without_s: float


class HazardCost(Object):
    case: str
    pairs: int
    counted: dict[str, float]
    cpu: WithHazards
    wall: WithHazards


class HazardCosts(Document):
    records: list[HazardCost]


class ValueCost(Object):
    operation: str
    with_values_ms: float
    without_ms: float
    extra_ms: float


class ValueCosts(Document):
    mesh: str
    records: list[ValueCost]


class FullSize(Document):
    model: str
    layers: int
    mesh: str
    parallel: str
    attention: str
    latent: list[int]
    batch: int
    dtype: str
    math: str
    transport: str
    seed: int
    weights_bytes: int
    write_s: float
    rounds: int
    step_s: float
    step_cpu_s: float
    peak_pss_bytes: int
    peak_pss_anonymous_bytes: int
    pss_over_weights: float
    pss_samples: int
    finite: bool
    ranks_agree: bool
    sent_bytes: dict[str, int]
    machine: str
    load_before: float
    measured: str
    check: Sometimes[dict[str, float]]


class Profiled(Document):
    """Errors on profiler files."""

    files: dict[str, str]
    units: dict[str, str]
    signposts_and_host_rows: int
    classes: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    worst: list[dict[str, Any]]
    unclassified: list[dict[str, Any]]


class Published(Document):
    """Published pipelines and wirings, where no file is given."""

    units: dict[str, str]
    figures: list[dict[str, Any]]
    chips: dict[str, dict[str, float]]
    others: list[dict[str, Any]]
    """Pipelines of one more source, which no range is made of."""
    other_chips: dict[str, dict[str, float]]
    kendall_tau: dict[str, float | None]
    systems: list[dict[str, Any]]
    wirings: list[dict[str, Any]]
