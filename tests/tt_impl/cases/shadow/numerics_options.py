"""Options of rounded operations: each kernel's scale, mask, residual, batches, chunks and blocks, by ``refsim``'s."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from refsim.numerics import FUNCTIONS, from_host, pack
from refsim.numerics.composites import Compute, attention, collectives, elementwise, linear, norms
from tests.tt_impl.cases.properties.prop_matmul_fused import _blocks
from tests.tt_impl.cases.shadow.numerics import BINARY, WIDE, _config, _rounds, _same
from tests.tt_impl.env import Env, collect

NARROW = replace(norms.SOFTMAX, fp32_dest_acc_en=False)
OF_FLOAT32 = replace(BINARY, fp32_dest_acc_en=True)


def _alone(t: Env, *reasons: str) -> None:
    """Nothing but what is named was rounded once."""
    assert list(t.shadow.numerics.once) == list(reasons), t.shadow.numerics.once


def masked_softmaxes(t: Env) -> None:
    """The scale in bfloat16, each step packed, a mask of one row for all or of a row each."""
    _rounds(t)
    ttnn = t.ttnn
    x, row, rows = t.rand(2, 3, 32, 64, scale=3.0), t.rand(2, 1, 1, 64), t.rand(2, 1, 32, 64)
    scale = torch.tensor(0.3).item()  # ttnn takes numbers of float32 only
    scaled = NARROW.store(NARROW.mul(x, torch.tensor(scale).bfloat16().float()))

    def wanted(mask: Tensor, before: Tensor = scaled, stable: bool = True) -> Tensor:
        return norms.softmax(NARROW.store(NARROW.add(before, mask)), stable=stable)

    _same(t, ttnn.scale_mask_softmax(t.put(x), scale, t.put(row.expand(2, 1, 32, 64))), wanted(row))
    out = ttnn.scale_mask_softmax_in_place(t.put(x), scale, t.put(rows), is_causal_mask=True)
    _same(t, out, wanted(rows, stable=False))
    _same(t, ttnn.scale_mask_softmax(t.put(x), None, t.put(row.expand(2, 1, 32, 64))), wanted(row, x))
    half = NARROW.store(NARROW.mul(x, torch.tensor(0.125)))
    hidden = row.expand(2, 1, 32, 64)
    out = ttnn.transformer.attention_softmax(t.put(x), head_size=64, attention_mask=t.put(hidden))
    _same(t, out, wanted(row, half))
    _same(t, ttnn.softmax(t.put(x), dim=3, numeric_stable=False), norms.softmax(x, stable=False))
    _same(t, ttnn.softmax(t.put(x), dim=2, numeric_stable=False), norms.softmax(x.mT).mT)
    wide = norms.softmax(x, compute=replace(norms.SOFTMAX, fp32_dest_acc_en=True), out_dtype="float32")
    _same(t, ttnn.softmax(t.put(x, dtype="float32"), dim=-1), wide)
    _alone(t)


def spreads_and_sums_of_batches(t: Env) -> None:
    """Variance is exact and packed before root and scalar; tiles of batches are added one by one."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 2, 32, 96, scale=3.0)
    for dim, dims in ((-1, (-1,)), ([2, 3], (-2, -1))):
        var = WIDE.store(x.double().var(dims, keepdim=True).float())
        _same(t, ttnn.var(t.put(x), dim=dim, keepdim=True), WIDE.store(var, "bfloat16"))
        root = WIDE.sfpu("sqrt", var)
        _same(t, ttnn.std(t.put(x), dim=dim, keepdim=True), WIDE.store(root, "bfloat16"))
    out = ttnn.std(t.put(x), dim=-1, scalar=3.0, correction=False)
    root = WIDE.sfpu("sqrt", WIDE.store(x.double().var(-1, correction=0).float()))
    _same(t, out, WIDE.store(WIDE.vector().mul(root, 3.0), "bfloat16"))
    tiles = t.rand(4, 3, 32, 64).mul(2.0)
    narrow = reduce(NARROW.add, tiles[:, 1], torch.zeros(32, 64))
    out = t.shadow.values(ttnn.experimental.fast_reduce_nc(t.put(tiles), dims=[0]))[0]
    torch.testing.assert_close(out[0, 1], narrow, rtol=0, atol=0)
    compute = _config(t, Compute("HiFi4", fp32_dest_acc_en=True))
    out = ttnn.experimental.fast_reduce_nc(t.put(tiles), dims=[0, 1], compute_kernel_config=compute)
    _same(t, out, WIDE.store(tiles.sum((0, 1), keepdim=True), "bfloat16"))
    _alone(t)


def products_of_other_kernels(t: Env) -> None:
    """addmm in an operation each; attn_matmul with all of K in the destination; conv_transpose2d as a convolution."""
    _rounds(t)
    ttnn = t.ttnn
    x, a, b = t.rand(32, 64), t.rand(32, 96), t.rand(96, 64)
    compute = linear.default_compute("bfloat16", "bfloat16", "bfloat16")
    product = linear.linear(a, b, compute=compute, k_block=32)
    scaled = elementwise.add(elementwise.multiply(product, torch.tensor(0.5)), x)
    _same(t, ttnn.addmm(t.put(x), t.put(a), t.put(b), alpha=0.5), scaled)
    _same(t, ttnn.addmm(t.put(x), t.put(a), t.put(b), beta=0.0), product)
    q, k = t.rand(1, 3, 32, 64), t.rand(32, 1, 64, 32)
    narrow = Compute("LoFi")
    users = [narrow.store(narrow.matmul(q[0, :, user], k[user, 0])) for user in range(32)]
    grid = ttnn.CoreCoord(*t.mesh.grid)
    out = ttnn.experimental.attn_matmul(t.put(q), t.put(k), compute_with_storage_grid_size=grid)
    _same(t, out, torch.stack(users, 1)[None])
    image, weight = t.rand(1, 32, 5, 7), t.rand(32, 64, 3, 3, scale=0.2)
    rows = t.put(image.permute(0, 2, 3, 1).reshape(1, 1, 35, 32), layout="ROW_MAJOR")
    out = ttnn.conv_transpose2d(
        input_tensor=rows, weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16), device=t.device, in_channels=32,
        out_channels=64, batch_size=1, input_height=5, input_width=7, kernel_size=(3, 3), stride=(2, 1), padding=(1, 1),
        output_padding=(1, 0), conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    spread = torch.zeros(1, 32, 9, 7)
    spread[:, :, ::2] = image
    spread = torch.nn.functional.pad(spread, (1, 1, 1, 2))
    turned = weight.transpose(0, 1).flip(2, 3)
    wanted = linear.conv(spread, turned, compute=Compute("HiFi4"), blocks=(96, None))
    _same(t, out, wanted.permute(0, 2, 3, 1).reshape(1, 1, -1, 64))
    _alone(t)


def products_of_batches(t: Env) -> None:
    """A matrix for each batch, one for all, both transposed, a bias of rows, and activations behind the product."""
    _rounds(t)
    ttnn = t.ttnn
    a, b = t.rand(2, 3, 32, 64), t.rand(2, 3, 64, 32)
    compute = linear.default_compute("bfloat16", "bfloat16", "bfloat16")

    def wanted(a: Tensor, b: Tensor, **how: Any) -> Tensor:
        a, b = (x.expand(2, 3, *x.shape[-2:]) for x in (a, b))
        pairs = zip(a.flatten(0, 1), b.flatten(0, 1), strict=True)
        parts = [linear.linear(x, y, compute=compute, k_block=64, **how) for x, y in pairs]
        return torch.stack(parts).unflatten(0, (2, 3))

    _same(t, ttnn.matmul(t.put(a), t.put(b)), wanted(a, b))
    _same(t, ttnn.matmul(t.put(a.mT), t.put(b.mT), transpose_a=True, transpose_b=True), wanted(a, b))
    one = b[:1, :1]
    _same(t, ttnn.matmul(t.put(a), t.put(one)), wanted(a, one))
    _same(t, ttnn.matmul(t.put(a[0]), t.put(one[0])), wanted(a, one)[0])
    rows = t.rand(32, 32)
    out = ttnn.linear(t.put(a[0, 0]), t.put(one[0, 0]), bias=t.put(rows))
    whole = linear.linear(a[0, 0], one[0, 0], compute=compute, k_block=64)
    _same(t, out, elementwise.add(whole, rows))
    wide = replace(WIDE, packer_l1_acc=True)
    out = ttnn.linear(
        t.put(a[0, 0]), t.put(one[0, 0]), bias=t.put(rows), compute_kernel_config=_config(t, wide)
    )  # packed before it is added
    _same(t, out, elementwise.add(linear.linear(a[0, 0], one[0, 0], compute=wide, k_block=64), rows))
    for name, function in (("gelu", "gelu"), ("silu", "silu"), ("gelu_approx", "gelu")):
        alone = replace(BINARY, approximate=name == "gelu_approx")
        out = ttnn.linear(t.put(a[0, 0]), t.put(one[0, 0]), activation=name)
        _same(t, out, elementwise.activation(function, whole, compute=alone))
    out = ttnn.linear(t.put(a[0, 0]), t.put(one[0, 0]), activation="silu", core_grid=ttnn.CoreGrid(y=1, x=1))
    configured = linear.default_compute("bfloat16", "bfloat16", "bfloat16", program_config=True)
    _same(t, out, linear.linear(a[0, 0], one[0, 0], compute=configured, k_block=64, activation="silu"))
    out = ttnn.linear(t.put(a[0, 0]), t.put(one[0, 0]), activation="relu", core_grid=ttnn.CoreGrid(y=1, x=1))
    _same(t, out, linear.linear(a[0, 0], one[0, 0], compute=configured, k_block=64).relu())
    _alone(t)


def blocks_by_the_grid(t: Env) -> None:
    """K blocks that ttnn chooses: of a core grid, of narrow and of square products."""
    _rounds(t)
    ttnn = t.ttnn
    for rows, depth, columns, grid, tiles in (
        (64, 320, 64, ttnn.CoreGrid(y=2, x=4), 5),  # three tiles for each of four columns, and the next that divides
        (64, 256, 64, ttnn.CoreGrid(y=2, x=2), 4),
        (64, 512, 64, ttnn.CoreGrid(y=2, x=6), 4),
        (32, 96, 64, None, 1),  # an odd number of tiles
        (32, 128, 64, None, 2),
        (32, 512, 2048, None, 2),
        (64, 512, 64, None, 2),  # a square of 8 columns of cores: sixteen tiles of K over them
        (64, 640, 64, None, 1),  # twenty tiles over eight columns: none divides them
        (64, 96, 64, None, 1),
        (64, 384, 64, ttnn.CoreGrid(y=4, x=2), 6),
        (64, 1024, 512, None, 4),  # sides of 2 and 16 tiles are no row yet, those of 2 and 17 are
        (64, 1024, 544, None, 2),
    ):
        a, b = t.rand(rows, depth), t.rand(depth, columns)
        compute = linear.default_compute("bfloat16", "bfloat16", "float32", program_config=grid is not None)
        out = ttnn.matmul(t.put(a), t.put(b), core_grid=grid, dtype=ttnn.float32)
        _same(t, out, linear.linear(a, b, compute=compute, k_block=32 * tiles, out_dtype="float32"))
    _alone(t)


def invalid_fidelity(t: Env) -> None:
    """A config without a fidelity leaves the operation's own."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 1, 32, 256)
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.Invalid, fp32_dest_acc_en=True)
    compute = replace(norms.RMS_NORM, fp32_dest_acc_en=True, approximate=config.math_approx_mode)
    _same(t, ttnn.rms_norm(t.put(x), epsilon=1e-5, compute_kernel_config=config), norms.rms_norm(x, compute=compute))
    _alone(t)


def minimal_products(t: Env) -> None:
    """K blocks by the config, several results, a residual on the vector unit."""
    _rounds(t)
    ttnn = t.ttnn
    x, weight, bias = t.rand(1, 1, 32, 512), t.rand(512, 128), t.rand(1, 128)
    config = ttnn.MinimalMatmulConfig(
        M_block_size=1, K_block_size=2, N_block_size=1, subblock_h=1, subblock_w=1,
        compute_with_storage_grid_size=ttnn.CoreCoord(4, 4),
    )  # fmt: skip
    compute = Compute("HiFi2", fp32_dest_acc_en=True, packer_l1_acc=True)
    for how, tiles in (({}, 8), ({"config": config}, 2)):
        out = ttnn.experimental.minimal_matmul(t.put(x), t.put(weight), bias_tensor=t.put(bias), **how)
        _same(t, out, linear.minimal_matmul(x, weight, bias[0], k_block=32 * tiles, compute=compute))
    parts = ttnn.experimental.minimal_matmul_split(t.put(x), t.put(weight), chunks=2, dim=-1)
    whole = linear.minimal_matmul(x, weight, k_block=256, compute=compute)
    for part, want in zip(parts, whole.chunk(2, -1), strict=True):
        _same(t, part, want)
    residual, gate = t.rand(1, 1, 32, 128), t.rand(1, 1, 1, 128)
    out = ttnn.experimental.dit_minimal_matmul_addcmul_fused(
        t.put(x), t.put(weight), 0.5, t.put(residual), t.put(gate), t.put(bias)
    )
    product = linear.minimal_matmul(x, weight, bias[0], k_block=256, compute=compute, out_dtype="float32")
    _same(t, out, elementwise.addcmul(residual, product, gate, value=0.5, compute=compute))
    x, weight, residual, gate = t.rand(1, 1, 64, 256), t.rand(256, 384), t.rand(1, 1, 64, 384), t.rand(1, 1, 1, 384)
    (out,) = ttnn.experimental.all_gather_minimal_matmul_async(
        t.put(x, (None, 3)), t.put(weight), config=_blocks(t), num_workers_per_link=6, topology=t.linear,
        multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0], num_links=1,
        persistent_output_buffer=t.empty(1, 1, 64, 256), cluster_axis=1, scalar=0.5,
        addcmul_input_tensor1=t.put(residual), addcmul_input_tensor2=t.put(gate),
    )  # fmt: skip
    product = linear.minimal_matmul(x, weight, k_block=64, compute=compute, out_dtype="float32")
    _same(t, out, elementwise.addcmul(residual, product, gate, value=0.5, compute=compute))
    _alone(t)


def distributed_norms(t: Env) -> None:
    """RMS and layer norm over four devices, with weight and bias, and by Welford's moments."""
    _rounds(t)
    ttnn = t.ttnn
    x, weight, bias = t.rand(1, 1, 32, 512), t.rand(1, 512), t.rand(1, 512)
    cut, shards = (None, 3), list(x.chunk(4, -1))
    weights, biases = (list(values[0].chunk(4)) for values in (weight, bias))
    for kind, name in (("rms", "rms_norm"), ("layer", "layer_norm")):
        stats = getattr(ttnn, f"{name}_pre_all_gather")(t.put(x, cut))
        stats = ttnn.all_gather(stats, dim=3, cluster_axis=1)
        more = {} if kind == "rms" else {"bias": t.put(bias, (None, 1))}
        out = getattr(ttnn, f"{name}_post_all_gather")(
            t.put(x, cut), stats, epsilon=1e-3, weight=t.put(weight, (None, 1)), **more
        )
        affine = {"weights": weights} | ({} if kind == "rms" else {"biases": biases})
        _same(t, out, *norms.distributed_norm(shards, kind=kind, eps=1e-3, **affine))
    table = ttnn.create_layer_norm_reciprocals(t.device, ttnn.CoreRangeSet({ttnn.CoreRange((0, 0), (7, 7))}), 128)
    shifted = x + torch.arange(4.0).repeat_interleave(128).bfloat16().float()  # means differ from device to device
    shifted = shifted.bfloat16().float()
    own = t.put(shifted, cut)
    config = _config(t, WIDE)
    stats = ttnn.experimental.dit_layernorm_pre_allgather(own, table, compute_kernel_config=config)
    moments = [
        (
            WIDE.store(p.mean(-1, keepdim=True), "bfloat16"),
            WIDE.store(p.var(-1, correction=0, keepdim=True), "bfloat16"),
        )
        for p in shifted.chunk(4, -1)
    ]
    whole = ttnn.all_gather(stats, dim=3, cluster_axis=1)
    out = ttnn.experimental.dit_layernorm_post_allgather(own, whole, compute_kernel_config=config)
    means, variances = (torch.cat(parts, -1) for parts in zip(*moments, strict=True))
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    parts = [
        norms.from_moments(p, WIDE.store(mean), WIDE.store(variance), eps=1e-5, compute=WIDE)
        for p in shifted.chunk(4, -1)
    ]
    _same(t, out, *parts)
    _alone(t)


def norms_with_a_residual(t: Env) -> None:
    """The sum is packed before it is normalised; rms_norm adds its bias at the end."""
    _rounds(t)
    ttnn = t.ttnn
    x, residual = t.rand(1, 1, 32, 128), t.rand(1, 1, 32, 128)
    weight, bias = t.rand(1, 1, 1, 128), t.rand(1, 1, 1, 128)
    given = {"weight": t.put(weight), "bias": t.put(bias), "epsilon": 1e-3, "residual_input_tensor": t.put(residual)}
    row, last = weight.reshape(-1), bias.reshape(-1)
    for name, compute in (("layer_norm", norms.LAYER_NORM), ("rms_norm", norms.RMS_NORM)):
        both = compute.store(compute.add(x, residual))
        if name == "layer_norm":
            wanted = norms.layer_norm(both, row, last, eps=1e-3)
        else:
            wanted = compute.store(compute.add(norms.rms_norm(both, row, eps=1e-3), last), "bfloat16")
        _same(t, getattr(ttnn, name)(t.put(x), **given), wanted)
    _alone(t)


def reductions(t: Env) -> None:
    """Sums and means over rows, columns or both, times a number, with the dims or without; float32 exactly."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 2, 64, 96)
    wide = Compute("HiFi4", fp32_dest_acc_en=True)
    for dims, name, count in ((-1, "last", 96), (-2, "second_last", 64), ([-2, -1], "both", 64 * 96), (3, "last", 96)):

        def reduced(factor: float, name: str = name) -> Tensor:
            if name == "both":  # of several tiles rows first
                rows = wide.store(wide.reduce("sum", x), "bfloat16")
                return wide.store(wide.reduce("sum", rows, "second_last", factor), "bfloat16")
            return wide.store(wide.reduce("sum", x, name, factor), "bfloat16")

        sums = reduced(0.5)
        _same(t, ttnn.sum(t.put(x), dim=dims, keepdim=True, scalar=0.5), sums)
        _same(t, ttnn.mean(t.put(x), dim=dims, keepdim=True, scalar=2.0), reduced(2.0 / count))
        places = [d % 4 for d in ([dims] if isinstance(dims, int) else dims)]
        _same(
            t,
            ttnn.sum(t.put(x), dim=dims, scalar=0.5),
            sums.reshape([n for d, n in enumerate(x.shape) if d not in places]),
        )
    tile = t.rand(1, 1, 32, 32)
    means = wide.store(wide.reduce("sum", tile, "both", 0.7 / 1024), "bfloat16")
    _same(t, ttnn.mean(t.put(tile), dim=[-2, -1], scalar=0.7), means[..., 0, 0])
    negative = wide.store(wide.reduce("sum", tile), "bfloat16")  # no root of the factor: rows first
    negative = wide.store(wide.reduce("sum", negative, "second_last", -0.3), "bfloat16")
    _same(t, ttnn.sum(t.put(tile), dim=[-2, -1], keepdim=True, scalar=-0.3), negative)
    assert t.shadow.values(ttnn.sum(t.put(torch.zeros(1, 1, 0, 32)), dim=[-2, -1]))[0].tolist() == [[0.0]]
    _same(t, ttnn.sum(t.put(x, dtype="float32"), dim=-1, scalar=0.5), x.sum(-1) * 0.5)
    fine = torch.randn(1, 1, 32, 64, generator=t.random)
    cheap = ttnn.sum(t.put(fine, dtype="float32"), dim=-1, keepdim=True, fast_and_approximate_mode=True)
    _same(t, cheap, wide.store(wide.reduce("sum", fine, "last", 1.0, "float32"), "float32"))
    _alone(t)
    ttnn.sum(t.put(x), dim=1)
    _alone(t, "ttnn.sum (dim)")


def attention_by_default(t: Env) -> None:
    """Exponentials are approximate unless a config says otherwise, chunks of 32 keys; heads of K and V are shared."""
    _rounds(t)
    ttnn = t.ttnn
    q, k, v = t.rand(1, 4, 64, 32), t.rand(1, 2, 64, 32), t.rand(1, 2, 64, 32)
    keys, values = (x.repeat_interleave(2, 1) for x in (k, v))
    approximate = replace(attention.SDPA, approximate=True)
    out = ttnn.transformer.scaled_dot_product_attention(t.put(q), t.put(k), t.put(v), is_causal=False, scale=0.25)
    _same(t, out, attention.attention(q, keys, values, scale=0.25, k_chunk=32, compute=approximate))
    config = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8), q_chunk_size=32, k_chunk_size=64, exp_approx_mode=True
    )
    how = {"is_causal": False, "program_config": config}
    out = ttnn.transformer.scaled_dot_product_attention(t.put(q), t.put(k), t.put(v), **how)
    _same(t, out, attention.attention(q, keys, values, k_chunk=64, compute=approximate))
    _alone(t)


def attention_over_a_ring(t: Env) -> None:
    """Each device begins with its own shard and goes back; the joint keys come with the last device's."""
    _rounds(t)
    ttnn = t.ttnn
    rows = 32 * t.shape[1]
    q, k, v = (t.rand(1, 1, rows, 32) for _ in range(3))
    rear = [t.rand(1, 1, 32, 32) for _ in range(3)]
    grid = t.device.compute_with_storage_grid_size()
    config = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(grid.x, grid.y - 1), q_chunk_size=32, k_chunk_size=32,
        exp_approx_mode=False,
    )  # fmt: skip

    def attended(compute: Compute, prompt: list[Any], tokens: int, **how: Any) -> list[Any]:
        return ttnn.transformer.ring_joint_scaled_dot_product_attention(
            *(t.put(x, (None, 2)) for x in (q, k, v)), *prompt, joint_strategy="rear", logical_n=tokens, dim=2,
            persistent_output_buffer_k=t.empty(1, 1, rows, 32), persistent_output_buffer_v=t.empty(1, 1, rows, 32),
            program_config=config, compute_kernel_config=_config(t, compute), cluster_axis=1,
            multi_device_global_semaphore=t.semaphores(2), num_links=1, mesh_device=t.device, topology=t.linear,
            subdevice_id=ttnn.SubDeviceId(0), ccl_core_grid_offset=ttnn.CoreCoord(0, grid.y - 1), **how,
        )  # fmt: skip

    shards = list(zip(k.chunk(4, 2), v.chunk(4, 2), strict=True))
    out, other, _ = attended(attention.SDPA, [t.put(x) for x in rear], rows)
    joint = (rear[1], rear[2])
    _same(t, out, *attention.ring_joint_attention(list(q.chunk(4, 2)), shards, joint, k_chunk=32))
    _same(t, other, *attention.ring_joint_attention([rear[0]] * 4, shards, joint, k_chunk=32))
    out, *_ = attended(
        WIDE, [None] * 3, rows - 40, scale=0.5
    )  # the last shard is padding, and a part of the one before
    seen = [(x[:, :, : 32 - 8], y[:, :, : 32 - 8]) if i == 2 else (x, y) for i, (x, y) in enumerate(shards[:3])]
    empty = (k[:, :, :0], v[:, :, :0])
    scaled = {"k_chunk": 32, "compute": WIDE, "scale": 0.5}
    _same(t, out, *attention.ring_joint_attention(list(q.chunk(4, 2)), [*seen, empty], None, **scaled))
    _alone(t)


def angles_by_halves(t: Env) -> None:
    _rounds(t)
    x, cos, sin = t.rand(1, 2, 64, 64), t.rand(1, 1, 64, 64), t.rand(1, 1, 64, 64)
    turned = torch.cat([-x[..., 32:], x[..., :32]], -1)
    out = t.ttnn.experimental.rotary_embedding(t.put(x), t.put(cos), t.put(sin))
    _same(t, out, elementwise.turned_by(x, turned, cos, sin))
    _alone(t)


def chains_of_elements(t: Env) -> None:
    """Activations before and after an operation, operations of another order, and those under another name."""
    _rounds(t)
    ttnn = t.ttnn
    a, b = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    x, y = t.put(a), t.put(b)
    silu, square = (ttnn.UnaryWithParam(getattr(ttnn.UnaryOpType, name)) for name in ("SILU", "SQUARE"))
    before = BINARY.store(BINARY.sfpu("silu", a))
    out = ttnn.add(x, y, input_tensor_a_activations=[silu], activations=[square])
    _same(t, out, BINARY.store(BINARY.sfpu("square", BINARY.add(before, b)), "bfloat16"))
    gelu = ttnn.UnaryWithParam(ttnn.UnaryOpType.GELU)  # approximate, unlike gelu by itself
    cheap = replace(BINARY, approximate=True).sfpu("gelu", BINARY.add(a, b))
    _same(t, ttnn.add(x, y, activations=[gelu]), BINARY.store(cheap, "bfloat16"))
    out = ttnn.subtract(x, y, input_tensor_b_activations=[silu])
    _same(t, out, elementwise.subtract(a, BINARY.store(BINARY.sfpu("silu", b))))
    _same(t, ttnn.rsub(x, y), elementwise.subtract(b, a))
    negative = ttnn.UnaryWithParam(ttnn.UnaryOpType.NEG)  # rounds nothing
    _same(t, ttnn.add(x, y, activations=[negative]), -elementwise.add(a, b))
    _same(t, ttnn.squared_difference(x, y), BINARY.store(BINARY.sfpu("square", BINARY.sub(a, b)), "bfloat16"))
    _same(
        t, ttnn.unary_chain(x, [silu, square]), BINARY.store(BINARY.sfpu("square", BINARY.sfpu("silu", a)), "bfloat16")
    )
    _same(t, ttnn.swish(x), elementwise.activation("silu", a))
    _same(t, ttnn.sigmoid_accurate(x), elementwise.activation("sigmoid", a))
    assert "gelu_tanh" in FUNCTIONS
    tanh = ttnn.gelu(x, variant=ttnn.GeluVariant.Tanh) if hasattr(ttnn, "GeluVariant") else None
    if tanh is not None:
        _same(t, tanh, elementwise.activation("gelu_tanh", a))
    wide = [t.put(value, dtype="float32") for value in (a, b)]
    _same(t, ttnn.subtract(*wide), elementwise.subtract(a, b, dtype="float32"))
    fine = [torch.randn(1, 1, 32, 64, generator=t.random) for _ in range(2)]
    out = ttnn.multiply(*(t.put(value, dtype="float32") for value in fine), fast_and_approximate_mode=True)
    _same(t, out, elementwise.multiply(*fine, dtype="float32"))
    _same(t, ttnn.add(x, y, dtype=ttnn.float32), OF_FLOAT32.store(OF_FLOAT32.add(a, b), "float32"))
    _same(t, ttnn.exp(wide[0]), elementwise.activation("exp", a, dtype="float32", compute=OF_FLOAT32))
    _same(t, ttnn.multiply_(t.put(a), 0.3), elementwise.multiply(a, torch.tensor(0.3).bfloat16().float()))
    _alone(t)


def blocks_that_end_inside(t: Env) -> None:
    """Zeros fill the last block of a block float up; the result is as wide as the tensor."""
    _rounds(t)
    ttnn = t.ttnn
    a = t.rand(1, 1, 32, 50)

    def filled_up(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, 14))

    block = from_host(filled_up(a), "bfloat8_b")[..., :50]
    out = ttnn.multiply(t.put(a, dtype="bfloat8_b"), 2.0)
    _same(t, out, pack(filled_up(2 * block), "bfloat8_b")[..., :50])
    _same(t, ttnn.typecast(t.put(a), ttnn.bfloat8_b), pack(filled_up(a), "bfloat8_b", precise=True)[..., :50])
    _alone(t)


def sums_that_cannot_be_cut(t: Env) -> None:
    """An all-reduce adds along the last dim that four devices can cut, one after the other where there is none."""
    _rounds(t)
    for shape in ((1, 1, 32, 50), (1, 4, 7, 9), (1, 3, 7, 9)):
        x = t.rand(*shape[:3], 4 * shape[3])
        parts = list(x.chunk(4, -1))
        dim = next((d for d in (3, 2, 1, 0) if shape[d] % 4 == 0), None)
        if dim is None:
            wanted = reduce(lambda a, b: BINARY.store(BINARY.add(a, b), "bfloat16"), parts)
        else:
            wanted = collectives.all_reduce(parts, dim=dim)
        _same(t, t.ttnn.all_reduce(t.put(x, (None, 3)), cluster_axis=1), wanted)
    _alone(t)


def convolutions(t: Env) -> None:
    """Blocks of K are a row of the kernel in two dims, and as many channels as the config says in three."""
    _rounds(t)
    ttnn = t.ttnn
    x, weight, bias = t.rand(1, 8, 8, 32), t.rand(32, 32, 2, 3), t.rand(1, 1, 1, 32)
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16, activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU))
    windows = linear.Windows(stride=(2, 1), dilation=(1, 1))
    image = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (1, 1, 1, 1))
    for how, compute in (({}, Compute("HiFi4")), ({"compute_config": _config(t, WIDE)}, WIDE)):
        out = ttnn.conv2d(
            input_tensor=t.put(x, layout="ROW_MAJOR"), weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16),
            bias_tensor=ttnn.from_torch(bias, dtype=ttnn.bfloat16), device=t.device, in_channels=32, out_channels=32,
            batch_size=1, input_height=8, input_width=8, kernel_size=(2, 3), stride=(2, 1), padding=(1, 1),
            conv_config=config, **how,
        )  # fmt: skip
        wanted = linear.conv(
            image, weight, bias.reshape(-1), compute=compute, windows=windows, blocks=(96, None), activation="silu"
        )
        _same(t, out, wanted.permute(0, 2, 3, 1).reshape(1, 1, -1, 32))
    video, kernel = t.rand(1, 3, 6, 6, 64), t.rand(32, 64, 3, 3, 3)
    prepared = ttnn.experimental.prepare_conv3d_weights(
        weight_tensor=ttnn.from_torch(kernel, dtype=ttnn.bfloat16), C_in_block=32, device=t.device
    )
    grid = t.device.compute_with_storage_grid_size()
    config = ttnn.Conv3dConfig(
        weights_dtype=ttnn.bfloat16, output_layout=ttnn.ROW_MAJOR_LAYOUT, T_out_block=1, W_out_block=1, H_out_block=1,
        C_out_block=32, C_in_block=32, compute_with_storage_grid_size=grid,
    )  # fmt: skip
    framed = torch.nn.functional.pad(video.permute(0, 4, 1, 2, 3), (1, 1, 1, 1, 0, 0))
    for wide in (False, True):
        kernels = ttnn.init_device_compute_kernel_config(
            t.device.arch(), math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=wide, packer_l1_acc=False
        )
        out = ttnn.experimental.conv3d(
            input_tensor=t.put(video, layout="ROW_MAJOR"), weight_tensor=prepared, device=t.device, config=config,
            output_channels=32, kernel_size=(3, 3, 3), stride=(1, 1, 1), padding=(0, 1, 1), dtype=ttnn.bfloat16,
            compute_kernel_config=kernels,
        )  # fmt: skip
        wanted = linear.conv(
            framed, kernel, None, compute=Compute("HiFi2", fp32_dest_acc_en=wide),
            windows=linear.Windows(stride=(1, 1, 1), dilation=(1, 1, 1)), blocks=(32 * math.prod((3, 3, 3)), 32),
        )  # fmt: skip
        _same(t, out, wanted.permute(0, 2, 3, 4, 1))
    _alone(t)


CASES = collect(globals())
