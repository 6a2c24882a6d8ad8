"""``refsim meshes``, ``run``, ``generate`` and ``explain``."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from refsim.cli.outputs.base import Document, Number, Object, Sometimes


class Mesh(Object):
    name: str
    system: str
    arch: str
    shape: list[int]
    devices: int
    links: list[int]
    """Per hop, by axis."""
    wrap_around: list[bool]
    topology: list[str | None]
    """Ring or Linear, by axis; null for an axis of one device."""


class Meshes(Document):
    meshes: list[Mesh]


class Bounded(Object):
    value: Number
    bound: float


class CheckAgainst(Object):
    """The answer, judged by a library's own class."""

    against: str
    passed: bool
    reason: str
    metrics: dict[str, Bounded]
    not_measured: list[str]
    explanation: dict[str, Any] | None
    """Why it failed, as ``refsim parity explain`` says it."""
    step_rel_rmse: Sometimes[list[Number]]


class _Forward(Document):
    mesh: str
    parallel: str
    factors: dict[str, Any]
    """Factor and mesh axis, by scheme."""
    attention: str
    dtype: str
    backend: str
    math: str | None
    transport: str | None
    outputs: dict[str, list[int]]
    """Shapes of the tensors in ``out``."""
    out: str
    trace: str | None
    wall_s: float


class Forward(_Forward):
    """One model on refsim's ranks."""

    ranks: int
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    check_against: CheckAgainst | None


class ForwardInTtnn(_Forward):
    """One model on a ttnn backend."""

    ran: str
    operations: int
    collectives: list[dict[str, Any]]


class StepCheck(Object):
    against: str
    step_pcc: list[float]
    picture_pcc: float
    max_pixel_difference: int
    passed: bool


class Pictures(Document):
    """A pipeline from prompt to pictures; what a backend has to say beyond these keys stands beside them."""

    model_config = ConfigDict(extra="allow")
    prompt: str
    mesh: str
    parallel: str
    backend: str
    math: str | None
    transport: str | None
    pictures: int
    size: list[int]
    files: list[str]
    seconds: dict[str, float]
    """By stage, and ``total``."""
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    check: StepCheck | None
    check_against: CheckAgainst | None


class TextCheck(Object):
    against: str
    passed: bool
    tokens: int
    ties: list[Any]
    wrong: dict[str, Any] | None
    metrics: dict[str, Bounded]
    forward: CheckAgainst | None


class Text(Document):
    mesh: str
    parallel: str
    dtype: str
    cache: str | None
    block: int | None
    prompt_tokens: int
    tokens: list[int]
    text: str
    steps: list[dict[str, Any]]
    """Rounds of drafting and verifying: what was proposed and accepted, margins, rows of the caches, seconds."""
    mean_accepted: float | None
    smallest_margin: float
    same_as_target: bool | None
    check_against: TextCheck | None
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    seconds: dict[str, float]
    wall_s: float


class Held(Object):
    """What a device holds: its index in every group; of a model the first row and head, and those after the last."""

    rank: int
    coord: list[int]
    cfg: int
    sp: int
    tp: int
    ring: int
    ulysses: int
    token_rows: Sometimes[list[int]]
    heads: Sometimes[list[int]]


class Layout(Document):
    """Sizes are of one device; what follows ``ring`` is there where a model is given."""

    mesh: str
    shape: list[int]
    parallel: str
    attention: str
    devices: list[Held]
    groups: list[dict[str, Any]]
    """Name, mesh axis, topology, links, and the ranks in the order of shards."""
    ring: list[dict[str, Any]]
    """Whose keys each member attends to at each step, and which ranks send them."""
    model: Sometimes[str]
    latent: Sometimes[list[int]]
    dtype: Sometimes[str]
    per_device: Sometimes[dict[str, int]]
    buffers: Sometimes[list[dict[str, Any]]]
    collectives: Sometimes[list[dict[str, Any]]]
