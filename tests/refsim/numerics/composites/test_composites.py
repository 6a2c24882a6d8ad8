"""Composites beside float64 and beside figures emulated on the simulator's arithmetic (facts of 2026-11-26)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics import matmul, pack
from refsim.numerics.composites import Compute, collectives, elementwise, linear, norms


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def far(x: Tensor, wanted: Tensor) -> float:
    """1 - PCC."""
    both = torch.stack([x.double().flatten(), wanted.double().flatten()])
    return 1 - torch.corrcoef(both)[0, 1].item()


def gain(x: Tensor, wanted: Tensor) -> float:
    x, wanted = x.double().flatten(), wanted.double().flatten()
    return (x @ wanted / (wanted @ wanted)).item()


LEVELS = pytest.mark.parametrize("level", ["exact", "fast"])
WIDE_K = random(64, 2432), (random(2432, 256, seed=1) / 49).bfloat16().float()


@LEVELS
@pytest.mark.parametrize(
    ("k_block", "wanted", "gained"), [(64, 4.1e-5, 0.9989), (256, 4.2e-5, 1.003), (608, 8.7e-5, 1.009)]
)
def test_k_blocks_in_l1(level, k_block, wanted, gained):
    """With a bias every block is added in L1, in bf16."""
    x, weight = WIDE_K
    compute = Compute("HiFi2", packer_l1_acc=True, level=level)
    ours = linear.linear(x, weight, torch.zeros(256), compute=compute, k_block=k_block)
    assert far(ours, x.double() @ weight.double()) == pytest.approx(wanted, rel=0.1)
    assert gain(ours, x.double() @ weight.double()) == pytest.approx(gained, abs=1e-3)


@LEVELS
def test_one_k_block_and_a_wide_destination(level):
    x, weight = WIDE_K
    wanted = x.double() @ weight.double()
    whole = linear.linear(x, weight, compute=Compute("HiFi2", level=level))
    assert far(whole, wanted) == pytest.approx(4.9e-4, rel=0.1)
    assert gain(whole, wanted) == pytest.approx(1.033, abs=1e-3)
    wide = linear.minimal_matmul(x, weight, k_block=256, compute=Compute("HiFi2", fp32_dest_acc_en=True, level=level))
    assert far(wide, wanted) == pytest.approx(5.8e-6, rel=0.1)


def test_the_last_block_starts_from_the_others_without_a_bias():
    """So it rounds a large destination sixteen at a time, which drifts more than adding a block in L1."""
    x, weight = WIDE_K
    compute = Compute("HiFi2", packer_l1_acc=True, level="exact")
    wanted = x.double() @ weight.double()
    with_bias = linear.linear(x, weight, torch.zeros(256), compute=compute, k_block=608)
    assert gain(linear.linear(x, weight, compute=compute, k_block=608), wanted) > gain(with_bias, wanted) + 0.005


def test_a_start_is_what_went_before():
    """Two blocks one after the other are one matmul, where the destination is neither packed nor cut between them."""
    x, weight = random(32, 128), random(128, 64, seed=1)
    for wide in (True, False):
        for level in ("exact", "fast") if not wide else ("exact",):
            options = {"fp32_dest_acc_en": wide, "level": level}
            first = matmul(x[:, :64], weight[:64], **options)
            assert torch.equal(matmul(x[:, 64:], weight[64:], start=first, **options), matmul(x, weight, **options))


def test_default_compute():
    assert linear.default_compute("bfloat16", "bfloat16", "bfloat16").fidelity == "HiFi2"
    assert linear.default_compute("bfloat16", "bfloat16", "bfloat16", program_config=True).fidelity == "LoFi"
    assert linear.default_compute("bfloat8_b", "bfloat4_b", "bfloat16").fidelity == "LoFi"
    assert linear.default_compute("float32", "float32", "float32", arch="blackhole").fidelity == "HiFi4"
    assert linear.default_compute("float32", "float32", "float32") == Compute("HiFi3", fp32_dest_acc_en=True)


@pytest.mark.parametrize("function", ["gelu", "silu"])
def test_fused_activation(function):
    x, weight, bias = random(32, 64), random(64, 32, seed=1) / 8, random(32, seed=2)
    compute = Compute("HiFi4", fp32_dest_acc_en=True, level="exact")
    ours = linear.linear(x, weight, bias, compute=compute, activation=function)
    wanted = getattr(torch.nn.functional, function)(x.double() @ weight.double() + bias.double())
    assert far(ours, wanted) < 1e-5


@pytest.mark.parametrize("spatial", [2, 3])
def test_convolutions_are_matmuls(monkeypatch, spatial):
    sizes = (5, 6, 7)[-spatial:]
    x, weight, bias = random(2, 32, *sizes), random(8, 32, *[3] * spatial, seed=1) / 16, random(8, seed=2)
    function = getattr(torch.nn.functional, f"conv{spatial}d")
    ours = linear.conv(
        x, weight, bias, compute=Compute(fp32_dest_acc_en=True, packer_l1_acc=True), windows=linear.Windows(padding=1)
    )
    assert ours.shape == function(x, weight, bias, padding=1).shape
    assert far(ours, function(x.double(), weight.double(), bias.double(), padding=1)) < 1e-5
    strided = linear.conv(x, weight, bias, compute=Compute(), windows=linear.Windows(stride=2, dilation=2))
    assert far(strided, function(x, weight, bias, stride=2, dilation=2)) < 1e-3
    blocks = linear.conv(x, weight, bias, compute=Compute(), blocks=(None, x.shape[1] // 2))
    assert far(blocks, function(x, weight, bias)) < 1e-3
    monkeypatch.setattr(linear, "_WINDOWS_AT_ONCE", 2000)  # of a row or two of the picture at once: the same bits
    assert torch.equal(linear.conv(x, weight, bias, compute=Compute(), blocks=(None, x.shape[1] // 2)), blocks)


@LEVELS
@pytest.mark.parametrize(
    ("devices", "wanted", "gained"),
    [(2, 1.3e-6, 1.0008), (4, 3.1e-6, 1.0017), (8, 6.7e-6, 1.003), (32, 3.5e-5, 1.0081)],
)
def test_reduce_scatter(level, devices, wanted, gained):
    parts = [random(64, 1024, seed=seed) for seed in range(devices)]
    whole = sum(part.double() for part in parts)
    ours = collectives.all_reduce(parts, compute=Compute(level=level))
    assert far(ours, whole) == pytest.approx(wanted, rel=0.1)
    assert gain(ours, whole) == pytest.approx(gained, abs=2e-4)
    chunk = collectives.reduce_scatter(parts, compute=Compute(level=level))[1]
    assert torch.equal(chunk, ours.chunk(devices, dim=-1)[1])


NORMED = (2 * random(32, 2432) + 1).bfloat16().float()


@LEVELS
def test_norms(level):
    weight, bias = random(2432, seed=1), random(2432, seed=2)
    exact = torch.nn.functional.layer_norm(NORMED.double(), (2432,), weight.double(), bias.double())
    wide = norms.layer_norm(NORMED, weight, bias, compute=replace(norms.LAYER_NORM, level=level))
    assert far(wide, exact) < 4e-6
    narrow = norms.layer_norm(NORMED, weight, bias, compute=Compute("HiFi4", level=level))
    assert far(wide, exact) < far(narrow, exact) < 1e-4
    exact = torch.nn.functional.rms_norm(NORMED.double(), (2432,), weight.double(), eps=1e-5)
    assert 2e-6 < far(norms.rms_norm(NORMED, weight, compute=replace(norms.RMS_NORM, level=level)), exact) < 1e-4
    shards, weights, biases = NORMED.chunk(4, -1), weight.chunk(4), bias.chunk(4)
    compute = replace(norms.DISTRIBUTED_NORM, level=level)
    parts = norms.distributed_norm(list(shards), list(weights), list(biases), compute=compute)
    exact = torch.nn.functional.layer_norm(NORMED.double(), (2432,), weight.double(), bias.double())
    assert far(torch.cat(parts, -1), exact) < 1e-4
    parts = norms.distributed_norm(list(shards), list(weights), kind="rms", compute=compute)
    exact = torch.nn.functional.rms_norm(NORMED.double(), (2432,), weight.double(), eps=1e-5)
    assert far(torch.cat(parts, -1), exact) < 1e-4


def test_a_large_mean_costs_a_distributed_norm_its_variance():
    """It takes the mean's square from the mean of squares, both in bf16; the whole one takes squares of differences."""
    x = (random(32, 1024) + 6).bfloat16().float()
    exact = torch.nn.functional.layer_norm(x.double(), (1024,))
    apart = torch.cat(norms.distributed_norm(list(x.chunk(4, -1))), -1)
    assert far(norms.layer_norm(x), exact) < 1e-3
    assert abs(gain(apart, exact) - 1) > 10 * abs(gain(norms.layer_norm(x), exact) - 1)


def test_group_norm_and_softmax():
    x = random(2, 64, 8, 8)
    exact = torch.nn.functional.group_norm(x.double(), 4)
    assert far(norms.group_norm(x, 4, compute=Compute(fp32_dest_acc_en=True)), exact) < 1e-5
    assert far(norms.group_norm(x, 4), exact) < 2e-4
    scores = (3 * random(32, 1024)).bfloat16().float()
    assert far(norms.softmax(scores), torch.softmax(scores.double(), -1)) < 1e-4
    small = norms.softmax(scores / 4, stable=False)
    assert far(small, torch.softmax(scores.double() / 4, -1)) < 1e-4


def test_a_shard_adds_its_tiles_in_the_destination():
    """300 tiles of 1 become one of 344, halves away from zero, whose mean is 344 / 300."""
    ones = torch.ones(1, 32, 300 * 32)
    mean, _ = norms.summed_moments(ones, 1, blocks=None)
    assert mean.item() == pytest.approx(344 / 300, rel=0.01)
    signs = torch.tensor([1.5, -1.5]).repeat(32 * 16).reshape(1, 32, 32)
    assert norms.summed_moments(signs, 1, blocks=None)[1].item() == 2.25


def test_gathered_means_lie_16_bytes_apart():
    """Face by face: the third is the first of the second row, the 33rd the first of the second face."""
    tiles = norms._in_slots(torch.arange(1.0, 130.0))
    assert tiles.shape == (64, 32)
    places = {(0, 0): 1, (0, 8): 2, (1, 0): 3, (0, 16): 33, (16, 0): 65, (16, 16): 97, (32, 0): 129}
    assert {place: tiles[place].item() for place in places} == places
    assert tiles.count_nonzero() == 129


def test_cores_and_blocks_share_a_mean():
    """In one block a destination of 16 bits adds 16 tiles; on 8 cores, in 2 blocks each, every one stands alone."""
    x = torch.randn(1, 64, 512, generator=torch.Generator().manual_seed(0)).add(3).bfloat16().float()
    exact = torch.nn.functional.group_norm(x.double(), 2)

    def error(compute: Compute, **shares: int) -> float:
        moments = norms.summed_moments(x, 2, compute=compute, **shares)
        return far(norms.group_norm(x, 2, moments=moments, compute=compute), exact)

    assert error(norms.RMS_NORM, cores=8, blocks=2) < far(norms.group_norm(x, 2), exact)
    wide = Compute(fp32_dest_acc_en=True)
    for cores, blocks in ((1, 1), (4, 3), (16, 1), (4, 9), (1, None), (8, None)):
        assert error(wide, cores=cores, blocks=blocks) < 1e-4
    many = torch.randn(1, 32, 256 * 32, generator=torch.Generator().manual_seed(1)).abs()
    mean = norms._mean_of_cores(many.mT, 256, 1, wide)  # roots of 1 / 1024 and 1 / 256 are exact
    assert 1 - 2 * 2.0**-7 < mean.item() / many.mean().item() < 1 + 2.0**-10  # two rows are cut to bf16


@pytest.mark.parametrize("arch", ["wormhole_b0", "blackhole"])
@pytest.mark.parametrize(("level", "ulps"), [("exact", 1), ("fast", 2)])
def test_quotients(arch, level, ulps):
    """16 bits are rounded rightly, 32 to a unit in the last place; the reciprocal packed before is worse."""
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.randn(4000, generator=generator) * 2.0 ** torch.randint(-30, 30, (4000,), generator=generator)
        for _ in range(2)
    )
    compute = Compute("HiFi4", fp32_dest_acc_en=False, arch=arch, level=level)
    wide = elementwise.divide(a, b, dtype="float32", compute=compute)
    assert ((wide.double() * b.double() / a.double() - 1).abs() < ulps * 2.0**-23).all()
    a, b = a.bfloat16().float(), b.bfloat16().float()
    assert torch.equal(elementwise.divide(a, b, compute=compute), (a / b).bfloat16().float())
    assert not torch.equal(elementwise.divide(a, b, fast=True, compute=compute), (a / b).bfloat16().float())
    zero = torch.zeros(3)
    ends = torch.tensor([1.0, -1.0, 0.0])
    assert elementwise.divide(ends, zero, compute=compute).tolist() == [
        math.inf,
        -math.inf,
        math.inf,
    ]  # NaN is packed so
    assert elementwise.divide(ends, zero, dtype="float32", compute=compute).isnan().tolist() == [False, False, True]


def test_a_logit_rounds_what_is_left_of_one():
    """As torch computes it of bfloat16: 1 - 0.498 is 0.5, so the logit is half as large as that of 0.498."""
    x = torch.tensor([0.498046875, 0.25, 0.75])
    assert elementwise.logit(x).tolist() == torch.logit(x.bfloat16()).tolist()
    assert torch.allclose(elementwise.logit(x, dtype="float32"), torch.logit(x), rtol=1e-5)


def test_elementwise():
    x, shift, scale = random(4, 32, 64), random(1, 1, 64, seed=1), random(1, 1, 64, seed=2)
    wanted = x.double() * (1 + scale.double()) + shift.double()
    assert 1e-7 < far(elementwise.modulate(x, shift, scale), wanted) < 2e-5
    assert (
        far(elementwise.addcmul(shift, x, scale, value=0.5), shift.double() + 0.5 * x.double() * scale.double()) < 3e-6
    )
    zero = torch.zeros(4)
    assert elementwise.multiply(zero, torch.full((4,), math.inf)).tolist() == [0.0] * 4
    assert far(elementwise.subtract(x, shift), x - shift) < 3e-6
    assert torch.equal(elementwise.add(x, shift, dtype="float32"), x + shift)
    assert far(elementwise.activation("silu", x), torch.nn.functional.silu(x.double())) < 1e-5
    assert far(elementwise.multiply(x, scale, fast=True), x.double() * scale.double()) < 5e-6


def test_rotary():
    x, angles = random(2, 3, 16, 64), random(16, 32, seed=1).repeat_interleave(2, dim=-1)
    cos, sin = angles.cos().bfloat16().float(), angles.sin().bfloat16().float()
    even, odd = x[..., ::2].double(), x[..., 1::2].double()
    turned = torch.stack([-odd, even], dim=-1).flatten(-2)
    assert 1e-7 < far(elementwise.rotary(x, cos, sin), x.double() * cos + turned * sin) < 1e-5


def test_movement_rounds_only_by_format():
    table = random(16, 32)
    assert torch.equal(elementwise.embedding(torch.tensor([3, 5]), table), table[[3, 5]])
    x = table + 2.0**-12
    assert torch.equal(
        elementwise.tilize(x, dtype="float32"),
        torch.where(x > 0, x, x).view(torch.int32).bitwise_and(-(1 << 13)).view(torch.float32),
    )
    assert torch.equal(elementwise.tilize(table, dtype="bfloat8_b"), pack(table, "bfloat8_b"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: collectives.reduce_scatter([torch.zeros(1, 3)] * 2), "can't be cut for 2 devices"),
        (lambda: norms.group_norm(torch.zeros(1, 6, 4), 4), "6 channels are no multiple of 4 groups"),
        (lambda: norms.distributed_norm([torch.zeros(1, 4)], kind="batch"), "choose one of layer, rms"),
    ],
)
def test_mistakes_are_sentences(call, said):
    with pytest.raises(UserError, match=said):
        call()
