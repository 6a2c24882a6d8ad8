"""Seconds of the video decoders.

    Wan         read off refsim's decoder (rows over one mesh axis, columns over the other, borders to the neighbours,
                as tt_dit cuts it), latent frame by latent frame: every one behind the second is like the third
    CogVideoX   one device: refsim hands it to diffusers and tt_dit has none, so nothing is parallel; the convolutions
                of AutoencoderKLCogVideoX counted below, as if all frames fit at once

Not in it: copying latents and frames between host and device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from refsim.config import parse_parallel
from refsim.mesh import MeshSpec
from refsim.timing import schedule
from refsim.timing.program import programs
from refsim.timing.reading import read
from refsim.timing.recorder import Op, Shape

_WAN = {"_class_name": "AutoencoderKLWan", "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}
_COGVIDEOX = ((512, 512, 2, 2), (512, 256, 2, 2), (256, 256, 1, 2), (256, 128, 1, 1))
"""Up blocks: channels in and out, then how often time and each side of the frames grow after it."""


def wan_decoder_ns(size: Shape, machine: schedule.Machine) -> float:
    """From a latent of (frames, height, width), one video."""
    frames, height, width = size

    def taken(count: int) -> float:
        return schedule.replay(_wan_decoder((count, height, width), replace(machine.mesh, links=(1, 1))), machine).ns

    if frames <= 3:
        return taken(frames)
    two, three = taken(2), taken(3)
    return two + (frames - 2) * (three - two)


@lru_cache(maxsize=64)
def _wan_decoder(size: Shape, mesh: MeshSpec) -> list[Op]:
    parts = [f"{n}{f}@{axis}" for axis, (n, f) in enumerate(zip(("sp", "tp"), mesh.shape, strict=True)) if f > 1]
    parallel = parse_parallel("_".join(parts) or "sp1", mesh)
    return programs(read(_WAN, {"z": (1, 16, *size)}, mesh, parallel).ops)


def cogvideox_decoder(size: Shape) -> list[Op]:
    """From a latent of (frames, height, width), one video, on one device."""
    frames, height, width = size
    pixels = height * width
    ops: list[Op] = []

    def add(kind: str, name: str, inputs: tuple[Shape, ...], output: Shape) -> None:
        ops.append(Op(kind, name, inputs, output, "bf16", "vae"))

    def conv(cin: int, cout: int, kernel: int) -> None:
        rows = frames * pixels
        if kernel > 1:
            add("layout", "vol2col", ((rows, cin),), (rows, cin))
        add("matmul", "conv3d", ((rows, kernel * cin), (cout, kernel * cin)), (rows, cout))

    def norm(channels: int) -> None:
        """SpatialNorm3D: a group norm, scaled and shifted by two linears of the latent."""
        shape = (frames * pixels, channels)
        for name in ("group_norm_statistics", "group_norm"):
            add("elementwise", name, (shape,), shape)
        conv(16, channels, 1)
        conv(16, channels, 1)
        add("elementwise", "addcmul", (shape, shape, shape), shape)
        add("elementwise", "silu", (shape,), shape)

    def resnet(cin: int, cout: int) -> None:
        norm(cin)
        conv(cin, cout, 27)
        norm(cout)
        conv(cout, cout, 27)
        if cin != cout:
            conv(cin, cout, 1)
        shape = (frames * pixels, cout)
        add("elementwise", "add", (shape, shape), shape)

    conv(16, 512, 27)
    for _ in range(2):
        resnet(512, 512)
    for cin, cout, times, sides in _COGVIDEOX:
        for j in range(4):
            resnet(cin if j == 0 else cout, cout)
        if sides > 1:
            frames = 1 + times * (frames - 1)  # the first frame stays alone
            pixels *= sides**2
            add("layout", "upsample", ((frames * pixels, cout),), (frames * pixels, cout))
            conv(cout, cout, 9)
    norm(128)
    conv(128, 3, 27)
    return ops


def decoder_seconds(class_name: str, size: Shape, machine: schedule.Machine) -> float | None:
    """None for a model that decodes no video."""
    if class_name == "WanTransformer3DModel":
        return wan_decoder_ns(tuple(size), machine) / 1e9
    if class_name == "CogVideoXTransformer3DModel":
        return schedule.replay(cogvideox_decoder(size), machine).ns / 1e9
    return None
