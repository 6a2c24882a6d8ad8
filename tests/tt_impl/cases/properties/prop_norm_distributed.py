"""Properties of norms whose columns are cut over an axis, or whose pixels are: both axes, odd rows, every operand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Dims, Env, collect
from tests.tt_impl.properties import drawn, only

EPS = 0.1
ULPS_OF_STATS = 24.0  # statistics cross the mesh in bfloat16, and a variance is a difference of two of them
AXES, SOME = st.sampled_from([0, 1]), st.booleans()


def _at(axis: int, dim: int) -> Dims:
    """Cut along ``dim`` over ``axis``, along dim 1 over the other one, so that all devices differ."""
    return (dim, 1) if axis == 0 else (1, dim)


def _only(axis: int, dim: int) -> Dims:
    return (dim, None) if axis == 0 else (None, dim)


def _drawn(t: Env, axis: int, rows: int, local: int) -> Tensor:
    """[1, other axis, rows, columns of all ranks], whose mean differs from column block to column block."""
    columns = local * t.shape[axis]
    x = t.rand(1, t.shape[1 - axis], rows, columns) + torch.linspace(-2, 2, columns)
    return x.bfloat16().float()


def _rms(x: Tensor) -> Tensor:
    return x / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt().float()


def _layer(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()


@drawn(10, axis=AXES, rows=st.sampled_from([32, 40]), local=st.sampled_from([32, 96]), layer=SOME, residual=SOME,
       scaled=SOME, shifted=SOME)  # fmt: skip
def three_steps(
    t: Env, axis: int, rows: int, local: int, layer: bool, residual: bool, scaled: bool, shifted: bool
) -> None:
    """Statistics, their gather, the norm; with a residual the caller adds it, too."""
    only(scaled or not shifted)
    ttnn, name = t.ttnn, "layer_norm" if layer else "rms_norm"
    x = _drawn(t, axis, rows, local)
    r = t.rand(*x.shape) if residual else torch.zeros_like(x)
    w, b = t.rand(x.shape[-1]), t.rand(x.shape[-1])
    total = (x + r).bfloat16().float()
    how: dict[str, Any] = dict(residual_input_tensor=t.put(r, _at(axis, 3))) if residual else {}
    stats = getattr(ttnn, f"{name}_pre_all_gather")(t.put(x, _at(axis, 3)), **how)
    after: dict[str, Any] = dict(weight=t.put(w[None], _only(axis, 1))) if scaled else {}
    after |= dict(bias=t.put(b[None], _only(axis, 1))) if shifted else {}
    stats = ttnn.all_gather(stats, 3, cluster_axis=axis)
    out = getattr(ttnn, f"{name}_post_all_gather")(t.put(total, _at(axis, 3)), stats, epsilon=EPS, **after)
    wanted = (_layer if layer else _rms)(total) * (w if scaled else 1.0) + (b if shifted else 0.0)
    t.check(out, t.shards(wanted, _at(axis, 3)), ulps=ULPS_OF_STATS)


def _cores(t: Env) -> Any:
    ttnn, (x, y) = t.ttnn, t.mesh.grid
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})


@drawn(6, axis=AXES, rows=st.sampled_from([32, 40]), local=st.sampled_from([32, 96]), modulated=SOME, scaled=SOME)
def by_welford(t: Env, axis: int, rows: int, local: int, modulated: bool, scaled: bool) -> None:
    """Means and variances of the ranks, which differ; weights for all batch entries of dim 1, or for each its own."""
    experimental, x = t.ttnn.experimental, _drawn(t, axis, rows, local)
    x = torch.cat([x, 2 * x + 1], 1).bfloat16().float() if modulated else x
    dims = _only(axis, 3) if modulated else _at(axis, 3)
    w, b = (t.rand(1, x.shape[1] if modulated else 1, 1, x.shape[-1]) for _ in range(2))
    a, table = t.put(x, dims), t.ttnn.create_layer_norm_reciprocals(t.device, _cores(t), local)
    stats = t.ttnn.all_gather(experimental.dit_layernorm_pre_allgather(a, table), 3, cluster_axis=axis)
    how = dict(weight=t.put(w, _only(axis, 3)), bias=t.put(b, _only(axis, 3))) if scaled else {}
    out = experimental.dit_layernorm_post_allgather(a, stats, epsilon=EPS, **how)
    wanted = _layer(x) * w + b if scaled else _layer(x)
    t.check(out, t.shards(wanted, dims), ulps=ULPS_OF_STATS)


def _rope(t: Env, rows: int, size: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Cosines and sines of pairs of neighbours, and how the operations take them."""
    angle = torch.rand(1, 1, rows, size // 2, generator=t.random) * 6
    cos, sin = (f(angle).repeat_interleave(2, -1).bfloat16().float() for f in (torch.cos, torch.sin))
    turn = torch.zeros(1, 1, 32, 32)
    turn[..., range(0, 32, 2), range(1, 32, 2)], turn[..., range(1, 32, 2), range(0, 32, 2)] = 1, -1
    return cos, sin, dict(transformation_mat=t.put(turn), rope_cos=t.put(cos), rope_sin=t.put(sin))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    number = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(number * torch.complex(cos[..., ::2], sin[..., ::2])).flatten(-2)


def _heads(x: Tensor, heads: int) -> Tensor:
    """[1, 1, N, H * E] -> [1, H, N, E]."""
    return torch.cat([part.unsqueeze(1) for part in x[:, 0].chunk(heads, -1)], 1)


@drawn(6, axis=AXES, heads=st.sampled_from([1, 2]), rotated=SOME, scaled=SOME, rows=st.sampled_from([32, 64]))
def heads_in_two_steps(t: Env, axis: int, heads: int, rotated: bool, scaled: bool, rows: int) -> None:
    """The squares of all ranks, then this rank's heads, turned."""
    ttnn, experimental, local = t.ttnn, t.ttnn.experimental, 64 * heads
    x = _drawn(t, axis, rows, local)[:, :1]
    w = t.rand(x.shape[-1])
    cos, sin, rope = _rope(t, rows, 64)
    a = t.put(x, _only(axis, 3))
    stats = ttnn.all_gather(experimental.wan_fused_rmsnorm_pre_allgather(a), 3, cluster_axis=axis)
    how: dict[str, Any] = dict(weight=t.put(w[None], _only(axis, 1))) if scaled else {}
    how |= rope if rotated else {}
    out = experimental.wan_fused_rmsnorm_post_allgather(a, stats, epsilon=EPS, num_heads_per_device=heads, **how)
    wanted = _heads(_rms(x) * (w if scaled else 1.0), heads * t.shape[axis])
    t.check(out, t.shards(_rotated(wanted, cos, sin) if rotated else wanted, _only(axis, 1)), ulps=ULPS_OF_STATS)


@drawn(8, axis=AXES, layer=SOME, heads=st.sampled_from([1, 2]), rotated=SOME, each_head=SOME, shifted=SOME)
def one_operation(t: Env, axis: int, layer: bool, heads: int, rotated: bool, each_head: bool, shifted: bool) -> None:
    """Statistics, gather and norm in one; RMS also of every head by itself."""
    experimental, rows, local = t.ttnn.experimental, 64, 64 * heads
    only(not layer or not (each_head or rotated))
    only(not each_head or heads > 1)
    x = _drawn(t, axis, rows, local)[:, :1]
    w, b = t.rand(x.shape[-1]), t.rand(x.shape[-1]) if shifted else torch.zeros(x.shape[-1])
    cos, sin, rope = _rope(t, rows, 64)
    a, name = t.put(x, _only(axis, 3)), "layernorm" if layer else "rmsnorm"

    def row(values: Tensor) -> Any:
        return t.put(values[None], _only(axis, 1))

    make = getattr(experimental, f"dit_fused_distributed_{name}_create_stats_buffer")
    how: dict[str, Any] = dict(per_head_norm=True) if each_head else dict(
        persistent_output_buffer=make(a, axis, t.device)
    )  # fmt: skip
    how |= (rope if rotated else {}) | (dict(bias=row(b)) if shifted else {})
    out = getattr(experimental, f"dit_fused_distributed_{name}")(
        a, axis, t.device, t.semaphores(2), topology=t.linear, epsilon=EPS, weight=row(w), num_heads_per_device=heads,
        **how,
    )  # fmt: skip
    count = heads * t.shape[axis]
    if each_head:
        wanted = _rms(_heads(x, count)) * _heads(w[None, None, None], count) + _heads(b[None, None, None], count)
    else:
        wanted = _heads((_layer if layer else _rms)(x) * w + b, count)
    t.check(out, t.shards(_rotated(wanted, cos, sin) if rotated else wanted, _only(axis, 1)), ulps=4)


@drawn(4, axis=AXES, groups=st.sampled_from([4, 8]), activation=st.sampled_from([None, "silu"]))
def pixels_cut(t: Env, axis: int, groups: int, activation: str | None) -> None:
    """Groups of channels over the pixels of all ranks."""
    ttnn, n, channels = t.ttnn, 128 * t.shape[axis], 256
    x = (t.rand(1, 1, n, channels) + torch.linspace(-2, 2, n).reshape(1, 1, n, 1)).bfloat16().float()
    w, b = t.rand(channels), t.rand(channels)
    (weight, bias), mask = ttnn.dram_group_norm_params_from_torch(
        [w, b], channels, groups, t.device, core_grid=ttnn.CoreGrid(x=1, y=1)
    )
    a = t.put(x, _only(axis, 2))
    make = ttnn.experimental.dit_fused_distributed_groupnorm_create_stats_buffer
    out = ttnn.experimental.dit_fused_distributed_groupnorm(
        a, num_groups=groups, epsilon=EPS, cluster_axis=axis, mesh_device=t.device,
        multi_device_global_semaphore=t.semaphores(2), topology=t.linear, input_mask=mask, weight=weight, bias=bias,
        activation=activation, persistent_output_buffer=make(a, groups, axis, t.device),
    )  # fmt: skip
    flat = x[0, 0].unflatten(1, (groups, -1)).transpose(0, 1).flatten(1)
    normed = _layer(flat).unflatten(1, (n, -1)).transpose(0, 1).flatten(1) * w + b
    wanted = normed / (1 + (-normed).exp()) if activation else normed
    t.check(out, t.shards(wanted[None, None], _only(axis, 2)), ulps=2)


@drawn(4, rows=st.sampled_from([32, 40]), residual=SOME, activation=st.sampled_from([None, "SILU", "GELU"]))
def norm_and_activation(t: Env, rows: int, residual: bool, activation: str | None) -> None:
    ttnn, columns = t.ttnn, 96
    x, r = t.rand(2, 4, rows, columns), t.rand(2, 4, rows, columns) if residual else torch.zeros(2, 4, rows, columns)
    w, b = t.rand(columns), t.rand(columns)
    kind = getattr(ttnn.UnaryOpType, activation or "SILU")
    out = ttnn.experimental.dit_rms_norm_unary_fused(
        t.put(x, (0, 1)), EPS, t.put(w[None]), t.put(b[None]), t.put(r, (0, 1)) if residual else None,
        activation=ttnn.UnaryWithParam(kind) if activation else None,
    )  # fmt: skip
    after = {None: lambda y: y, "SILU": F.silu, "GELU": F.gelu}[activation]
    t.check(out, t.shards(after(_rms(x + r) * w + b), (0, 1)), ulps=2)


CASES = collect(globals())
