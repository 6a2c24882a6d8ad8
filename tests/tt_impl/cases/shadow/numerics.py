"""Values rounded as kernels do: each operation's numeric rule gives what ``refsim.numerics`` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics import from_host, pack
from refsim.numerics.composites import (
    Compute,
    attention,
    batch_norms,
    collectives,
    elementwise,
    linear,
)
from refsim.numerics.composites.decode import decode_attention
from tests.tt_impl.env import Env, collect, raises

FAST = Compute("HiFi2", fp32_dest_acc_en=True, packer_l1_acc=True)
WIDE = Compute("HiFi4", fp32_dest_acc_en=True)
BINARY = elementwise.BINARY


def _rounds(t: Env, level: str = "fast") -> None:
    t.shadow.numerics = _numerics(level)


def _numerics(level: str) -> Any:
    from tt_impl.mock.numerics import Numerics

    return Numerics(level)


def _config(t: Env, compute: Compute) -> Any:
    return t.ttnn.init_device_compute_kernel_config(
        t.device.arch(),
        math_fidelity=getattr(t.ttnn.MathFidelity, compute.fidelity),
        fp32_dest_acc_en=compute.fp32_dest_acc_en,
        packer_l1_acc=compute.packer_l1_acc,
        math_approx_mode=compute.approximate,
    )


def _same(t: Env, tensor: Any, *expected: Tensor) -> None:
    """Every bit of every device, or of the first ones that are named."""
    for value, want in zip(t.shadow.values(tensor), expected, strict=False):
        torch.testing.assert_close(value, want, rtol=0, atol=0)


def _in_one_block(t: Env, tiles: int) -> Any:
    return t.ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(1, 1), in0_block_w=tiles, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1, fuse_batch=True, fused_activation=None, mcast_in0=True,
    )  # fmt: skip


def products(t: Env) -> None:
    """A linear by its compute config and K block, one without either, and minimal_matmul."""
    _rounds(t)
    x = t.rand(1, 32, 256)
    weight = t.rand(256, 32)
    bias = t.rand(1, 32)
    config = t.ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig
    for compute in (FAST, replace(FAST, fidelity="LoFi"), Compute("HiFi4"), Compute("HiFi2", packer_l1_acc=True)):
        for tiles in (2, 8):
            out = t.ttnn.linear(
                t.put(x), t.put(weight), bias=t.put(bias), program_config=_in_one_block(t, tiles),
                compute_kernel_config=_config(t, compute),
            )  # fmt: skip
            assert isinstance(_in_one_block(t, tiles), config)
            _same(t, out, linear.linear(x, weight, bias[0], compute=compute, k_block=32 * tiles))
    compute = linear.default_compute("bfloat16", "bfloat16", "bfloat16")
    _same(t, t.ttnn.matmul(t.put(x), t.put(weight)), linear.linear(x, weight, compute=compute, k_block=64))
    gelu = t.ttnn.UnaryOpType.GELU
    out = t.ttnn.experimental.minimal_matmul(t.put(x), t.put(weight), fused_activation=(gelu, False))
    _same(t, out, linear.minimal_matmul(x, weight, k_block=256, activation="gelu"))
    assert t.shadow.numerics.once == {}
    assert t.shadow.numerics.rounded["ttnn.linear"] == 8


def numbers_are_cut_by_the_store(t: Env) -> None:
    """0.06719 lies nearer to 0.0674, its truncation to bfloat16 is 0.0669; a float32 keeps it."""
    _rounds(t)
    ttnn, number = t.ttnn, 0.06719
    zeros, wide = t.put(torch.zeros(32, 32)), t.put(torch.zeros(32, 32), dtype="float32")
    below, whole = torch.full((32, 32), 0.06689453125), t.put(torch.zeros(32, 32), dtype="int32")
    for out in (
        ttnn.maximum(zeros, number), ttnn.minimum(zeros, -number), ttnn.clamp(zeros, number, 1.0),
        ttnn.fill(zeros, number), ttnn.relu_min(zeros, number), ttnn.hardtanh(zeros, min_val=number, max_val=1.0),
        ttnn.heaviside(zeros, number), ttnn.threshold(zeros, 0.5, number), ttnn.where(zeros, zeros, number),
        ttnn.unary_chain(zeros, [ttnn.UnaryWithParam(ttnn.UnaryOpType.MAXIMUM, number)]),
    ):  # fmt: skip
        _same(t, ttnn.abs(out), below)
    _same(t, ttnn.relu_max(t.put(torch.ones(32, 32)), number), below)
    _same(t, ttnn.maximum(wide, number), torch.full((32, 32), number))
    _same(t, ttnn.clamp(whole, 3, 7), torch.full((32, 32), 3))
    assert t.shadow.numerics.once == {}
    ttnn.maximum(zeros, zeros, activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.EXP)])
    assert t.shadow.numerics.once == {"ttnn.maximum (activations)": 1}


def elements(t: Env) -> None:
    """Additions on the matrix unit, products on the vector unit unless they are fast, numbers, functions, packing."""
    _rounds(t)
    a = t.rand(1, 1, 32, 64)
    b = t.rand(1, 1, 1, 64)
    x, y, wide = t.put(a), t.put(b), t.put(a, dtype="float32")
    ttnn = t.ttnn
    _same(t, ttnn.add(x, y), elementwise.add(a, b))
    _same(t, ttnn.subtract(x, 0.3), elementwise.subtract(a, torch.tensor(0.3).bfloat16().float()))
    _same(t, ttnn.multiply(x, y), elementwise.multiply(a, b))
    _same(t, ttnn.multiply(x, y, fast_and_approximate_mode=True), elementwise.multiply(a, b, fast=True))
    _same(t, ttnn.add(wide, 0.3), elementwise.add(a, torch.tensor(0.3), dtype="float32"))
    _same(
        t, ttnn.add(x, y, activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)]), elementwise.add(a, b).clamp(min=0)
    )
    _same(t, ttnn.addcmul(x, x, y, value=0.5), elementwise.addcmul(a, a, b, value=0.5))
    _same(t, ttnn.div(x, y), elementwise.divide(a, b))
    _same(t, ttnn.div(x, y, fast_and_approximate_mode=True), elementwise.divide(a, b, fast=True))
    quotient = elementwise.divide(a, torch.tensor(0.3), dtype="float32")
    _same(t, ttnn.divide(wide, 0.3, fast_and_approximate_mode=True), quotient)
    _same(t, ttnn.logit(x, eps=0.25), elementwise.logit(a.clamp(0.25, 0.75)))
    for name in ("cos", "erf", "exp", "gelu", "mish", "sigmoid", "silu", "sin", "square", "tanh"):
        _same(t, getattr(ttnn, name)(x), elementwise.activation(name, a))
    approximate = replace(elementwise.BINARY, approximate=True)
    out = ttnn.exp(x, fast_and_approximate_mode=True)
    _same(t, out, elementwise.activation("exp", a, compute=approximate))
    _same(t, ttnn.typecast(x, ttnn.bfloat8_b), pack(a, "bfloat8_b", precise=True))
    block = t.put(a, dtype="bfloat8_b")
    _same(t, ttnn.multiply(block, 2.0), pack(2 * from_host(a, "bfloat8_b"), "bfloat8_b"))
    assert t.shadow.numerics.once == {}


def powers(t: Env) -> None:
    """Of a number by products or by its logarithm, of two tensors, of a number as base, at the end of a chain."""
    _rounds(t)
    ttnn = t.ttnn
    a = t.rand(1, 1, 32, 64)
    b = t.rand(1, 1, 32, 1)
    x = t.put(a)
    for number in (2, 3.0, -2):
        _same(t, ttnn.pow(x, number), elementwise.power(a, number))
    base = a.abs()
    of_base = t.put(base)
    _same(t, ttnn.pow(of_base, 0.5), elementwise.power(base, 0.5))
    _same(t, ttnn.pow(t.put(base, dtype="float32"), 2.3), elementwise.power(base, 2.3, dtype="float32"))
    _same(t, ttnn.pow(of_base, t.put(b)), elementwise.power(base, b))
    _same(t, ttnn.pow(0.3, x), elementwise.power(torch.tensor(0.3).bfloat16().float(), a))
    for exponent in (0.3, 3):
        _same(t, ttnn.rpow(x, exponent), elementwise.power(torch.tensor(float(exponent)), a))
    chain = [ttnn.UnaryWithParam(ttnn.UnaryOpType.POWER, 2.5)]
    _same(t, ttnn.unary_chain(of_base, chain), elementwise.power(base, 2.5))
    assert t.shadow.numerics.once == {}


def attentions(t: Env) -> None:
    """Plain and joint, by chunk and destination; rotary embedding."""
    _rounds(t)
    ttnn = t.ttnn
    q, k, v, rear = (t.rand(1, 1, rows, 32) for rows in (32, 128, 128, 32))
    config = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8), q_chunk_size=32, k_chunk_size=64, exp_approx_mode=False
    )
    sdpa = ttnn.transformer.scaled_dot_product_attention
    for compute in (attention.SDPA, Compute("HiFi4", fp32_dest_acc_en=True)):
        out = sdpa(
            t.put(q), t.put(k), t.put(v), is_causal=False, program_config=config,
            compute_kernel_config=_config(t, compute),
        )  # fmt: skip
        _same(t, out, attention.attention(q, k, v, k_chunk=64, compute=compute))
    joint = ttnn.transformer.joint_scaled_dot_product_attention
    prompt = [t.put(rear)] * 3
    out, other = joint(t.put(k), t.put(k), t.put(v), *prompt, joint_strategy="rear", program_config=config)
    expected = attention.joint_attention(torch.cat([k, rear], 2), [(k, v), (rear, rear)], k_chunk=64)
    _same(t, out, expected[:, :, :128])
    _same(t, other, expected[:, :, 128:])
    out, _ = joint(t.put(k), t.put(k), t.put(v), *prompt, joint_strategy="rear", program_config=config, scale=0.25)
    scaled = attention.joint_attention(torch.cat([k, rear], 2), [(k, v), (rear, rear)], k_chunk=64, scale=0.25)
    _same(t, out, scaled[:, :, :128])
    assert t.shadow.numerics.once == {}
    cos, sin = t.rand(1, 1, 32, 32), t.rand(1, 1, 32, 32)
    swap = elementwise.swapped()[None, None]
    out = ttnn.experimental.rotary_embedding_llama(t.put(q), t.put(cos), t.put(sin), t.put(swap))
    _same(t, out, elementwise.rotary(q, cos, sin))


def masks(t: Env) -> None:
    """Causal, added, by windows, with a sink: what a row sees; a row that sees nothing is no number, as without."""
    from tt_impl.mock.numerics import attention as numeric_attention

    _rounds(t)
    sdpa = t.ttnn.transformer.scaled_dot_product_attention
    q, k, v = (t.rand(1, 2, rows, 32) for rows in (64, 128, 128))
    default = replace(attention.SDPA, approximate=True)

    def visited(q: Tensor, mask: Any, sink: Tensor | None = None) -> Tensor:
        columns = 64 if callable(mask) else 128
        visits = attention.Visits(q, k_chunk=32, compute=default)
        visits.visit(k[:, :, :columns], v[:, :, :columns], mask)
        return visits.result(sink)

    own = [t.put(x[:, :, :64]) for x in (q, k, v)]
    window = visited(q, lambda rows, columns: (columns > rows) | (columns <= rows - 40))
    for rows_at_once in (numeric_attention.ROWS, 32):
        with patch.object(numeric_attention, "ROWS", rows_at_once):
            _same(t, sdpa(*own), visited(q, lambda rows, columns: columns > rows))
            _same(t, sdpa(*own, sliding_window_size=40), window)
    bias = t.rand(1, 1, 64, 128)
    bias[..., 3, :] = -torch.inf
    expected = visited(q, (bias * torch.tensor(32**0.5).bfloat16()).bfloat16().float())
    expected[..., 3, :] = torch.nan
    out = sdpa(t.put(q), t.put(k), t.put(v), is_causal=False, attn_mask=t.put(bias))
    torch.testing.assert_close(t.shadow.values(out)[0], expected, rtol=0, atol=0, equal_nan=True)
    sink = torch.tensor([1.0, -1.0])
    out = sdpa(*own, attention_sink=t.put(sink.reshape(1, 2, 1, 1)))
    _same(t, out, visited(q, lambda rows, columns: columns > rows, sink))
    assert t.shadow.numerics.once == {}


def caches(t: Env) -> None:
    """Single tokens to the keys up to their positions, heads that share keys in one tile."""
    _rounds(t)
    sdpa = t.ttnn.transformer.scaled_dot_product_attention_decode
    q, k, v = t.rand(1, 2, 8, 32), t.rand(2, 2, 64, 32), t.rand(2, 2, 64, 32)
    compute = replace(attention.SDPA, approximate=True)
    out = sdpa(t.put(q), t.put(k), t.put(v), cur_pos=[40, 63])
    expected = [
        [
            decode_attention(
                q[0, user, 4 * head : 4 * head + 4], k[user, head, : last + 1], v[user, head, : last + 1],
                k_chunk=32, compute=compute,
            )
            for head in range(2)
        ]
        for user, last in enumerate([40, 63])
    ]  # fmt: skip
    _same(t, out, compute.store(torch.stack([torch.cat(heads) for heads in expected])[None]))
    mask, sink = t.rand(2, 1, 8, 64), t.rand(8, 32)
    out = sdpa(
        t.put(q), t.put(k), t.put(v), is_causal=False, attn_mask=t.put(mask), attention_sink=t.put(sink)
    )  # of each head its own
    expected = [
        [
            decode_attention(
                q[0, user, rows], k[user, head], v[user, head], mask=mask[user, 0, rows], sink=sink[rows, :1],
                k_chunk=32, compute=compute,
            )
            for head, rows in enumerate((slice(0, 4), slice(4, 8)))
        ]
        for user in range(2)
    ]  # fmt: skip
    _same(t, out, compute.store(torch.stack([torch.cat(heads) for heads in expected])[None]))
    q, k, v = t.rand(1, 4, 32, 32), t.rand(4, 1, 288, 32), t.rand(4, 1, 288, 32)
    chunks = {128: 32, 129: 256, 256: 256, 257: 512}  # by tokens
    out = sdpa(t.put(q), t.put(k), t.put(v), cur_pos=[tokens - 1 for tokens in chunks])
    expected = [
        decode_attention(q[0, user], k[user, 0, :tokens], v[user, 0, :tokens], k_chunk=chunk, compute=compute)
        for user, (tokens, chunk) in enumerate(chunks.items())
    ]
    _same(t, out, compute.store(torch.stack(expected)[None]))
    assert t.shadow.numerics.once == {}


def batches(t: Env) -> None:
    """Batch norm with the statistics of its channels, and with its own in training, which run along."""
    _rounds(t)
    x, mean, weight = t.rand(2, 4, 32, 32) + 1, t.rand(1, 4, 1, 1), t.rand(1, 4, 1, 1)
    x = x.bfloat16().float()
    variance = mean.abs() + 0.5
    variance = variance.bfloat16().float()
    for compute in (batch_norms.BATCH_NORM, WIDE):
        statistics = {"running_mean": t.put(mean), "running_var": t.put(variance)}
        how = {"weight": t.put(weight), "compute_kernel_config": _config(t, compute), **statistics}
        out = t.ttnn.batch_norm(t.put(x), eps=1e-5, **how)
        _same(t, out, batch_norms.batch_norm(x, mean, variance, (weight, None), compute=compute))
        out = t.ttnn.batch_norm(t.put(x), eps=1e-5, bias=t.put(mean), **how)
        _same(t, out, batch_norms.batch_norm(x, mean, variance, (weight, mean), compute=compute))
        given = {"running_mean": mean, "running_var": variance, "weight": weight}
        wide = how | {name: t.put(value, dtype="float32") for name, value in given.items()}
        t.ttnn.batch_norm(t.put(x), eps=1e-5, training=True, momentum=0.25, **how)
        own_mean, own_variance = batch_norms.channel_moments(x, compute=compute)
        _same(t, statistics["running_mean"], batch_norms.moved(mean, own_mean, 0.25, compute=compute))
        _same(t, statistics["running_var"], batch_norms.moved(variance, own_variance, 0.25, compute=compute))
        t.ttnn.batch_norm(t.put(x), eps=1e-5, training=True, momentum=0.25, **wide)  # kept in their own dtype
        moved = batch_norms.moved(mean, own_mean, 0.25, dtype="float32", compute=compute)
        _same(t, wide["running_mean"], moved)
    assert t.shadow.numerics.once == {}


def layouts(t: Env) -> None:
    """Tiles of the same dtype are moved, those of another one are packed."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 1, 32, 64)
    rows = t.put(x, dtype="float32", layout="ROW_MAJOR")
    _same(t, ttnn.to_layout(rows, ttnn.TILE_LAYOUT), x)
    fine = torch.randn(1, 1, 32, 64, generator=t.random)
    fine[..., 0] = 1e-40  # what is packed has no such number
    _same(t, ttnn.to_layout(t.put(fine, dtype="float32", layout="ROW_MAJOR"), ttnn.TILE_LAYOUT), fine)
    _same(t, ttnn.tilize(t.put(x, layout="ROW_MAJOR"), dtype=ttnn.bfloat8_b), pack(x, "bfloat8_b"))
    out = ttnn.tilize(t.put(fine, dtype="float32", layout="ROW_MAJOR"), dtype=ttnn.bfloat8_b)
    _same(t, out, WIDE.store(fine, "bfloat8_b"))
    assert t.shadow.numerics.once == {}


def causal_rings(t: Env) -> None:
    """Shards of a ring in the order in which they come, each row up to its own token."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 1, 128, 32)
    x_cores, y_cores = t.mesh.grid
    config = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(x_cores, y_cores - 1), q_chunk_size=32, k_chunk_size=32, exp_approx_mode=False
    )
    out, *_ = ttnn.transformer.ring_joint_scaled_dot_product_attention(
        *[t.put(x, (None, 2)) for _ in range(3)], persistent_output_buffer_k=t.empty(1, 1, 128, 32),
        persistent_output_buffer_v=t.empty(1, 1, 128, 32), joint_strategy="rear", logical_n=128, is_causal=True,
        program_config=config, dim=2, multi_device_global_semaphore=t.semaphores(2), num_links=1, cluster_axis=1,
        mesh_device=t.device, topology=t.linear, subdevice_id=ttnn.SubDeviceId(0),
        ccl_core_grid_offset=ttnn.CoreCoord(0, y_cores - 1),
    )  # fmt: skip
    visits = attention.Visits(x[:, :, 32:64], k_chunk=32)
    for shard, mask in ((x[:, :, 32:64], lambda rows, columns: columns > rows), (x[:, :, :32], None)):
        visits.visit(shard, shard, mask)
        visits.end_step()
    torch.testing.assert_close(t.shadow.values(out)[1], visits.result(), rtol=0, atol=0)
    assert t.shadow.numerics.once == {}


def sums(t: Env) -> None:
    """Over devices of an axis: hop by hop."""
    _rounds(t)
    x = t.rand(1, 1, 32, 512)
    parts = list(x.chunk(4, -1))
    out = t.ttnn.reduce_scatter(t.put(x, (None, 3)), dim=3, cluster_axis=1)
    _same(t, out, *collectives.reduce_scatter(parts))
    _same(t, t.ttnn.all_reduce(t.put(x, (None, 3)), cluster_axis=1), collectives.all_reduce(parts))
    fine = torch.randn(1, 1, 32, 512, generator=t.random)
    out = t.ttnn.reduce_scatter(t.put(fine, (None, 3), dtype="float32"), dim=3, cluster_axis=1)
    _same(t, out, *collectives.reduce_scatter(list(fine.chunk(4, -1)), dtype="float32"))
    assert t.shadow.numerics.once == {}


def silicon(t: Env) -> None:
    """Results published of silicon: tt-metal 8449, 12923, 16448, 17018, 57410."""
    _rounds(t, "exact")
    ttnn = t.ttnn

    def filled(number: float, *shape: int, dtype: str = "bfloat16") -> Any:
        return t.put(torch.full(shape or (32, 32), number), dtype=dtype)

    for wide, expected in ((False, 8192.0), (True, 6144.0)):
        config = _config(t, Compute("HiFi4", fp32_dest_acc_en=wide))
        out = ttnn.matmul(
            filled(1.0, 32, 6144), filled(1.0, 6144, 32), program_config=_in_one_block(t, 192),
            compute_kernel_config=config,
        )  # fmt: skip
        _same(t, out, torch.full((32, 32), expected))
    for a, b, expected in ((-3.640625, 0.298828125, -1.09375), (-3.640625, 0.30078125, -1.1015625)):
        out = ttnn.multiply(filled(a), filled(b), fast_and_approximate_mode=True)
        _same(t, out, torch.full((32, 32), expected))
    unit = torch.zeros(32, 32)
    unit[0] = 1.3125
    row = torch.zeros(32, 32)
    row[:, 0] = 7.96875
    for fidelity, expected in (("HiFi2", 10.4375), ("HiFi4", 10.5)):
        config = _config(t, Compute(fidelity))
        _same(t, ttnn.matmul(t.put(row), t.put(unit), compute_kernel_config=config), torch.full((32, 32), expected))
    _same(t, ttnn.typecast(filled(1.00390625, dtype="float32"), ttnn.bfloat16), torch.full((32, 32), 1.0078125))
    mixed = torch.tensor([8.0, 3.875] * 16).expand(32, 32).contiguous()
    _same(t, ttnn.typecast(t.put(mixed), ttnn.bfloat4_b), torch.tensor([8.0, 2.0] * 16).expand(32, 32))
    _same(t, t.put(mixed, dtype="bfloat4_b"), torch.tensor([8.0, 4.0] * 16).expand(32, 32))


def counted(t: Env) -> None:
    """What has no numeric rule, or an option that it does not know, is counted by name and rounded as without."""
    x = t.rand(1, 1, 32, 64)
    before = t.shadow.values(t.ttnn.tan(t.put(x)))
    _rounds(t)
    _same(t, t.ttnn.tan(t.put(x)), *before)
    t.ttnn.relu(t.ttnn.reshape(t.put(x), (1, 1, 64, 32)))
    t.ttnn.add(t.put(x), 1.0, activations=[t.ttnn.UnaryWithParam(t.ttnn.UnaryOpType.TAN)])
    assert t.shadow.numerics.once == {"ttnn.tan": 1, "ttnn.add (activation tan)": 1}
    assert t.shadow.numerics.rounded == {}
    raises(UserError, lambda: _numerics("quick"), "quick")


def fidelity(t: Env) -> None:
    """A program whose config asks for more is nearer to the mathematics; without numerics it makes no difference."""
    x, weight = t.rand(1, 32, 512), t.rand(512, 64)
    exact = x.double() @ weight.double()

    def errors() -> list[float]:
        configs = [_config(t, replace(FAST, fidelity=name)) for name in ("LoFi", "HiFi4")]
        outs = [t.ttnn.matmul(t.put(x), t.put(weight), compute_kernel_config=config) for config in configs]
        return [(t.shadow.values(out)[0] - exact).square().mean().item() for out in outs]

    low, high = errors()
    assert low == high
    _rounds(t)
    low, high = errors()
    assert low > 20 * high


CASES = collect(globals())
