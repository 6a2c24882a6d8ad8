"""What depends on Blackhole: elementwise operations that ttnn has for it only, programs that a prediction counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from benchmarks import drafter
from refsim.numerics.composites import Compute, attention, elementwise, norms
from tests.tt_impl.cases.shadow.numerics import _config, _rounds, _same
from tests.tt_impl.cases.values import fused_heads
from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import spread


def bounded_units(t: Env) -> None:
    ttnn, gate, up = t.ttnn, t.rand(1, 1, 32, 64, scale=3.0), t.rand(1, 1, 32, 64, scale=3.0)
    sigmoid = 1 / (1 + (-gate).exp())
    bounded = (2 / (1 + (-2 * gate / 3.0).exp()) - 1) * 3.0
    t.check(ttnn.softcap(t.put(gate), 3.0), bounded, ulps=2.0)
    t.check(ttnn.situ_glu(t.put(gate), t.put(up), 3.0, 2.0), bounded * sigmoid * 2 * torch.tanh(up / 2), ulps=4.0)
    low = torch.where(gate > 1.5, 1.5, gate)
    wanted = low / (1 + (-low).exp()) * torch.where(up > 1.5, 1.5, torch.where(up < -1.5, -1.5, up))
    t.check(ttnn.clamped_silu_glu(t.put(gate), t.put(up), 1.5), wanted, ulps=4.0)


def drafter_programs(t: Env) -> None:
    """A layer of the drafter between its TT-Lang kernels: the prediction has the programs that ttnn builds."""
    from tt_impl.trace.graph import capturing, read

    for cached in (64, 48):  # whole tiles or not
        given = [t.empty(1, 4, cached, 128), t.empty(32, 2048), t.empty(32, 4096), t.empty(64, 512)]
        mask = t.empty(1, 1, 32, cached + 64)
        with capturing(dispatch=False) as nodes:
            _drafter_layer(t.ttnn, *given, mask, cached=cached)
        built = [op.name.removesuffix("DeviceOperation").lower() for op in read(nodes).ops]
        known = {"reshapeview": "reshape", "binaryng": "multiply", "sdpaoperation": "sdpa"} | {
            "untilizewithunpadding": "untilize", "tilizewithvalpadding": "tilize",
        }  # fmt: skip
        layers = [k.name.removeprefix("cache ") for k in drafter.forward(cached) if k.toolchain == "ttnn"]
        assert [known.get(name, name) for name in built] * 8 == layers, built


def _drafter_layer(ttnn, kv, rows, q, new, mask, *, cached):
    ttnn.concat([rows, rows], dim=0)
    q = ttnn.reshape(q, (1024, 128))
    new = ttnn.reshape(new, (256, 128))
    q, new = ttnn.reshape(q, (32, 4096)), ttnn.reshape(new, (64, 512))
    k, v = (ttnn.transpose(ttnn.reshape(new, (1, 64, 4, 128)), 1, 2) for _ in range(2))
    k, v = (ttnn.concat([kv, x], dim=2) for x in (k, v))
    q = ttnn.transpose(ttnn.reshape(q, (1, 32, 32, 128)), 1, 2)
    out = ttnn.transformer.scaled_dot_product_attention(q, k, v, is_causal=False, attn_mask=mask)
    ttnn.reshape(ttnn.transpose(out, 1, 2), (32, 4096))
    for x in (k, v):
        ttnn.slice(x, [0, 0, 0, 0], [1, 4, cached + 3, 128])


def joined_heads(t: Env) -> None:
    """Eight users on each device; of its 32 rows eight are heads. The operation wants ten rows of cores."""
    x, parts = spread(t, 1, fused_heads.USERS // 4, 32, fused_heads.SIZE)
    buffer = fused_heads.sharded(
        t,
        t.put(torch.zeros(1, fused_heads.USERS, 32, fused_heads.SIZE)),
        "HEIGHT",
        fused_heads.cores(t, 8, 4),
        (32, fused_heads.SIZE),
        rows=True,
    )
    ranges = (((1, 0), (3, 1)), ((1, 2), (2, 2)))
    eight = t.ttnn.CoreRangeSet([t.ttnn.CoreRange(*(t.ttnn.CoreCoord(*end) for end in ends)) for ends in ranges])
    out = t.ttnn.experimental.all_gather_concat(
        fused_heads.sharded(t, x, "HEIGHT", eight, (32, fused_heads.SIZE), rows=True), buffer, 1, cluster_axis=1,
        mesh_device=t.device, multi_device_global_semaphore=t.semaphores(1)[0], num_links=1,
        num_heads=fused_heads.HEADS,
        memory_config=fused_heads.config(t, "WIDTH", fused_heads.cores(t, 8, 2), (32, 64)), topology=t.linear,
        subdevice_id=t.ttnn.SubDeviceId(0),
    )  # fmt: skip
    wanted = list(parts)
    for group in t.groups(1):
        users = torch.cat([parts[rank] for rank in group], 1)[:, :, : fused_heads.HEADS]
        for rank in group:
            wanted[rank] = users.reshape(1, 1, fused_heads.USERS, fused_heads.HEADS * fused_heads.SIZE)
    t.check(out, wanted)


def every_expert_its_region(t: Env) -> None:
    """Two experts of a device, numbers 1 and 0: 40 rows from 64 on, then 64 rows from 0 on; behind them is nothing."""
    from tt_impl.mock.storage.errors import RefusedOption

    buffer = t.put(t.rand(256, 128), dtype="bfloat8_b")
    rows = t.shadow.values(buffer)[0]
    placed = [[t.put(t.rand(128, 128, scale=0.1), dtype="bfloat4_b") for _ in range(3)] for _ in range(2)]
    experts = [[t.shadow.values(weight)[0] for weight in expert] for expert in placed]
    numbers = ([[0, 64]], [[64, 40]], [[1, 0]])
    flat = dict(dtype="uint32", layout="ROW_MAJOR")
    made = partial(
        t.ttnn.experimental.deepseek_prefill.unified_routed_expert_moe, buffer,
        *(t.put(torch.tensor(x, dtype=torch.int32), **flat) for x in numbers),
        *([expert[which] for expert in placed] for which in range(3)), max_dispatched_tokens_per_expert=128,
    )  # fmt: skip
    activations = t.ttnn.RoutedExpertActivation
    raises(RefusedOption, lambda: made(activation=activations.SwiGluOai), "the activation", "not documented")
    out = made(activation=activations.Silu)
    wanted = torch.full_like(rows, float("nan"))
    for region, (gate, up, down) in zip((slice(64, 128), slice(0, 64)), experts, strict=True):
        x = rows[region]
        wanted[region] = (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down
    for part in t.shadow.values(out):  # block floats: of a block the largest value sets the step
        torch.testing.assert_close(part, wanted, rtol=2**-5, atol=0.05, equal_nan=True)


def reciprocals_of_the_chip(t: Env) -> None:
    """Functions of the vector unit are those of Blackhole, by default and with a config."""
    _rounds(t)
    x = t.rand(1, 1, 256, 64)
    wide = t.put(x, dtype="float32")
    compute = Compute("HiFi4", fp32_dest_acc_en=True)
    config = _config(t, replace(compute, approximate=True))
    approximate = replace(attention.SDPA, approximate=True)
    for out, function in (
        (t.ttnn.reciprocal(wide), lambda arch: _reciprocal(x, replace(compute, arch=arch))),
        (
            t.ttnn.softmax(wide, dim=-1, compute_kernel_config=config),
            lambda arch: _softmax(x, replace(compute, approximate=True, arch=arch)),
        ),
        (
            t.ttnn.transformer.scaled_dot_product_attention(*[t.put(x)] * 3, is_causal=False),
            lambda arch: attention.attention(x, x, x, k_chunk=32, compute=replace(approximate, arch=arch)),
        ),
    ):
        _same(t, out, function("blackhole"))
        assert not function("blackhole").equal(function("wormhole_b0"))
    assert t.shadow.numerics.once == {}


def _softmax(x: torch.Tensor, compute: Compute) -> torch.Tensor:
    return norms.softmax(x, compute=compute, out_dtype="float32")


def _reciprocal(x: torch.Tensor, compute: Compute) -> torch.Tensor:
    return elementwise.activation("reciprocal", x, dtype="float32", compute=compute)


CASES = collect(globals())
