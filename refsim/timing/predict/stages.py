"""The stages around the transformer as ops of one device: text encoders and image decoder, tensor parallel over a line.

tt_dit runs them on a 1x4 submesh: encoder linears column, then row parallel (one all-reduce each pair); the decoder's
channels are cut, gathered before every convolution, and its group norms are local (vae_sd35.py). They are not traced
unless asked for: the host dispatches program by program. Widths are those of the published encoders and of
the image decoder, from their specs. Counted here, not read off code: on the device a convolution pads for itself. A
test holds the decoder's counts against refsim's own decoder. Video decoders: ``decoders.py``.

``host`` of an image pipeline is one number for all meshes and models: what Flux.1's published seconds leave at no steps
beyond the stages here (``calibrate.py``): tokenizing, uploads, the picture on the host, whatever else of the decoder
the host holds up. A video's host work is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from refsim.base.mesh import MeshSpec, Topology
from refsim.models.registry import get_published
from refsim.models.spec import Companion, Published
from refsim.timing.cost.fitted import get_host_seconds
from refsim.timing.predict import replay
from refsim.timing.predict.decoders import decoder_seconds
from refsim.timing.read.reading import Op, Shape


@dataclass(frozen=True)
class TextEncoder:
    """Layers of width ``width`` with ``heads`` and a feed-forward of ``inner``; ``gated``: two linears in."""

    layers: int
    width: int
    heads: int
    inner: int
    tokens: int
    gated: bool = False


EAGER_GAP_NS = 56000.0
"""From one program to the next one that the host dispatches: 3.88 ms in the 69 calls of a MiniMax-H3 block, "device +
op gap" (minimax_h3_wormhole/README.md)."""
_TILE = 32


class _Line:
    """A list of ops on the members of one mesh axis, four of them at most."""

    def __init__(self, mesh: MeshSpec, stage: str) -> None:
        self.axis = 1 if mesh.shape[1] >= mesh.shape[0] else 0
        self.size = min(4, mesh.shape[self.axis])
        self.stage = stage
        self.ops: list[Op] = []

    def add(self, kind: str, name: str, inputs: tuple[Shape, ...], output: Shape) -> None:
        self.ops.append(Op(kind, name, inputs, output, "bf16", self.stage))

    def collective(self, name: str, elements: int) -> None:
        if self.size > 1:
            self.ops.append(
                Op("collective", name, ((elements,),), (), "bf16", self.stage, self.axis, self.size, Topology.LINEAR,
                   2 * elements)
            )  # fmt: skip


def text_encoder(mesh: MeshSpec, e: TextEncoder, name: str) -> list[Op]:
    """Return the ops that encode one prompt."""
    line = _Line(mesh, name)
    rows = e.tokens
    w = e.width
    n = line.size
    for _ in range(e.layers):
        line.add("norm", "norm", ((rows, w),), (rows, w))
        line.add("matmul", "linear", ((rows, w), (3 * w // n, w)), (rows, 3 * w // n))
        shape = (1, max(e.heads // n, 1), rows, w // e.heads)
        line.add("layout", "create_heads", (shape,), shape)
        line.add("sdpa", "sdpa", (shape, shape), shape)
        line.add("layout", "concat_heads", (shape,), shape)
        line.add("matmul", "linear", ((rows, w // n), (w, w // n)), (rows, w))
        line.collective("all_reduce", rows * w)
        line.add("elementwise", "add", ((rows, w), (rows, w)), (rows, w))
        line.add("norm", "norm", ((rows, w),), (rows, w))
        inner = e.inner // n
        for _ in range(2 if e.gated else 1):
            line.add("matmul", "linear", ((rows, w), (inner, w)), (rows, inner))
        if e.gated:
            line.add("elementwise", "mul", ((rows, inner), (rows, inner)), (rows, inner))
        line.add("matmul", "linear", ((rows, inner), (w, inner)), (rows, w))
        line.collective("all_reduce", rows * w)
        line.add("elementwise", "add", ((rows, w), (rows, w)), (rows, w))
    return line.ops


def image_decoder(mesh: MeshSpec, height: int, width: int, config: dict[str, Any]) -> list[Op]:
    """Return the decoder of an image autoencoder from a latent of (channels, height, width).

    Args:
        config: its config.json, of which the channels and layers of the levels count; a decoder may be narrower than
            the encoder.
    """
    line = _Line(mesh, "vae")
    n = line.size
    widths = (config.get("decoder_block_out_channels") or config["block_out_channels"])[::-1]

    def conv(pixels: int, cin: int, cout: int, kernel: int = 3) -> None:
        line.collective("all_gather", pixels * cin // n)
        out = max(cout // n, 3)
        line.add("matmul", "conv2d", ((pixels, cin), (out, cin, kernel)), (pixels, out))

    def norm(pixels: int, channels: int) -> None:
        part = (pixels, channels // n)
        line.add("elementwise", "group_norm_statistics", (part,), part)
        line.add("elementwise", "group_norm", (part,), part)
        line.add("elementwise", "silu", (part,), part)

    def resnet(pixels: int, cin: int, cout: int) -> None:
        line.add("layout", "clone", ((pixels, cin // n),), (pixels, cin // n))
        norm(pixels, cin)
        conv(pixels, cin, cout)
        norm(pixels, cout)
        conv(pixels, cout, cout)
        if cin != cout:
            conv(pixels, cin, cout, 1)
        part = (pixels, cout // n)
        line.add("elementwise", "add", (part, part), part)

    pixels = height * width
    top = widths[0]
    conv(pixels, config["latent_channels"], top)
    resnet(pixels, top, top)
    norm(pixels, top)
    line.add("matmul", "linear", ((pixels, top), (3 * top // n, top)), (pixels, 3 * top // n))
    shape = (1, 1, pixels, top)
    line.collective("all_gather", pixels * top // n)
    line.add("sdpa", "sdpa", (shape, shape), shape)
    resnet(pixels, top, top)
    for i, (cin, cout) in enumerate(zip((top, *widths), widths, strict=False)):
        for j in range(config["layers_per_block"] + 1):
            resnet(pixels, cin if j == 0 else cout, cout)
        if i < len(widths) - 1:
            pixels *= 4
            line.add("layout", "upsample", ((pixels, cout // n),), (pixels, cout // n))
            conv(pixels, cout, cout)
    norm(pixels, widths[-1])
    conv(pixels, widths[-1], 3)
    return line.ops


def encoder_of(companion: Companion) -> TextEncoder:
    """Return the sizes of a pipeline's encoder, its tokens rounded up to whole tiles."""
    spec, model = get_published(companion.published)
    keys = spec.encoder_keys
    assert keys is not None, f"{spec.name} is no text encoder"
    layers, width, heads, inner = (model.config[key] for key in (keys.layers, keys.width, keys.heads, keys.inner))
    return TextEncoder(layers, width, heads, inner, -(-companion.tokens // _TILE) * _TILE, keys.gated)


def around(model: Published, size: Shape, machine: replay.Machine) -> dict[str, float]:
    """Return the seconds of the stages before and after denoising that are modelled; all prompts."""
    by_stage = dict(_around(tuple(model.encoders), model.decoder, size, machine))
    is_image = model.decoder and len(size) == 2
    return by_stage | {"host": get_host_seconds()} if is_image else by_stage


@lru_cache(maxsize=64)  # a plan asks for the same ones again with every configuration
def _around(encoders: tuple[Companion, ...], decoder: str, size: Shape, machine: replay.Machine) -> dict[str, float]:
    """Return the seconds of encoders and decoder."""
    mesh = machine.mesh
    eager = replace(machine, params=replace(machine.params, gap_ns=EAGER_GAP_NS))

    def seconds(ops: list[Op]) -> float:
        return replay.replay(ops, eager).ns / 1e9

    by_stage = {c.stage: c.prompts * seconds(text_encoder(mesh, encoder_of(c), c.stage)) for c in encoders}
    if not decoder:
        return by_stage
    spec, published = get_published(decoder)
    if spec.latent == "video":
        frames_and_size = size if len(size) == 3 else (1, *size)
        return by_stage | {"vae": decoder_seconds(published, frames_and_size, eager)}
    return by_stage | {"vae": seconds(image_decoder(mesh, size[-2], size[-1], published.config))}
