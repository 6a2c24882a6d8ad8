"""Norms against torch on the whole tensor; distributed ones have its columns cut over axis 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises

EPS = 1e-5
# Statistics cross the mesh in bfloat16, and the variance is a difference of two of them.
ULPS_OF_STATS = 16.0


def _rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def _offset(t: Env, *shape: int) -> Tensor:
    """Values whose mean differs from column block to column block: forgetting a rank's statistics shows."""
    x = t.rand(*shape)
    return (x + torch.linspace(-2, 2, shape[-1])).bfloat16().float()


def whole(t: Env) -> None:
    ttnn, x, r, w, b = t.ttnn, t.rand(1, 1, 64, 256), t.rand(1, 1, 64, 256), t.rand(256), t.rand(256)
    weight, bias = t.put(w.reshape(1, 256)), t.put(b.reshape(1, 256))
    out = ttnn.layer_norm(t.put(x), epsilon=EPS, weight=weight, bias=bias, residual_input_tensor=t.put(r))
    t.check(out, F.layer_norm(x + r, (256,), w, b, EPS))
    t.check(ttnn.layer_norm(t.put(x), epsilon=EPS), F.layer_norm(x, (256,), eps=EPS))
    t.check(ttnn.rms_norm(t.put(x), epsilon=EPS, weight=weight), _rms(x, w))
    tiled = t.put(w.reshape(1, 1, 8, 32), layout="ROW_MAJOR")
    t.check(ttnn.rms_norm(t.put(x), epsilon=EPS, weight=tiled), _rms(x, w))
    whole_tiles = t.put(torch.cat([w[None], t.rand(31, 256)]))  # a device reads the first row
    t.check(ttnn.rms_norm(t.put(x), epsilon=EPS, weight=whole_tiles), _rms(x, w))
    silu = ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)
    fused = ttnn.experimental.dit_rms_norm_unary_fused(t.put(x), EPS, weight, activation=silu)
    t.check(fused, F.silu(_rms(x, w)))


def group_norm(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 256, 1024)
    out = ttnn.group_norm(
        t.put(x), num_groups=32, epsilon=EPS, core_grid=ttnn.CoreGrid(x=2, y=8), inplace=False,
        input_mask=t.put(torch.ones(1, 32, 32, 32)), num_out_blocks=1,
    )  # fmt: skip
    wanted = F.group_norm(x[0, 0].T.reshape(1, 1024, 256), 32, eps=EPS).reshape(1024, 256).T
    t.check(out, wanted.reshape(1, 1, 256, 1024))


def group_norm_with_weights(t: Env) -> None:
    """Weights packed as ttnn packs them, two images."""
    ttnn, n, rows = t.ttnn, 2, 64
    for channels, groups, grid in ((512, 32, (2, 4)), (480, 10, (4, 1))):
        x, w, b = t.rand(n, 1, rows, channels), t.rand(channels), t.rand(channels)
        core_grid = ttnn.CoreGrid(x=grid[0], y=grid[1])
        (weight, bias), mask = ttnn.dram_group_norm_params_from_torch(
            [w, b], channels, groups, t.device, core_grid=core_grid
        )
        out = ttnn.group_norm(
            t.put(x), num_groups=groups, epsilon=EPS, input_mask=mask, weight=weight, bias=bias, core_grid=core_grid,
            inplace=False, num_out_blocks=1,
        )  # fmt: skip
        t.check(out, _group_norm(x, groups, w, b))


def _group_norm(x: Tensor, groups: int, w: Tensor, b: Tensor) -> Tensor:
    """torch's, of [N, 1, H*W, C]."""
    return F.group_norm(x.squeeze(1).mT, groups, w, b, EPS).mT.unsqueeze(1)


def distributed_group_norm(t: Env) -> None:
    """Rows of pixels cut over axis 1."""
    ttnn, x, w, b = t.ttnn, _offset(t, 1, 1, 512, 256), t.rand(256), t.rand(256)
    x = (x + torch.linspace(-1, 1, 512).reshape(1, 1, 512, 1)).bfloat16().float()
    (weight, bias), mask = ttnn.dram_group_norm_params_from_torch(
        [w, b], 256, 8, t.device, core_grid=ttnn.CoreGrid(x=1, y=1)
    )
    make, held = ttnn.experimental.dit_fused_distributed_groupnorm_create_stats_buffer, t.put(x, (None, 2))
    for activation, after in ((None, lambda y: y), ("silu", F.silu)):
        out = ttnn.experimental.dit_fused_distributed_groupnorm(
            held, num_groups=8, epsilon=EPS, cluster_axis=1, mesh_device=t.device,
            multi_device_global_semaphore=t.semaphores(2), topology=t.linear, input_mask=mask, weight=weight,
            bias=bias, activation=activation, persistent_output_buffer=make(held, 8, 1, t.device),
        )  # fmt: skip
        t.check(out, t.shards(after(_group_norm(x, 8, w, b)), (None, 2)))


def distributed_layer_norm(t: Env) -> None:
    ttnn, x, w, b = t.ttnn, _offset(t, 1, 1, 64, 512), t.rand(512), t.rand(512)
    a = t.put(x, (None, 3))
    stats = ttnn.all_gather(ttnn.layer_norm_pre_all_gather(a), 3, cluster_axis=1)
    out = ttnn.layer_norm_post_all_gather(
        a, stats, epsilon=EPS, weight=t.put(w.reshape(1, 512), (None, 1)), bias=t.put(b.reshape(1, 512), (None, 1))
    )
    t.check(out, t.shards(F.layer_norm(x, (512,), w, b, EPS), (None, 3)), ulps=ULPS_OF_STATS)


def statistics_of_a_device(t: Env) -> None:
    """Sums of squares, then sums, of a device's columns: the first column of a tile each, zeros beside it."""
    x = _offset(t, 1, 1, 64, 512)
    stats = t.ttnn.layer_norm_pre_all_gather(t.put(x, (None, 3)), dtype=t.ttnn.float32)
    wanted = []
    for part in t.shards(x, (None, 3)):
        tiles = torch.zeros(1, 1, 64, 64)
        tiles[..., 0] = part.square().sum(-1)
        tiles[..., 32] = part.sum(-1)
        wanted.append(tiles)
    t.check(stats, wanted, ulps=8)


def distributed_rms_norm(t: Env) -> None:
    ttnn, x, w = t.ttnn, _offset(t, 1, 1, 64, 512), t.rand(512)
    a, weight = t.put(x, (None, 3)), t.put(w.reshape(1, 512), (None, 1))
    stats = ttnn.all_gather(ttnn.rms_norm_pre_all_gather(a), 3, cluster_axis=1)
    out = ttnn.rms_norm_post_all_gather(a, stats, epsilon=EPS, weight=weight)
    t.check(out, t.shards(_rms(x, w), (None, 3)), ulps=ULPS_OF_STATS)


def residual_in_the_statistics(t: Env) -> None:
    ttnn, x, r = t.ttnn, _offset(t, 1, 1, 64, 512), t.rand(1, 1, 64, 512)
    a, b = t.put(x, (None, 3)), t.put(r, (None, 3))
    total = t.put((x + r), (None, 3))
    for name, finish, wanted in (
        ("rms_norm", ttnn.rms_norm_post_all_gather, _rms(x + r)),
        ("layer_norm", ttnn.layer_norm_post_all_gather, F.layer_norm(x + r, (512,), eps=EPS)),
    ):
        stats = getattr(ttnn, f"{name}_pre_all_gather")(a, residual_input_tensor=b)
        out = finish(total, ttnn.all_gather(stats, 3, cluster_axis=1), epsilon=EPS)
        t.check(out, t.shards(wanted, (None, 3)), ulps=ULPS_OF_STATS)


def _reciprocals(t: Env, width: int) -> Any:
    ttnn, (x, y) = t.ttnn, t.mesh.grid
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})
    return ttnn.create_layer_norm_reciprocals(t.device, cores, width)


def wrong_reciprocals(t: Env) -> None:
    """ttnn takes any table for Welford's method; one that is too short, or of other numbers, gives other results."""
    from tt_impl.mock.storage.errors import RefusedOption

    ttnn, x = t.ttnn, t.put(_offset(t, 1, 1, 32, 128))
    welford = ttnn.LayerNormDefaultProgramConfig(legacy_reduction=False, legacy_rsqrt=False, use_welford=True)
    good, short = _reciprocals(t, 128), _reciprocals(t, 64)
    wanted = F.layer_norm(t.shadow.values(x)[0], (128,), eps=EPS)
    t.check(ttnn.layer_norm(x, epsilon=EPS, program_config=welford, recip_tensor=good), wanted)
    half = ttnn.from_torch(
        torch.full(tuple(good.shape), 0.5), dtype=ttnn.float32, device=t.device, memory_config=good.memory_config(),
        mesh_mapper=ttnn.ReplicateTensorToMesh(t.device),
    )  # fmt: skip
    for table in (short, half):
        for name, operation, arguments in (
            ("ttnn.layer_norm", ttnn.layer_norm, {"program_config": welford}),
            ("ttnn.layer_norm_pre_all_gather", ttnn.layer_norm_pre_all_gather, {"program_config": welford}),
            ("dit_layernorm_pre_allgather", ttnn.experimental.dit_layernorm_pre_allgather, {}),
        ):
            raises(RefusedOption, lambda f=operation, k=arguments, r=table: f(x, recip_tensor=r, **k), name, "1/128")


def welford_layer_norm(t: Env) -> None:
    ttnn, x, w, b = t.ttnn, _offset(t, 1, 1, 64, 512), t.rand(512), t.rand(512)
    reciprocals = _reciprocals(t, 512 // t.shape[1])
    a = t.put(x, (None, 3))
    stats = ttnn.experimental.dit_layernorm_pre_allgather(a, reciprocals)
    out = ttnn.experimental.dit_layernorm_post_allgather(
        a, ttnn.all_gather(stats, 3, cluster_axis=1), epsilon=EPS,
        weight=t.put(w.reshape(1, 512), (None, 1)), bias=t.put(b.reshape(1, 512), (None, 1)),
    )  # fmt: skip
    t.check(out, t.shards(F.layer_norm(x, (512,), w, b, EPS), (None, 3)), ulps=ULPS_OF_STATS)


def welford_weight_per_batch_entry(t: Env) -> None:
    """The op looks for batches in dim 1; a weight per entry of dim 0 would be read as the first one for all."""
    ttnn, x, w = t.ttnn, _offset(t, 1, 2, 64, 512), t.rand(1, 2, 1, 512)
    reciprocals = _reciprocals(t, 512 // t.shape[1])

    def normed(x: Tensor, w: Tensor) -> Any:
        a, weight = t.put(x, (None, 3)), t.put(w, (None, 3))
        stats = ttnn.all_gather(ttnn.experimental.dit_layernorm_pre_allgather(a, reciprocals), 3, cluster_axis=1)
        return ttnn.experimental.dit_layernorm_post_allgather(a, stats, epsilon=EPS, weight=weight, bias=weight)

    wanted = F.layer_norm(x, (512,), eps=EPS) * w + w
    t.check(normed(x, w), t.shards(wanted, (None, 3)), ulps=ULPS_OF_STATS)
    from tt_impl.mock.storage.errors import ShadowError

    raises(ShadowError, lambda: normed(x.transpose(0, 1), w.transpose(0, 1)), "per entry of dim 0")


def _rope(t: Env, rows: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    angle = torch.rand(1, 1, rows, size // 2, generator=t.random).repeat_interleave(2, -1)
    turn = torch.zeros(1, 1, 32, 32)
    turn[..., torch.arange(0, 32, 2), torch.arange(1, 32, 2)] = 1
    turn[..., torch.arange(1, 32, 2), torch.arange(0, 32, 2)] = -1
    return angle.cos().bfloat16().float(), angle.sin().bfloat16().float(), turn


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of neighbours as complex numbers, turned; written without the matrix."""
    even, odd = x[..., ::2], x[..., 1::2]
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(-2)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(1, x.shape[-2], heads, -1).transpose(1, 2)


def fused_rms_norm_with_heads_and_rope(t: Env) -> None:
    """wan_fused_rmsnorm: 8 heads over 4 devices, RMS over all of them, rotated per head."""
    ttnn, x, w = t.ttnn, _offset(t, 1, 1, 64, 512), t.rand(512)
    cos, sin, turn = _rope(t, 64, 64)
    a, weight = t.put(x, (None, 3)), t.put(w.reshape(1, 512), (None, 1))
    stats = ttnn.all_gather(ttnn.experimental.wan_fused_rmsnorm_pre_allgather(a), 3, cluster_axis=1)
    rope = dict(transformation_mat=t.put(turn), rope_cos=t.put(cos), rope_sin=t.put(sin))
    for extra, wanted in (({}, _heads(_rms(x, w), 8)), (rope, _rotated(_heads(_rms(x, w), 8), cos, sin))):
        out = ttnn.experimental.wan_fused_rmsnorm_post_allgather(
            a, stats, epsilon=EPS, num_heads_per_device=2, weight=weight, **extra
        )
        t.check(out, t.shards(wanted, (None, 1)), ulps=ULPS_OF_STATS)


def fused_distributed(t: Env) -> None:
    """One op for statistics, gather and norm."""
    from tt_impl.mock.storage.errors import ShadowError

    ttnn, x, w, b = t.ttnn, _offset(t, 1, 1, 64, 512), t.rand(512), t.rand(512)
    cos, sin, turn = _rope(t, 64, 64)
    a, weight, bias = t.put(x, (None, 3)), t.put(w.reshape(1, 512), (None, 1)), t.put(b.reshape(1, 512), (None, 1))
    experimental = ttnn.experimental

    def run(name: str, **extra: Any) -> Any:
        make = getattr(experimental, f"dit_fused_distributed_{name}_create_stats_buffer")
        stats = ttnn.full_like(make(a, 1, t.device), 7.0)
        out = getattr(experimental, f"dit_fused_distributed_{name}")(
            a, 1, t.device, t.semaphores(2), topology=t.linear, epsilon=EPS, weight=weight,
            persistent_output_buffer=stats, **extra,
        )  # fmt: skip
        raises(ShadowError, lambda: ttnn.add(stats, 0.0), "ttnn.add", "without a value")  # a device wrote there
        return out

    rms, layer = _rms(x, w), F.layer_norm(x, (512,), w, b, EPS)
    t.check(run("rmsnorm"), t.shards(rms, (None, 3)))
    rope = dict(transformation_mat=t.put(turn), rope_cos=t.put(cos), rope_sin=t.put(sin))
    wanted = _rotated(_heads(rms, 8), cos, sin)
    t.check(run("rmsnorm", num_heads_per_device=2, **rope), t.shards(wanted, (None, 1)), ulps=2)
    t.check(run("layernorm", bias=bias), t.shards(layer, (None, 3)))


CASES = collect(globals())
