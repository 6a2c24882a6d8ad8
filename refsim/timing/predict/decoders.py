"""Seconds of the video decoders, read off refsim's own (rows over one mesh axis, columns over the other, borders to the
neighbours; Wan's as tt_dit cuts it, CogVideoX's likewise).

    one latent frame after the other        every one behind the second is like the third
    two latent frames at a time             the first chunk is three if they are odd: every one behind it is alike

Not in it: copying latents and frames between host and device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from refsim.base.config import parse_parallel
from refsim.base.mesh import MeshSpec
from refsim.base.options import RunOptions
from refsim.models.registry import get_published, spec_of
from refsim.models.spec import Published
from refsim.timing.predict import replay
from refsim.timing.read.program import programs
from refsim.timing.read.reading import read
from refsim.timing.read.recorder import Op, Shape


def decoder_seconds(model: Published, size: Shape, machine: replay.Machine) -> float:
    """Return the seconds for one video from a latent of (frames, height, width)."""
    return decoder_ns(model, size, machine) / 1e9


def decoder_ns(model: Published, size: Shape, machine: replay.Machine) -> float:
    """Return the ns for one video from a latent of (frames, height, width)."""
    frames, height, width = size
    chunk = spec_of(model).frames_per_pass

    def taken(count: int) -> float:
        one_link = replace(machine.mesh, links=(1, 1))
        return replay.replay(_ops(model.name, (count, height, width), one_link), machine).ns

    first = 2 if chunk == 1 else chunk + frames % 2
    if frames <= first + chunk:
        return taken(frames)
    begin = taken(first)
    more = taken(first + chunk)
    return begin + (frames - first) / chunk * (more - begin)


@lru_cache(maxsize=64)
def _ops(name: str, size: Shape, mesh: MeshSpec) -> list[Op]:
    spec, model = get_published(name)
    parts = [f"{n}{f}@{axis}" for axis, (n, f) in enumerate(zip(("sp", "tp"), mesh.shape, strict=True)) if f > 1]
    parallel = parse_parallel("_".join(parts) or "sp1", mesh)
    return programs(read(model.config, spec.input_shapes(model, size, 1), RunOptions(mesh, parallel, dtype="bf16")).ops)
