"""What is read off the models: repeated blocks, collectives of every scheme, dependencies between ops."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as functional

from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, get_mesh
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.layers.norm import LayerNorm
from refsim.models.registry import get, get_published, published, spec_of
from refsim.models.vae_wan.layers import ChannelNorm
from refsim.runtime.device import Device
from refsim.timing.read import reading as readings
from refsim.timing.read.meta import on_meta
from refsim.timing.read.reading import Reading, read, read_published
from refsim.timing.read.recorder import ReadingDevice, Recorder

T3K = get_mesh("t3k")
SMALL = {  # six blocks, small latents
    "sd35-medium": ((32, 32), {"dual_attention_layers": (0, 1, 2)}),
    "wan22-t2v-a14b": ((3, 8, 8), {}),
    "cogvideox-5b": ((3, 8, 8), {}),
}


def small(name: str, layers: int = 6):
    model, (size, changes) = published()[name], SMALL[name]
    return model.but(config=model.config | {"num_layers": layers} | changes, text=77), size


@pytest.mark.parametrize("name", SMALL)
def test_repeated_blocks_are_the_blocks(name):
    """Reading two blocks of a kind and repeating them gives what reading all of them gives, dependencies included."""
    (model, size), on = small(name), parse_parallel("sp4_tp2", T3K)
    short = read_published(model, size, RunOptions(T3K, on, dtype="bf16"))
    whole = read(model.config, spec_of(model).input_shapes(model, size, 2), RunOptions(T3K, on, dtype="bf16"))
    assert short.ops == whole.ops
    assert [(op.module, op.live) for op in short.ops] == [(op.module, op.live) for op in whole.ops]
    assert short.weights_bytes == whole.weights_bytes
    assert short.buffer_bytes == whole.buffer_bytes


def test_a_spec_that_counts_other_blocks_than_run(monkeypatch):
    (model, size), spec = small("sd35-medium"), get("sd35")
    wrong = replace(spec, block_counts=lambda config: {"block": 5, "last": 1})
    monkeypatch.setattr(
        readings, "spec_of", lambda model: replace(wrong, with_block_counts=lambda config, counts: config)
    )
    with pytest.raises(UserError, match="ran 6 blocks where its spec counts 3"):
        read_published(model, size, RunOptions.of(mesh="n150", dtype="bf16"))


@pytest.fixture(scope="module")
def schemes() -> dict[int, Reading]:
    """Wan over sp4_tp2, by Ulysses factor."""
    model, size = small("wan22-t2v-a14b", 2)
    return {
        u: read_published(
            model,
            size,
            RunOptions.of(mesh=T3K, parallel="sp4_tp2", attention="usp", ring=4 // u, ulysses=u, dtype="bf16"),
            batch=1,
        )
        for u in (1, 2, 4)
    }


@pytest.mark.parametrize("ulysses", [1, 2, 4])
def test_every_scheme_brings_its_own_collectives(schemes, ulysses):
    found = [op for op in schemes[ulysses].ops if op.kind == "collective" and op.axis == 1 and op.stage == "block 0"]
    names = Counter(op.name for op in found)
    assert names["all_to_all"] == (4 if ulysses > 1 else 0)  # q, k, v and the output
    assert names["ring_attention"] == (1 if ulysses < 4 else 0)
    rows, heads = 3 * 4 * 4 // 4, 20  # patches of 2 x 2, a quarter of them on 20 heads
    for op in found:
        if op.name == "all_to_all" and op is not found[-1]:
            assert op.size == ulysses and math.prod(op.inputs[0]) % (heads * 128) == 0
            assert math.prod(op.inputs[0]) >= rows * heads * 128
        if op.name == "ring_attention":
            assert op.size == 4 // ulysses and op.stride == ulysses, "the next member is a row of Ulysses further"


def test_each_op_reads_what_ran_before_it_and_nothing_is_computed_for_nobody(schemes):
    for reading in schemes.values():
        ops = reading.ops
        assert [op.id for op in ops] == list(range(len(ops)))
        assert all(read < op.id for op in ops for read in op.reads)
        used = {read for op in ops for read in op.reads}
        assert {op.id for op in ops} - used == {ops[-1].id}
        assert all(op.reads for op in ops if op.stage.startswith("block "))


def test_attention_reads_its_heads_and_a_later_step_what_the_ring_brought(schemes):
    ops = schemes[1].ops
    ring = next(op for op in ops if op.name == "ring_attention")
    assert {ops[i].name for i in ring.reads} == {"rotary_embedding", "linear"}  # keys and values
    steps = [op for op in ops if op.ring == ring.ring and op.kind == "sdpa"]
    assert all(ring.id in step.reads for step in steps if step.step > 0)
    assert all(a.id in b.reads for a, b in pairwise(steps)), "steps merge into one result"


def test_a_norm_counts_once_where_nothing_is_distributed():
    model, size = small("sd35-medium", 4)
    reading = read_published(model, size, RunOptions.of(mesh=T3K, parallel="sp4_cfg2", dtype="bf16"), batch=2)
    joint = Counter(op.name for op in reading.ops if op.stage == "block 0" and op.kind == "norm")
    assert joint["layer_norm"] == 4, "before attention and feed-forward, image and prompt"


def test_the_decoders_are_counted_as_diffusers_runs_them():
    """But for what CogVideoX's norms ask of the latent, which diffusers enlarges first and refsim last."""
    from torch.utils.flop_counter import FlopCounterMode

    from refsim.timing.predict.replay import flops

    diffusers = pytest.importorskip("diffusers")
    blocks = {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "up_block_types": ("CogVideoXUpBlock3D",) * 4}
    widths = {"block_out_channels": (128, 256, 256, 512), "layers_per_block": 3}
    for name, make in (
        ("cogvideox-vae", lambda: diffusers.AutoencoderKLCogVideoX(**blocks, **widths)),
        ("wan21-vae", diffusers.AutoencoderKLWan),
    ):
        with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as counted:
            make().eval().decode(torch.empty(1, 16, 3, 8, 8))
        of_latent = sum(
            sum(found.values())
            for module, found in counted.get_flop_counts().items()
            if module.endswith(("conv_y", "conv_b"))
        )
        config = get_published(name)[1].config
        ops = read(config, {"z": (1, 16, 3, 8, 8)}, RunOptions.of(mesh="n150", dtype="bf16")).ops
        found = sum(flops(op) for op in ops if name == "wan21-vae" or op.name != "conv3d" or op.inputs[1][1] != 16)
        assert found == counted.get_total_flops() - of_latent


@pytest.mark.parametrize(
    ("name", "changes", "channels", "apart"),
    [("sd35-vae", {}, 16, 1e-9), ("flux2-vae", {"decoder_block_out_channels": (96, 192, 384, 384)}, 32, 3e-5)],
    ids=["sd35", "narrower_than_the_encoder"],
)
def test_the_image_decoder_is_counted_as_refsim_runs_it(name, changes, channels, apart):
    """Convolutions, and the bytes of channels gathered on a line of four; FLUX.2's 1 x 1 one on latents is left out."""
    from refsim.timing.predict.replay import flops
    from refsim.timing.predict.stages import image_decoder

    config = get_published(name)[1].config | changes
    line = MeshSpec("line", "four in a line", "wormhole_b0", (1, 4), (1, 1), (False, False))
    ops = read(
        config,
        {"z": (1, channels, 64, 48)},
        RunOptions.of(mesh=line, parallel="tp4", vae_parallel="tensor", dtype="bf16"),
    ).ops
    counted = image_decoder(line, 64, 48, config)
    for kind, name, rel in (("collective", "all_gather", 0.002), ("matmul", "conv2d", apart)):
        mine, theirs = ([op for op in found if op.name == name] for found in (counted, ops))
        assert {op.kind for op in (*mine, *theirs)} == {kind}
        worth = (lambda op: op.bytes) if kind == "collective" else flops
        assert sum(map(worth, mine)) == pytest.approx(sum(map(worth, theirs)), rel=rel)


@pytest.mark.parametrize(
    ("name", "frames"),
    [("wan21-vae", 5), ("cogvideox-vae", 7)],
)
def test_chunks_of_a_decoder_behind_the_first_are_alike(name, frames):
    from refsim.timing.cost.fitted import get_params
    from refsim.timing.predict import decoders, replay
    from refsim.timing.read.program import programs

    machine = replay.machine(T3K, get_params(T3K.arch))
    shape = (1, 16, frames, 16, 32)
    model = get_published(name)[1]
    ops = read(model.config, {"z": shape}, RunOptions.of(mesh=T3K, parallel="sp2@0_tp4@1", dtype="bf16")).ops
    whole = replay.replay(programs(ops), machine).ns
    assert decoders.decoder_ns(model, shape[2:], machine) == pytest.approx(whole, rel=1e-3)


class CubicNorm:
    """A norm as a user's package may bring it; ``declared`` says what it is."""

    def __init__(self, device: Device, *, declared: bool) -> None:
        self._device, self._declared = device, declared

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with self._device.compute("rms_norm", x) if self._declared else nullcontext():
            return x * x.abs().pow(3).mean(-1, keepdim=True).rsqrt()


def ops_of(layer, *arguments: torch.Tensor) -> list:
    """What is read when ``layer(device)`` is called on tensors of the shapes of ``arguments``."""
    device = ReadingDevice(RunOptions.of(mesh="n150"))
    with torch.device("meta"), torch.inference_mode(), Recorder(device):
        layer(device)(*(torch.empty(x.shape) for x in arguments))
    return device.ops


def test_a_norm_of_ones_own_is_one_op_once_it_says_so():
    x = torch.empty(1, 32, 64)
    assert [(op.kind, op.name, op.output) for op in ops_of(lambda d: CubicNorm(d, declared=True), x)] == [
        ("norm", "rms_norm", (1, 32, 64))
    ]
    loose = ops_of(lambda d: CubicNorm(d, declared=False), x)
    assert len(loose) > 1
    assert Reading(loose).unclassified == {"mean": 1}, "which `refsim time` prints"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.layer_norm(x, x.shape[-1:]),
        lambda x: functional.group_norm(x, 4),
        lambda x: functional.rms_norm(x, x.shape[-1:]),
        lambda x: functional.normalize(x, dim=1),
        lambda x: x.softmax(-1),
        lambda x: (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True).sqrt(),
    ],
    ids=["layer_norm", "group_norm", "rms_norm", "normalize", "softmax", "by_hand"],
)
def test_a_reduction_that_nobody_declares_is_told(call):
    assert Reading(ops_of(lambda _: call, torch.empty(1, 32, 64))).unclassified


@pytest.mark.parametrize("name", published())
def test_every_reduction_of_the_published_models_is_declared(name):
    model = get_published(name)[1]
    few = dict.fromkeys(spec_of(model).block_counts(model.config), 1)
    size = next(iter(model.sizes.values()))
    shapes = spec_of(model).input_shapes(model, size, 2)
    config = spec_of(model).with_block_counts(model.config, few)
    assert not read(config, shapes, RunOptions.of(mesh=T3K, parallel="sp4_tp2", dtype="bf16")).unclassified


def test_a_norm_inside_a_norm_counts_once():
    def outer(device):
        inner = LayerNorm(device, features=64, eps=1e-6)

        def call(x):
            with device.compute("rms_norm", x):
                return inner(x) + inner(x)

        return call

    assert [op.name for op in ops_of(outer, torch.empty(1, 32, 64))] == ["rms_norm"]


def test_a_norm_of_pictures_has_its_channels_last():
    def layer(device):
        weights = ShapeWeights(torch.float32)
        return ChannelNorm(weights, device, "norm", channels=16, dims=3)

    (op,) = ops_of(layer, torch.empty(1, 16, 3, 8, 4))
    assert (op.kind, op.name, op.output) == ("norm", "rms_norm", (1, 3, 8, 4, 16))


def test_an_op_without_a_price_is_named():
    def layer(device):
        def call(x):
            with device.compute("cubic_norm", x):
                return x

        return call

    with pytest.raises(UserError, match=r"'cubic_norm'.*rms_norm"):
        ops_of(layer, torch.empty(1, 32, 64))


def test_functions_that_were_replaced_when_torch_first_used_a_device_count(monkeypatch):
    """transformers loads models with ``torch.linspace`` replaced, on ``meta``: torch would know it no more."""
    from torch.utils import _device

    real = torch.linspace
    monkeypatch.setattr(torch, "linspace", lambda *args: real(*args))
    _device._device_constructors.cache_clear()
    with torch.device("meta"):
        pass
    assert real not in _device._device_constructors()
    monkeypatch.undo()
    with on_meta():
        assert torch.linspace(0, 1, 3).is_meta
