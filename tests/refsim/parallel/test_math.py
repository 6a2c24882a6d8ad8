"""The three arithmetics of a block of attention: what each rounds, and that a run has the one it asked for."""

from __future__ import annotations

import pytest
import torch

from refsim.api import attention_result
from refsim.base.options import RunOptions
from refsim.parallel.sdpa import OnlineSoftmax, _by_products, _fused
from refsim.runtime.device import Device
from tests.refsim.helpers import attention_inputs, lse_error, real_rows, relative_rmse, serial_attention
from tests.refsim.parallel.schemes import SCHEMES, SOME, assert_same_bits

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
N, PROMPT, CHUNK = 256, 21, 64


def errors(dtype: str, scheme: str, **options) -> tuple[float, float]:
    """RMSE of the image's answer and error of the log-sum-exp, against float64 on the same inputs."""
    tensors = attention_inputs(heads=8, n=N, prompt=PROMPT, features=64, dtype=DTYPES[dtype])
    got = real_rows(attention_result(tensors, **{**SCHEMES[scheme], **options}).tensors, N, N)
    want = serial_attention(tensors)
    return relative_rmse(got["out"], want["out"]), lse_error(got["lse"], want["lse"])


def error_of_pieces(dtype: str) -> float:
    """RMSE of torch's fused kernel in that dtype, called on CHUNK keys at a time, its answers merged in float64."""
    tensors = attention_inputs(heads=8, n=N, prompt=PROMPT, features=64, dtype=DTYPES[dtype])
    q, k, v = (torch.cat([tensors[name], tensors[f"joint_{name}"]], 2) for name in "qkv")
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    pieces = [kernel(q, *kv) for kv in zip(k.split(CHUNK, 2), v.split(CHUNK, 2), strict=True)]
    out, lse = (torch.stack(parts).double() for parts in zip(*pieces, strict=True))
    merged = (out * lse.softmax(0).unsqueeze(-1)).sum(0)
    return relative_rmse(merged[:, :, :N], serial_attention(tensors)["out"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SOME)
def test_storage_math_rounds_as_the_same_kernel_on_the_same_pieces_and_reference_math_less(scheme, dtype):
    pieces = error_of_pieces(dtype)
    storage, lse = errors(dtype, scheme, math="storage", k_chunk_size=CHUNK)
    reference, _ = errors(dtype, scheme, math="reference", k_chunk_size=CHUNK)
    assert reference < 0.9 * pieces < storage < 2 * pieces
    assert lse <= 64 * 2**-24  # scores are fp32 in either storage: sums of 64 products


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SOME)
def test_gemm_math_rounds_as_two_products_with_a_softmax_in_fp32_between(scheme, dtype):
    tensors = attention_inputs(heads=8, n=N, prompt=PROMPT, features=64, dtype=DTYPES[dtype])
    q, k, v = (torch.cat([tensors[name], tensors[f"joint_{name}"]], 2) for name in "qkv")
    scores = (q @ k.mT).float() / 8
    want = serial_attention(tensors)
    alone = relative_rmse((scores.softmax(-1).to(q.dtype) @ v)[:, :, :N], want["out"])
    lse_alone = lse_error(scores.logsumexp(-1), want["lse"])
    out, lse = errors(dtype, scheme, math="gemm", k_chunk_size=CHUNK)
    assert 0.8 * alone < out < 1.5 * alone
    assert lse <= max(1.01 * lse_alone, 64 * 2**-24)


@pytest.mark.parametrize("features", [40, 64])
@pytest.mark.parametrize("queries", [1, 300, 1100])
def test_a_block_by_products_is_torchs_whatever_the_tiles(queries, features):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, features, generator=generator) for n in (queries, 70, 70))
    out, lse = _by_products(q, k, v)
    want, want_lse = _fused(q, k, v)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, want_lse, rtol=1e-6, atol=1e-6)


def test_storage_math_is_the_default_and_has_the_same_bits_every_time():
    tensors = attention_inputs(heads=8, n=N, prompt=PROMPT, dtype=torch.bfloat16)
    first, named, sharp = (
        attention_result(tensors, **SCHEMES["t3k_1x8-ring8"], **how).tensors
        for how in ({}, {"math": "storage", "delay": (1, 0.01)}, {"math": "reference"})
    )
    assert_same_bits(first, named)
    assert not torch.equal(first["out"], sharp["out"])
    assert RunOptions.of(mesh="n150").math == "storage"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_nobody_asks_for_are_zeros_and_change_no_other_bit(dtype):
    device = Device(RunOptions.of(mesh="n150", dtype=dtype))
    q, k, v = torch.randn(3, 1, 2, N, 64, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    all_rows, some = (OnlineSoftmax(device, q, answered=answered) for answered in (None, 96))
    for state in (all_rows, some):
        state.attend_in_blocks(k, v, buffer="-")
    for whole, part in zip(all_rows.result(), some.result(), strict=True):
        assert torch.equal(whole[:, :, :96], part[:, :, :96])
        assert whole.shape == part.shape
        assert whole[:, :, 96:].count_nonzero() > 0
        assert part[:, :, 96:].count_nonzero() == 0
