"""What ttnn builds: ``refsim memory``, ``ops``, ``kernels`` and ``ttnn diff``."""

from __future__ import annotations

from typing import Any

from refsim.cli.outputs.base import Document, Object, Sometimes


class L1(Object):
    """Bytes of one core."""

    total: int
    kept: int
    peak: int
    peak_op: str
    tensors: int
    headroom: int


class CfgGroup(Object):
    """Bytes of one device's DRAM; ``persistent`` has ``weights`` in it, ``peak`` both."""

    shape: list[int]
    parameters: int
    total: int
    weights: int
    build_s: float
    forward_s: Sometimes[float]
    persistent: int
    peak: int
    peak_op: str
    headroom: int
    largest_free: int
    l1: L1
    owners: list[dict[str, Any]]


class Memory(Document):
    name: str
    mesh: str
    parallel: str
    latent: list[int]
    ran: str
    wall_s: float
    model: dict[str, Any] | str
    groups: list[CfgGroup]
    fits: bool
    refused: Sometimes[str]
    """What ttnn said of a model that does not fit."""
    resources: Sometimes[dict[str, Any] | None]
    optable: Sometimes[list[dict[str, Any]] | None]


class Totals(Object):
    operations: int
    fused: int
    collectives: int
    read_bytes: int
    written_bytes: int
    link_bytes: int
    cores: int
    l1_bytes: int
    l1_op: str


class Operation(Object):
    """Bytes of one call on one device; ``count`` calls are alike."""

    op: str
    device_op: str
    fidelity: str | None
    fp32_acc: bool | None
    outputs: list[dict[str, Any]]
    l1_bytes: int
    dram_bytes: int
    read_bytes: int
    written_bytes: int
    programs: int
    cores: int
    cb_bytes: int
    inputs: list[list[int]]
    fuses: list[str]
    link_bytes: int
    count: int


class Block(Object):
    kind: str
    count: int
    operations: list[Operation]
    totals: Totals


class Operations(Document):
    mesh: str
    parallel: str
    ran: str
    wall_s: float
    model: str
    size: str
    batch: int
    shape: list[int]
    blocks: list[Block]
    around: Block


class Kernel(Object):
    """``error`` says why a kernel was refused, which then has no numbers."""

    id: str
    kernel: str
    shape: list[int]
    dtype: str
    grid: list[int]
    limit: float
    error: str
    one_minus_pcc: Sometimes[float]
    rel_rmse: Sometimes[float]
    l1_bytes: Sometimes[int]
    buffers: Sometimes[int]
    seconds: Sometimes[float]
    passed: bool


class Kernels(Document):
    machine: str
    cases: int
    failed: int
    records: list[Kernel]


class TtnnDiff(Document):
    same: bool
    differences: list[dict[str, Any]]
    """The first of every kind: ``kind``, ``sentence``, and the calls ``a`` and ``b``."""
    only_a: list[dict[str, Any]]
    only_b: list[dict[str, Any]]
    unknown: int
    """Results whose values neither run knows."""
    predicted_ns: list[float]
