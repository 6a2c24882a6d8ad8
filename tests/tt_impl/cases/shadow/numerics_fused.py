"""Kernels that join several steps, rounded: moments over devices, gathers, products of batches and with factors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from refsim.numerics import from_host
from refsim.numerics.composites import elementwise, linear, norms
from tests.tt_impl.cases.properties.prop_matmul_fused import _blocks
from tests.tt_impl.cases.shadow.numerics import _rounds, _same
from tests.tt_impl.cases.shadow.numerics_options import _alone
from tests.tt_impl.cases.values.norm import _reciprocals
from tests.tt_impl.env import Env, collect


def moments_over_devices(t: Env) -> None:
    """Each device packs Welford's mean and variance of its columns; those of all are combined and packed again."""
    _rounds(t)
    ttnn, compute = t.ttnn, norms.DISTRIBUTED_NORM
    weight, bias = t.rand(1, 512), t.rand(1, 512)
    x = (t.rand(1, 1, 32, 512) + torch.arange(4.0).repeat_interleave(128)).bfloat16().float()
    cut, parts = (None, 3), list(x.chunk(4, -1))
    own, by_welford = t.put(x, cut), {"program_config": ttnn.LayerNormDefaultProgramConfig(use_welford=True)}
    stats = ttnn.layer_norm_pre_all_gather(own, recip_tensor=_reciprocals(t, 128), **by_welford)
    means, variances = (
        torch.cat([compute.store(of(part), "bfloat16") for part in parts], -1)
        for of in (lambda p: p.mean(-1, keepdim=True), lambda p: p.var(-1, correction=0, keepdim=True))
    )
    for column, moments in ((0, means), (32, variances)):
        wanted = moments.chunk(4, -1)
        _same(t, ttnn.slice(stats, [0, 0, 0, column], [1, 1, 32, column + 1]), *wanted, *wanted)
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    whole = ttnn.all_gather(stats, dim=3, cluster_axis=1)
    rows = {"weight": t.put(weight, (None, 1)), "bias": t.put(bias, (None, 1))}
    out = ttnn.layer_norm_post_all_gather(own, whole, epsilon=1e-3, **rows, **by_welford)
    how: dict[str, Any] = {"eps": 1e-3, "compute": compute}
    affine = zip(weight[0].chunk(4), bias[0].chunk(4), strict=True)
    moved = compute.store(mean), compute.store(variance)
    _same(t, out, *(norms.from_moments(p, *moved, pair, **how) for p, pair in zip(parts, affine, strict=True)))
    _alone(t)


def gathered_without_a_residual(t: Env) -> None:
    """The product is packed as the output, each of its parts as well."""
    _rounds(t)
    x, weight, bias = t.rand(1, 1, 64, 256), t.rand(256, 384), t.rand(1, 384)
    outs = t.ttnn.experimental.all_gather_minimal_matmul_async(
        t.put(x, (None, 3)), t.put(weight), bias_tensor=t.put(bias), config=_blocks(t), num_workers_per_link=6,
        topology=t.linear, multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0],
        num_links=1, persistent_output_buffer=t.empty(1, 1, 64, 256), cluster_axis=1, chunks=3,
    )  # fmt: skip
    whole = linear.minimal_matmul(x, weight, bias[0], k_block=64)
    for out, wanted in zip(outs, whole.chunk(3, -1), strict=True):
        _same(t, out, wanted)
    _alone(t)


def activations_of_batches(t: Env) -> None:
    """Those of the program are applied in the destination of each product; another one is an operation, accurate."""
    _rounds(t)
    ttnn = t.ttnn
    a, b = t.rand(2, 3, 32, 64), t.rand(2, 3, 64, 32)
    pairs = list(zip(a.flatten(0, 1), b.flatten(0, 1), strict=True))
    for name in ("gelu", "silu"):
        config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
            compute_with_storage_grid_size=(1, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
            per_core_N=1, transpose_mcast=False, fuse_batch=False,
            fused_activation=ttnn.UnaryWithParam(getattr(ttnn.UnaryOpType, name.upper())),
        )  # fmt: skip
        out = ttnn.linear(t.put(a), t.put(b), program_config=config)
        compute = linear.default_compute("bfloat16", "bfloat16", "bfloat16", program_config=True)
        applied = partial(replace(compute, approximate=name == "gelu").sfpu, name)
        parts = [linear.linear(x, y, compute=compute, k_block=32, activation=applied) for x, y in pairs]
        _same(t, out, torch.stack(parts).unflatten(0, (2, 3)))
        compute = linear.default_compute("bfloat16", "bfloat16", "bfloat16")
        parts = [linear.linear(x, y, compute=compute, k_block=64) for x, y in pairs]
        wanted = elementwise.activation(name, torch.stack(parts).unflatten(0, (2, 3)))
        _same(t, ttnn.linear(t.put(a), t.put(b), activation=name), wanted)
    _alone(t)


def factors_of_addmm(t: Env) -> None:
    """Both factors are bfloat16, and the fidelity is that of the matrices, whatever is added."""
    _rounds(t)
    x, a, b = t.rand(32, 64), t.rand(32, 96), t.rand(96, 64)
    blocks = [from_host(value, "bfloat8_b") for value in (a, b)]
    compute = linear.default_compute("bfloat8_b", "bfloat8_b", "bfloat16")
    product = linear.linear(*blocks, compute=compute, k_block=32)
    alpha, beta = (torch.tensor(number).bfloat16().float() for number in (0.3, 0.7))
    numbers = {"alpha": torch.tensor(0.3).item(), "beta": torch.tensor(0.7).item()}
    out = t.ttnn.addmm(t.put(x), *(t.put(value, dtype="bfloat8_b") for value in (a, b)), dtype=t.ttnn.bfloat16, **numbers)
    scaled = elementwise.multiply(product, alpha), elementwise.multiply(x, beta)
    _same(t, out, elementwise.add(*scaled))
    _alone(t)


def tables_longer_than_the_rows(t: Env) -> None:
    """Angles of more rows than there are serve as the first ones."""
    _rounds(t)
    q, cos, sin = t.rand(1, 1, 32, 32), t.rand(1, 1, 64, 32), t.rand(1, 1, 64, 32)
    swap = t.put(elementwise.swapped()[None, None])
    out = t.ttnn.experimental.rotary_embedding_llama(t.put(q), t.put(cos), t.put(sin), swap)
    _same(t, out, elementwise.rotary(q, cos[:, :, :32], sin[:, :, :32]))
    _alone(t)


CASES = collect(globals())
