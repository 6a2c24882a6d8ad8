"""Attention as the kernels run it, beside float64 and the figures of the facts: what each part of the error is from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from refsim.numerics.composites import Compute, attention

LEGACY = Compute("HiFi4", fp32_dest_acc_en=True)


def inputs(keys: int, queries: int = 128, heads: int = 1, width: int = 128) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = queries, keys, keys
    return [torch.randn(1, heads, size, width, generator=generator).bfloat16().float() for size in sizes]


def far(x: Tensor, wanted: Tensor) -> float:
    both = torch.stack([x.double().flatten(), wanted.double().flatten()])
    return 1 - torch.corrcoef(both)[0, 1].item()


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())


@pytest.mark.parametrize("level", ["exact", "fast"])
@pytest.mark.parametrize(("keys", "wanted"), [(1024, 2.9e-4), (9216, 3.1e-4)])
def test_streaming(level, keys, wanted):
    """d = 128, chunks of 128."""
    q, k, v = inputs(keys)
    ours = attention.attention(q, k, v, compute=replace(attention.SDPA, level=level))
    assert far(ours, exact(q, k, v)) == pytest.approx(wanted, rel=0.15)


def test_streaming_is_far_less_exact_than_legacy_and_a_hundred_times_than_torch():
    """3e-4 beside 1e-5 beside 3e-6 of bf16 probabilities in torch, at 1024 keys."""
    q, k, v = inputs(1024)
    wanted = exact(q, k, v)
    streaming = far(attention.attention(q, k, v), wanted)
    legacy = far(attention.attention(q, k, v, compute=replace(LEGACY, level="exact")), wanted)
    powers = torch.softmax(q @ k.mT / 128**0.5, dim=-1).bfloat16().float()
    rounded_once = far((powers @ v).bfloat16(), wanted)
    assert 10 < streaming / legacy < 50
    assert 50 < streaming / rounded_once < 200


def test_half_of_it_is_the_exponential(monkeypatch):
    """An accurate exp leaves 1.1 to 1.5e-4."""
    q, k, v = inputs(1024)
    monkeypatch.setattr(
        attention, "exp_approximate", lambda unit, x, scale: unit.stored(torch.exp(x.double() * scale).float())
    )
    ours = attention.attention(q, k, v, compute=replace(attention.SDPA, level="exact"))
    assert 1.0e-4 < far(ours, exact(q, k, v)) < 1.6e-4


def test_errors_of_some_rows_stand_for_those_of_all(monkeypatch):
    """Of many rows level fast computes a 16-bit destination for 32 alone."""
    q, k, v = inputs(512, queries=256, width=64)
    sampled = attention.attention(q, k, v)
    monkeypatch.setattr(attention, "MANY_ROWS", 1 << 20)
    emulated = attention.attention(q, k, v)
    assert not torch.equal(sampled, emulated)
    assert far(sampled, exact(q, k, v)) == pytest.approx(far(emulated, exact(q, k, v)), rel=0.15)


@pytest.mark.parametrize("compute", [attention.SDPA, LEGACY], ids=["streaming", "legacy"])
def test_ring(compute):
    """Four devices and joint tokens: every device sees all keys; the streaming ring is no worse than one device."""
    q, k, v = inputs(1024, queries=64, heads=2, width=64)
    _, joint_k, joint_v = inputs(96, queries=64, heads=2, width=64)
    wanted = exact(q, torch.cat([k, joint_k], 2), torch.cat([v, joint_v], 2))
    shards = list(zip(k.chunk(4, 2), v.chunk(4, 2), strict=True))
    ours = torch.cat(
        attention.ring_joint_attention(list(q.chunk(4, 2)), shards, (joint_k, joint_v), compute=compute), 2
    )
    single = attention.joint_attention(q, [(k, v), (joint_k, joint_v)], compute=compute)
    assert far(single, wanted) < 4e-4
    assert far(ours, wanted) < (4e-4 if compute is attention.SDPA else 1e-4)


def test_the_correction_has_its_flag_inverted():
    """`approximate` gives the accurate exponential, otherwise a polynomial runs that is no monotone function of it."""
    x = -torch.linspace(0, 20, 2001)
    errors = {}
    for approximate in (False, True):
        compute = Compute("HiFi2", approximate=approximate, level="exact")
        errors[approximate] = (attention._correction(x, 0.125, compute) / torch.exp(x.double() * 0.125) - 1).abs()
    assert errors[True].max() < 2.0**-7
    assert errors[False].max() < 2.0**-6
    assert not torch.equal(errors[True], errors[False])


def test_a_chunk_that_is_no_whole_tile():
    q, k, v = inputs(200, queries=32, width=64)
    assert far(attention.attention(q, k, v), exact(q, k, v)) < 5e-4
