"""Kernels that join several steps, rounded: moments over devices, gathers, products of batches and with factors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from refsim.numerics import from_host
from refsim.numerics.composites import Compute, attention, batch_norms, elementwise, linear, norms
from refsim.numerics.composites.decode import decode_attention
from tests.tt_impl.cases.properties.prop_matmul_fused import _blocks
from tests.tt_impl.cases.shadow.numerics import WIDE, _config, _rounds, _same
from tests.tt_impl.cases.shadow.numerics_options import _alone
from tests.tt_impl.env import Env, collect


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
    out = t.ttnn.addmm(
        t.put(x), *(t.put(value, dtype="bfloat8_b") for value in (a, b)), dtype=t.ttnn.bfloat16, **numbers
    )
    scaled = elementwise.multiply(product, alpha), elementwise.multiply(x, beta)
    _same(t, out, elementwise.add(*scaled))
    _alone(t)


def terms_without_a_factor(t: Env) -> None:
    """The factor of addcmul is one unless it is given; its operands have names as well."""
    _rounds(t)
    ttnn = t.ttnn
    a, b, c = (t.rand(1, 1, 32, 64) for _ in range(3))
    named = {"input_a": t.put(a), "input_b": t.put(b), "input_c": t.put(c)}
    _same(t, ttnn.addcmul(t.put(a), t.put(b), t.put(c)), elementwise.addcmul(a, b, c))
    wide = [t.put(value, dtype="float32") for value in (a, b, c)]
    _same(t, ttnn.addcmul(*wide), elementwise.addcmul(a, b, c, dtype="float32", compute=WIDE))
    _same(t, ttnn.addcmul(**named, value=0.25), elementwise.addcmul(a, b, c, value=0.25))
    _alone(t)


def approximations_of_a_config(t: Env) -> None:
    """The exponential of a softmax is approximate where the compute config says so."""
    _rounds(t)
    x = t.rand(1, 1, 32, 64, scale=3.0)
    cheap = replace(norms.SOFTMAX, approximate=True)
    out = t.ttnn.softmax(t.put(x), dim=-1, compute_kernel_config=_config(t, cheap))
    _same(t, out, norms.softmax(x, compute=cheap))
    assert not torch.equal(t.shadow.values(out)[0], norms.softmax(x, compute=replace(cheap, approximate=False)))
    _alone(t)


def small_rows_of_a_distributed_norm(t: Env) -> None:
    """The epsilon of a call without one is that of the operation: rows are small enough to tell it."""
    _rounds(t)
    ttnn, cut = t.ttnn, (None, 3)
    x = t.rand(1, 1, 32, 512, scale=1e-6)
    shards = list(x.chunk(4, -1))
    for kind in ("rms", "layer"):
        stats = getattr(ttnn, f"{kind}_norm_pre_all_gather")(t.put(x, cut))
        whole = ttnn.all_gather(stats, dim=3, cluster_axis=1)
        out = getattr(ttnn, f"{kind}_norm_post_all_gather")(t.put(x, cut), whole)
        _same(t, out, *norms.distributed_norm(shards, kind=kind, eps=1e-12))
    experimental, x = ttnn.experimental, t.rand(1, 1, 32, 512, scale=1e-3)
    whole = ttnn.all_gather(experimental.wan_fused_rmsnorm_pre_allgather(t.put(x, cut)), 3, cluster_axis=1)
    wide = Compute("HiFi4", fp32_dest_acc_en=True)
    sums = torch.cat([norms.packed_squares(part, compute=wide) for part in x.chunk(4, -1)], -1)
    how: dict[str, Any] = {"kind": "rms", "eps": 1e-5, "compute": wide, "out_dtype": "bfloat16"}
    wanted = norms.from_statistics(x[..., :128], sums, 512, (None, None), **how)
    _same(t, experimental.wan_fused_rmsnorm_post_allgather(t.put(x, cut), whole), wanted)
    _alone(t)


def caches_in_chunks_of_the_config(t: Env) -> None:
    """Chunks of the program config, a scale, and a mask."""
    _rounds(t)
    ttnn = t.ttnn
    q, k, v, mask = t.rand(1, 2, 8, 32), t.rand(2, 2, 256, 32), t.rand(2, 2, 256, 32), t.rand(2, 1, 8, 256)
    config = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8), q_chunk_size=32, k_chunk_size=64, exp_approx_mode=False
    )
    out = ttnn.transformer.scaled_dot_product_attention_decode(
        t.put(q), t.put(k), t.put(v), is_causal=False, attn_mask=t.put(mask), scale=0.25, program_config=config
    )
    compute = attention.SDPA
    users = [
        torch.cat([
            decode_attention(
                q[0, user, rows], k[user, head], v[user, head], mask=mask[user, 0, rows], scale=0.25, k_chunk=64,
                compute=compute,
            )
            for head, rows in enumerate((slice(0, 4), slice(4, 8)))
        ])
        for user in range(2)
    ]  # fmt: skip
    _same(t, out, compute.store(torch.stack(users)[None]))
    _alone(t)


def averages_of_windows(t: Env) -> None:
    """One over the size, cut to bf16, times every value; a large window has a destination of 32 bits."""
    _rounds(t)
    ttnn = t.ttnn
    narrow = Compute("HiFi4", fp32_dest_acc_en=False)

    def check(channels: int, kernel: int, compute: Compute, include: bool = True) -> None:
        image = t.rand(1, channels, 12, 12)
        rows = ttnn.to_layout(t.put(image.permute(0, 2, 3, 1).reshape(1, 1, 144, channels)), ttnn.ROW_MAJOR_LAYOUT)
        out = ttnn.avg_pool2d(rows, 1, 12, 12, channels, [kernel] * 2, [2, 2], [1, 1], False, include)
        padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
        windows = padded.unfold(2, kernel, 2).unfold(3, kernel, 2)[0].flatten(3)  # (C, H, W, K)
        inside = torch.nn.functional.pad(torch.ones(1, 1, 12, 12), (1, 1, 1, 1), value=float(include))
        counts = inside.unfold(2, kernel, 2).unfold(3, kernel, 2)[0, 0].flatten(2).sum(-1)
        wanted = torch.empty(windows.shape[:3])
        for h, w in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
            values = windows[:, h, w, :, None]
            wanted[:, h, w] = compute.reduce("sum", values, "second_last", 1 / counts[h, w].item())[:, 0, 0]
        _same(t, out, compute.store(wanted, "bfloat16").permute(1, 2, 0).reshape(1, 1, -1, channels))

    check(32, 3, narrow)
    check(32, 6, WIDE)
    whole = t.rand(1, 1, 16, 32)
    out = ttnn.avg_pool2d(ttnn.to_layout(t.put(whole), ttnn.ROW_MAJOR_LAYOUT), 1, 4, 4, 32, [4, 4], [1, 1], [0, 0])
    _same(t, out, WIDE.store(WIDE.reduce("sum", whole, "second_last", 1 / 16), "bfloat16"))
    check(16, 5, WIDE)
    check(32, 5, narrow, include=False)
    _alone(t)


def matrices_and_rows_alone(t: Env) -> None:
    """Two dims are enough for a sum; a spread times a number; a product has the dims of the operand that has more."""
    _rounds(t)
    ttnn, x, weight = t.ttnn, t.rand(32, 96, scale=3.0), t.rand(1, 1, 96, 64)
    _same(t, ttnn.sum(t.put(x), dim=-1), WIDE.store(WIDE.reduce("sum", x, "last", 1.0), "bfloat16").squeeze(-1))
    variance = WIDE.store(x.double().var(-1, keepdim=True).float())
    out = ttnn.var(t.put(x), dim=-1, keepdim=True, scalar=3.0)
    _same(t, out, WIDE.store(WIDE.vector().mul(variance, 9.0), "bfloat16"))
    out = ttnn.std(t.put(x), dim=-1, keepdim=True, scalar=-3.0)
    _same(t, out, WIDE.store(WIDE.vector().mul(WIDE.sfpu("sqrt", variance), 3.0), "bfloat16"))
    compute = linear.default_compute("bfloat16", "bfloat16", "bfloat16")
    out = ttnn.matmul(t.put(x), t.put(weight))
    _same(t, out, linear.linear(x, weight[0, 0], compute=compute, k_block=32).reshape(1, 1, 32, 64))
    _alone(t)


def wide_tensors(t: Env) -> None:
    """Statistics of a float32 batch are its own dtype's; a convolution without a config has all channels in a block."""
    _rounds(t)
    ttnn, fine = t.ttnn, torch.randn(2, 4, 32, 32, generator=t.random)
    mean, variance = torch.randn(1, 4, 1, 1, generator=t.random), torch.rand(1, 4, 1, 1, generator=t.random) + 0.5
    running = {"running_mean": t.put(mean, dtype="float32"), "running_var": t.put(variance, dtype="float32")}
    how = {"compute_kernel_config": _config(t, WIDE), **running}
    ttnn.batch_norm(t.put(fine, dtype="float32"), eps=1e-5, training=True, momentum=0.25, **how)
    own = batch_norms.channel_moments(fine, dtype="float32", compute=WIDE)
    for name, before, new in zip(running, (mean, variance), own, strict=True):
        _same(t, running[name], batch_norms.moved(before, new, 0.25, dtype="float32", compute=WIDE))
    video, kernel = t.rand(1, 3, 4, 4, 64), t.rand(32, 64, 1, 3, 3)
    prepared = ttnn.experimental.prepare_conv3d_weights(
        weight_tensor=ttnn.from_torch(kernel, dtype=ttnn.bfloat16), C_in_block=0, device=t.device
    )
    out = ttnn.experimental.conv3d(
        input_tensor=t.put(video, layout="ROW_MAJOR"), weight_tensor=prepared, device=t.device, output_channels=32,
        kernel_size=(1, 3, 3), dtype=ttnn.bfloat16,
    )  # fmt: skip
    windows = linear.Windows(stride=(1, 1, 1), dilation=(1, 1, 1))
    video = video.permute(0, 4, 1, 2, 3)
    wanted = linear.conv(video, kernel, None, compute=Compute("HiFi2"), windows=windows, blocks=(64 * 9, 64))
    _same(t, out, wanted.permute(0, 2, 3, 4, 1))
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
