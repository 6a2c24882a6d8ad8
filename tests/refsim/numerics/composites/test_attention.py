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
    q, k, v = inputs(keys, queries=131072 // keys)
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
        errors[approximate] = (attention.correction(x, 0.125, compute) / torch.exp(x.double() * 0.125) - 1).abs()
    assert errors[True].max() < 2.0**-7
    assert errors[False].max() < 2.0**-6
    assert not torch.equal(errors[True], errors[False])


def test_a_chunk_that_is_no_whole_tile():
    q, k, v = inputs(200, queries=32, width=64)
    assert far(attention.attention(q, k, v), exact(q, k, v)) < 5e-4


def later(rows: Tensor, columns: Tensor) -> Tensor:
    return columns > rows


def windowed(rows: Tensor, columns: Tensor) -> Tensor:
    """Windows of 96: whole chunks of 64 are hidden in front and behind."""
    return columns // 96 != rows // 96


@pytest.mark.parametrize("compute", [attention.SDPA, LEGACY], ids=["streaming", "legacy"])
@pytest.mark.parametrize("rows", [192, 288], ids=["each", "sampled"])
@pytest.mark.parametrize("hidden", [later, windowed])
def test_what_is_hidden(compute, rows, hidden):
    """Rows are as far off as without a mask, whether a tensor says what is hidden or a function."""
    q, k, v = inputs(rows, queries=rows, width=64)
    table = torch.where(hidden(torch.arange(rows)[:, None], torch.arange(rows)), -torch.inf, 0.0)[None, None]
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), table.double())
    stamped, added = (attention.attention(q, k, v, mask=mask, k_chunk=64, compute=compute) for mask in (hidden, table))
    assert far(stamped, wanted) < (5e-4 if compute is attention.SDPA else 1e-5)
    assert far(added, wanted) < (5e-4 if compute is attention.SDPA else 4e-5)
    if compute is attention.SDPA:
        assert torch.equal(stamped, added)


@pytest.mark.parametrize("level", ["exact", "fast"])
def test_a_mask_is_added_to_scores_in_l1(level):
    """A bias of every head and batch, beside one chunk by hand: the packer's sum, then attention of the sum."""
    q, k, v = inputs(64, queries=32, heads=2, width=32)
    compute = replace(attention.SDPA, level=level)
    bias = torch.randn(1, 1, 32, 64, generator=torch.Generator().manual_seed(1)).bfloat16().float() * 4
    ours = attention.attention(q, k, v, mask=bias, compute=compute)
    for head in range(2):
        scores = compute.store(compute.matmul(q[0, head], k[0, head].mT))
        scores = (scores.double() + bias[0, 0].double()).bfloat16().float()
        powers = torch.exp((scores - scores.amax(-1, keepdim=True)).double() / 32**0.5)
        wanted = powers @ v[0, head].double() / powers.sum(-1, keepdim=True)
        assert far(ours[0, head], wanted) < 5e-4
    assert far(ours, exact(q, k, v)) > 0.01


def test_a_sink_takes_its_share():
    q, k, v = inputs(96, queries=32, heads=2, width=32)
    sink = torch.tensor([3.0, -2.0])
    visits = attention.Visits(q)
    visits.visit(k, v)
    scores = torch.cat([q.double() @ k.double().mT, sink.double()[None, :, None, None].expand(1, 2, 32, 1)], -1)
    wanted = torch.softmax(scores / 32**0.5, -1)[..., :-1] @ v.double()
    ours = visits.result(sink).double()
    assert far(ours, wanted) < 5e-4
    assert (ours * wanted).sum() / (wanted * wanted).sum() == pytest.approx(1.0, abs=0.01)
