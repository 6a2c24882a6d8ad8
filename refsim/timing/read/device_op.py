"""One device operation of ttnn: of a profiler's file, of a captured program, of a published table.

The name is ttnn's own, as profilers and captures of its graph have it (``MatmulDeviceOperation``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from refsim.timing.read.tensors import OpTensor


@dataclass(frozen=True)
class Wires:
    """What a collective runs on: ``size`` devices of an axis (0: nobody says), links per hop, Ring, Galaxy or not."""

    size: int = 1
    links: int = 1
    ring: bool = False
    galaxy: bool = False


@dataclass(frozen=True)
class Cut:
    """How a published table cuts up a product: cores for M and N, tiles (M, K, N) of a block and (M, N) of a step."""

    grid: tuple[int, int]
    block: tuple[int, int, int] = (8, 8, 8)
    sub: tuple[int, int] | None = None


@dataclass(frozen=True)
class DeviceOp:
    """One device operation; tensors of four dims, tile padding included, on one device.

    Attributes:
        attributes: ttnn's text of them.
        cut: of a product whose attributes do not say it. It is no part of what an operation is called, by which
            ``refsim calibrate`` holds some out.
    """

    name: str
    arch: str
    cores: int
    fidelity: str
    inputs: tuple[OpTensor, ...]
    outputs: tuple[OpTensor, ...]
    attributes: str = ""
    wires: Wires = field(default_factory=Wires)
    causal: bool = False
    cut: Cut | None = field(default=None, repr=False)
