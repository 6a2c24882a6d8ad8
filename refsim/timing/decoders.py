"""Seconds of the video decoders, read off refsim's own (rows over one mesh axis, columns over the other, borders to the
neighbours; Wan's as tt_dit cuts it, CogVideoX's of which tt_dit has none).

    Wan         one latent frame after the other: every one behind the second is like the third
    CogVideoX   two latent frames at a time, the first chunk three if they are odd: every one behind the first is alike

Not in it: copying latents and frames between host and device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from refsim.config import parse_parallel
from refsim.mesh import MeshSpec
from refsim.options import RunOptions
from refsim.timing import schedule
from refsim.timing.program import programs
from refsim.timing.reading import read
from refsim.timing.recorder import Op, Shape

WAN: dict[str, Any] = {"_class_name": "AutoencoderKLWan", "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}
COGVIDEOX: dict[str, Any] = {"_class_name": "AutoencoderKLCogVideoX"}
_DECODERS = {"WanTransformer3DModel": (WAN, 1), "CogVideoXTransformer3DModel": (COGVIDEOX, 2)}


def decoder_ns(class_name: str, size: Shape, machine: schedule.Machine) -> float:
    """From a latent of (frames, height, width), one video."""
    frames, height, width = size
    config, chunk = _DECODERS[class_name]

    def taken(count: int) -> float:
        one_link = replace(machine.mesh, links=(1, 1))
        return schedule.replay(_ops(config["_class_name"], (count, height, width), one_link), machine).ns

    first = 2 if chunk == 1 else chunk + frames % 2
    if frames <= first + chunk:
        return taken(frames)
    begin, more = taken(first), taken(first + chunk)
    return begin + (frames - first) / chunk * (more - begin)


@lru_cache(maxsize=64)
def _ops(class_name: str, size: Shape, mesh: MeshSpec) -> list[Op]:
    config = next(config for config, _ in _DECODERS.values() if config["_class_name"] == class_name)
    parts = [f"{n}{f}@{axis}" for axis, (n, f) in enumerate(zip(("sp", "tp"), mesh.shape, strict=True)) if f > 1]
    parallel = parse_parallel("_".join(parts) or "sp1", mesh)
    return programs(read(config, {"z": (1, 16, *size)}, RunOptions(mesh, parallel, dtype="bf16")).ops)


def decoder_seconds(class_name: str, size: Shape, machine: schedule.Machine) -> float | None:
    """None for a model that decodes no video."""
    return decoder_ns(class_name, tuple(size), machine) / 1e9 if class_name in _DECODERS else None
