"""Seconds that others measured and published, and how what they measured was run.

They stand beside a model, in ``figures.py`` of its folder; its spec says where (``ModelSpec.figures``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

from refsim.base.mesh import Topology

Blocks = Literal["fused", "apart", "whole"]
"""What a program fused, as ``refsim/timing/read/tt_blocks.py`` has it."""
Of = Literal["pipeline", "denoising"]


@dataclass(frozen=True)
class Execution:
    """How a denoising loop is run, beyond its factors.

    Attributes:
        steps: denoising steps; the model's usual number if not given.
        fsdp: cut weights over sp too; where they do not fit if not given.
        fuse: overlap matmuls with the collectives beside them on Rings.
        topology: Linear uses no wrap-around links where the mesh has some.
        chunks: rows of queries and of keys per chunk of the transformer's attention; those of ``replay.py`` if not
            given.
        weights: dtype of the linears' weights (bf16, bfp8, bfp4); activations are bf16.
        fidelity: of the matrix engines in linears and attention (LoFi, HiFi2, HiFi3, HiFi4).
        day: whose kernels and collectives run (``refsim/timing/cost/history.py``); today's if not given.
        blocks: what is fused beyond layers.
        busy: share of the time that an engine may be at work in a linear, on a day when linears were ttnn.linear: 0.33
            with TT_MM_THROTTLE_PERF=5, which some systems needed until 30 October 2025 (compute_throttle_utils.cpp).
        rest: a figure of the model that is not judged: what it takes beyond its own prediction, of host, encoders and
            decoder, is taken as well, a stage of its own.
        loop: take what loops take beyond their kernels (``loops.py``), but for gaps that a calibration has.
    """

    steps: int | None = None
    fsdp: bool | None = None
    fuse: bool = True
    topology: Topology | None = None
    chunks: tuple[int, int] | None = None
    weights: str = "bf16"
    fidelity: str = "HiFi2"
    day: date | None = None
    blocks: Blocks = "fused"
    busy: float = 1.0
    rest: Figure | None = None
    loop: bool = True


DEFAULT = Execution()
"""As today's kernels run, with the model's own number of steps."""


@dataclass(frozen=True)
class Figure:
    """Seconds of a published model's pipeline that others measured.

    Attributes:
        of: what the seconds are of, the whole pipeline or its denoising.
        judged: ranges of predictions are made of it. What ran on P300 boards is no figure at all: the clock of those
            boards is taken from it (``refsim/timing/cost/history.py``).
    """

    model: str
    size: str
    mesh: str
    parallel: str
    seconds: float
    source: str
    run: Execution
    of: Of = "pipeline"
    judged: bool = True


@dataclass(frozen=True)
class Pair:
    """Two ways to run one model that others measured one after the other, all else the same.

    Attributes:
        first, second: the wirings; ``parallel`` and ``other`` the factors, the same if ``other`` is empty.
        ratio: what the first one took over what the second one took.
        fused: pairs of matmul and collective ran as one program where the wiring has such.
        of: what was measured, the pipeline or its denoising.
    """

    model: str
    size: str
    mesh: str
    parallel: str
    first: Topology
    second: Topology
    ratio: float
    source: str
    other: str = ""
    fused: bool = True
    of: Of = "pipeline"
