"""Fit ``Params`` to the calibration measurements: ``python -m refsim.timing.fit.calibration TRACES_DIR``.

Calibration data: the two CLIP text encoder traces, ttnn's default matmuls of tech_reports/GEMM_FLOPS as kernel time
(from the table's device utilisation), and the linears of ``published.py``. Taken, not fitted: Wormhole's unpacker (46
cycles a tile, 24 a step: minimax_h3_wormhole/ff1.md) and the DRAM share of ``published.PASSES``. SDPA's two parameters
are fitted after the others, on published ring attention of 128-wide heads (MiniMax-H3, Wan2.2-TI2V-5B).
``host_seconds`` is what Flux.1's published seconds leave at no steps beyond its encoders and decoder here, the mean of
two meshes; no end-to-end figure of a model that is judged here is used.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

from refsim.base.mesh import get_mesh
from refsim.models import registry
from refsim.timing.cost import ops
from refsim.timing.cost.chips import get_chip
from refsim.timing.cost.fitted import FITTED
from refsim.timing.fit import measured, published, search
from refsim.timing.predict import replay, stages

HOST_FROM = ("flux1-schnell", "flux1-dev")
"""Published models that differ in their steps alone: what two figures of a mesh leave at no steps is not denoising."""
UNPACK_CYCLES = {"wormhole_b0": 46.0}
STEP_CYCLES = {"wormhole_b0": 24.0}
_START = {
    "launch_ns": 3000.0,
    "unpack_cycles": 30.0,
    "step_cycles": 24.0,
    "page_ns": 100.0,
    "block_ns": 1000.0,
    "relay_gbps": 12.0,
    "tile_ns": 1200.0,
}
_SDPA_START = [
    {"softmax_cycles": softmax, "chunk_cycles": chunk}
    for softmax in (10.0, 30.0, 100.0, 300.0)
    for chunk in (1e3, 3e3, 1e4, 3e4)
]
"""Many, because the two trade against each other: from one, single steps end in a valley."""
BOUNDS = {
    "launch_ns": (200.0, 2e4),
    "unpack_cycles": (8, 64),
    "step_cycles": (1, 100),
    "page_ns": (10, 400),
    "block_ns": (50, 1e4),
    "relay_gbps": (3, 60),
    "tile_ns": (50, 1e4),
    "softmax_cycles": (1, 2000),
    "chunk_cycles": (100, 1e5),
}


def host_seconds(params: ops.Params) -> dict[str, float]:
    """Return the host's share of one picture by mesh: Flux.1's published seconds at no steps, less its encoders and
    decoder as predicted. Schnell and dev run the same transformer, 4 and 28 times.
    """
    by_mesh: dict[str, dict[int, float]] = {}
    for (model, _, mesh, _), figure in registry.figures().items():
        if model in HOST_FROM:
            by_mesh.setdefault(mesh, {})[figure.steps] = figure.seconds
    return {
        mesh: published.seconds_without_steps(by_steps) - around_seconds(HOST_FROM[0], mesh, params)
        for mesh, by_steps in by_mesh.items()
    }


def around_seconds(model: str, mesh: str, params: ops.Params) -> float:
    """Return the seconds of a model's encoders and decoder at its largest size, without the host's."""
    known = registry.published()[model]
    machine = replay.machine(get_mesh(mesh), params)
    found = stages.around(known, list(known.sizes.values())[-1], machine)
    return sum(seconds for stage, seconds in found.items() if stage != "host")


def fit(arch: str, samples: list[measured.Sample]) -> ops.Params:
    """Return the parameters with the least mean |log(predicted / measured)|, found by pattern search; a distinct
    shape counts once.
    """
    chip = get_chip(arch)
    gaps = sorted(s.gap_ns for s in samples if s.gap_ns)
    fixed = {
        "gap_ns": gaps[len(gaps) // 10] if gaps else 0.0,
        "dram_share": published.dram_share(arch, chip.dram_gbps),
    }
    if arch in UNPACK_CYCLES:
        fixed |= {"unpack_cycles": UNPACK_CYCLES[arch], "step_cycles": STEP_CYCLES[arch]}
    attention = [s for s in samples if s.kind == "sdpa"]
    samples = [s for s in samples if s.kind not in ("collective", "sdpa")]

    def loss(values: dict[str, float], samples: list[measured.Sample]) -> float:
        params = ops.Params(**{**_SDPA_START[0], **fixed, **values})
        return sum(abs(math.log(measured.predict(chip, params, s).ns / s.ns)) for s in samples)

    start = {n: v for n, v in _START.items() if n not in fixed}
    fixed |= search.least(lambda values: loss(values, samples), start, BOUNDS)
    found = [search.least(lambda values: loss(values, attention), start, BOUNDS) for start in _SDPA_START]
    fixed |= min(found, key=lambda values: loss(values, attention))
    return ops.Params(**fixed)


def main(folder: Path) -> None:
    found = {}
    for arch in ("wormhole_b0", "blackhole"):
        samples = [s for s in measured.calibration(folder) if s.arch == arch]
        found[arch] = {k: float(f"{v:.4g}") for k, v in asdict(fit(arch, samples)).items()}
        errors = [abs(measured.predict(get_chip(arch), ops.Params(**found[arch]), s).ns / s.ns - 1) for s in samples]
        print(arch, found[arch], f"median error {median(errors):.1%} of {len(samples)} shapes")
    host = host_seconds(ops.Params(**found["wormhole_b0"]))
    print(f"host seconds by mesh {host}")
    written = {
        "params": found,
        "from": measured.CALIBRATION,
        "host_seconds": float(f"{sum(host.values()) / len(host):.3g}"),
    }
    FITTED.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
