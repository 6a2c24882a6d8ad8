"""Ops of layers computed as a device does: what the rules give is what refsim.numerics gives of the same tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from refsim import api
from refsim.base.device_numerics import DeviceNumerics
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.layers import norm, rope
from refsim.layers.group_norm import _normed as group_norm
from refsim.models.vae_wan.layers import _normed as channel_norm
from refsim.numerics import from_host
from refsim.numerics.composites import Compute, attention, collectives, elementwise, linear, norms
from refsim.parallel.sdpa import MergedBlocks, _blocks_of_keys
from refsim.runtime.rounding import as_device
from refsim.runtime.tensor import MeshTensor
from tests.refsim.helpers import assert_one_sentence

UNIT = Compute("HiFi4")
WIDE = Compute("HiFi4", fp32_dest_acc_en=True)


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rounding(spec: str = "fast", dtype: str = "bf16"):
    return as_device(DeviceNumerics.parse(spec), dtype, "wormhole_b0")


@pytest.mark.parametrize("spec", ["fast", "exact:weights=bfloat8_b,fidelity=LoFi,k_block=64", "fast:ops=sdpa+norm"])
def test_a_spec_is_read_and_written(spec):
    assert str(DeviceNumerics.parse(spec)) == spec


def test_short_names_of_formats_are_known():
    assert DeviceNumerics.parse("fast:weights=bfp8_b,activations=fp32").weights == "bfloat8_b"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("slow", "names no level"),
        ("fast:colour=red", "KEY=VALUE of weights"),
        ("fast:fidelity", "KEY=VALUE"),
        ("fast:fidelity=HiFi5", "choose one of LoFi"),
        ("fast:k_block=100", "multiple of 32"),
        ("fast:approximate=maybe", "true nor false"),
        ("fast:ops=linear+magic", "ops=magic does not exist"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_sentence(spec, said):
    with pytest.raises(UserError, match=said) as caught:
        RunOptions.of(mesh="n150", device_numerics=spec)
    assert_one_sentence(caught.value.with_flags)


def test_a_run_with_it_is_in_bf16_on_refsims_ranks():
    assert RunOptions.of(mesh="n150", device_numerics="fast").dtype == "bf16"
    with pytest.raises(UserError, match="is for refsim's ranks") as caught:
        RunOptions.of(mesh="n150", backend="ttnn-mock", device_numerics="fast")
    assert_one_sentence(str(caught.value))


def test_a_linear_has_its_weights_format_fidelity_and_destination():
    x = draw(40, 96)
    weight = draw(24, 96, seed=1)
    bias = draw(24, seed=2)
    packed = from_host(F.pad(weight.float().T, (0, 8)), "bfloat8_b")[:, :24]
    for spec, product, compute in (
        ("fast:weights=bfp8_b,fidelity=LoFi", linear.minimal_matmul, Compute("LoFi", True)),
        ("fast:weights=bfp8_b,dest=bf16,k_block=32", linear.linear, Compute("HiFi2", packer_l1_acc=True)),
    ):
        k_block = 32 if "k_block" in spec else 256
        expected = product(x.float(), packed, bias.float(), compute=compute, k_block=k_block)
        with rounding(spec):
            assert torch.equal(F.linear(x, weight, bias).float(), expected)


def test_ops_that_layers_mark_follow_their_rules():
    x = draw(1, 2, 8, 32)
    weight = draw(32, seed=1)
    cos, sin = torch.rand(2, 8, 16)
    values = x.float()
    tables = [table.bfloat16().float().repeat_interleave(2, -1) for table in (cos, sin)]
    with rounding() as without_rule:
        normed = norm._rms_normed(x, weight, 1e-6)
        by_torch = F.rms_norm(x, (32,), weight, 1e-6)
        turned = rope._turned_pairs(x, cos, sin)
        halves = rope._turned_halves(torch.cat([x[..., ::2], x[..., 1::2]], -1), cos, sin)
        total = (MeshTensor(x) + MeshTensor(x * weight)).local
        third = x / 3.0
    assert torch.equal(normed.float(), norms.rms_norm(values, weight.float(), eps=1e-6, compute=WIDE))
    assert torch.equal(by_torch, normed)
    assert torch.equal(turned.float(), elementwise.rotary(values, *tables, compute=UNIT))
    assert torch.equal(torch.stack(halves.chunk(2, -1), -1).flatten(-2), turned)
    assert torch.equal(third.float(), elementwise.divide(values, torch.tensor(3.0), compute=UNIT))
    product = elementwise.multiply(values, weight.float(), compute=UNIT)
    assert torch.equal(total.float(), elementwise.add(values, product, compute=UNIT))
    assert not without_rule


def test_attention_with_a_mask_and_norms_over_channels_follow_their_rules():
    q, k = draw(2, 4, 40, 32), draw(2, 2, 40, 32, seed=1)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    added = torch.where(seen, 0.0, -torch.inf)[None, None]
    x, gamma = draw(2, 64, 3, 5, 4), draw(64, 1, 1, 1, seed=2)
    with rounding() as without_rule:
        masked = F.scaled_dot_product_attention(q, k, k, seen, enable_gqa=True)
        causal = F.scaled_dot_product_attention(query=q, key=q, value=q, dropout_p=0.0, is_causal=True)
        normed = channel_norm(x, 8.0, gamma)
        y = x.float().unflatten(1, (4, 16))
        moments = y.mean((2, 3, 4, 5), keepdim=True), y.var((2, 3, 4, 5), correction=0, keepdim=True)
        grouped = group_norm(y, moments, gamma[None, :, 0], gamma[None, :, 0], 1e-6).to(x.dtype)
    keys = k.float().repeat_interleave(2, 1)
    streaming = Compute("HiFi2", packer_l1_acc=True)
    assert torch.equal(masked.float(), attention.attention(q.float(), keys, keys, mask=added, compute=streaming))
    one = q.float()
    assert torch.equal(causal.float(), attention.attention(one, one, one, mask=added, compute=streaming))
    rows = x.float().movedim(1, -1)
    flat = gamma.float().flatten()
    assert torch.equal(normed.float().movedim(1, -1), norms.rms_norm(rows, flat, eps=0.0, compute=WIDE))
    how = {"moments": tuple(moment.flatten(1) for moment in moments), "eps": 1e-6, "compute": WIDE}
    assert torch.equal(grouped.float(), norms.group_norm(x.float(), 4, flat, flat, **how))
    assert not without_rule


def test_features_of_a_head_need_be_no_whole_tiles():
    x = draw(1, 2, 8, 64)
    cos, sin = torch.rand(2, 8, 32)
    with rounding():
        turned = rope._turned_pairs(x, cos, sin)
        part = rope._turned_pairs(x[..., :20], cos[:, :10], sin[:, :10])
    assert torch.equal(part, turned[..., :20])


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_distributed_norm_is_made_of_statistics_and_what_follows(kind):
    x = draw(1, 2, 8, 32)
    rows = x.transpose(1, 2).flatten(2)
    shards = [rows[..., :32], rows[..., 32:]]
    with rounding():
        if kind == "layer":
            gathered = torch.cat([norm._statistics(shard) for shard in shards], -1)
            ours = torch.cat([norm._by_statistics(shard, gathered, [32, 32], 64, 1e-6) for shard in shards], -1)
            expected = norms.distributed_norm([shard.float() for shard in shards], eps=1e-6, compute=WIDE)
        else:
            ours = norm._by_squares(x, norm._sum_of_squares(x), torch.ones(2, 1, 32), 64, 1e-6)
            ours = ours.transpose(1, 2).flatten(2)
            expected = [norms.rms_norm(rows.float(), torch.ones(64), eps=1e-6, compute=WIDE)]
    assert (ours.float() - torch.cat(expected, -1)).abs().max() <= 2**-7


def test_only_named_ops_are_rounded_and_what_has_no_rule_is_counted():
    x = draw(4, 32)
    with rounding("fast:ops=norm") as without_rule:
        assert torch.equal(x + x, x.float().mul(2).bfloat16())
        assert isinstance(_blocks_of_keys(RunOptions.of(mesh="n150"), draw(1, 1, 4, 32)), MergedBlocks)
        torch.cumsum(x, 0)
    assert without_rule == {"cumsum": 1}


def test_in_fp32_one_op_is_a_devices_and_its_neighbours_are_exact():
    x = torch.randn(8, 64)
    weight = torch.randn(32, 64)
    with rounding("fast:ops=linear,activations=bfloat16", "fp32"):
        ours = F.linear(x, weight)
        normed = F.layer_norm(x, (64,))
    assert torch.equal(ours, ours.bfloat16().float())
    assert not torch.equal(ours, F.linear(x, weight))
    assert torch.equal(normed, F.layer_norm(x, (64,)))


@pytest.mark.parametrize("dest", ["bf16", "fp32"])
def test_ranks_of_a_ring_give_the_bits_of_the_ring_kernel(dest):
    """Streaming: maximum, sums and output are carried; legacy: merged by log-sum-exp."""
    q, k, v = (draw(1, 1, 128, 32, seed=seed) for seed in range(3))
    spec = f"fast:sdpa_dest={dest}"
    out, _, _ = api.simulate_attention(q, k, v, mesh="n300", device_numerics=spec, dtype="bf16")
    shards = list(zip(k.float().chunk(2, 2), v.float().chunk(2, 2), strict=True))
    compute = Compute("HiFi2", fp32_dest_acc_en=dest == "fp32", packer_l1_acc=True)
    expected = attention.ring_joint_attention(list(q.float().chunk(2, 2)), shards, compute=compute)
    assert torch.equal(out.float(), torch.cat(expected, 2))


def test_a_hop_adds_as_the_matrix_unit_does():
    from refsim.ccl.reduce_scatter import _hop

    a = draw(4, 64)
    b = draw(4, 64, seed=1)
    with rounding():
        ours = _hop(a, b)
    expected = collectives.reduce_scatter([torch.cat([a.float()] * 2, -1), torch.cat([b.float()] * 2, -1)])[0]
    assert torch.equal(ours.float(), expected)


def test_a_convolution_is_that_of_the_numerics():
    x = draw(1, 32, 6, 6)
    weight = draw(32, 32, 3, 3, seed=1)
    with rounding():
        ours = F.conv2d(x, weight, None, 2, 1)
    compute = Compute("HiFi2", fp32_dest_acc_en=True, packer_l1_acc=True)
    theirs = linear.conv(x.float(), weight.float(), compute=compute, windows=linear.Windows(padding=1, stride=2))
    assert ours.shape == (1, 32, 3, 3) and torch.equal(ours.float(), theirs)
    assert not torch.equal(ours, F.conv2d(x, weight, None, 2, 1))


def test_where_an_operand_has_no_elements_the_answer_is_torchs():
    """A rank may hold no column of a cut matrix, or no row of a stream."""
    x, weight, bias = draw(3, 64), draw(32, 64, seed=1), draw(32, seed=2)
    with rounding():
        assert F.linear(x, weight[:0], bias[:0]).shape == (3, 0)
        assert F.linear(x[:0], weight, bias).shape == (0, 32)
        assert torch.equal(F.linear(x[:, :0], weight[:, :0], bias), bias.expand(3, -1))
        assert (x + bias[:0, None, None]).shape == (0, 3, 64)
