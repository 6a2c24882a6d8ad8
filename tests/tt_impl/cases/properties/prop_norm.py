"""Properties of norms and softmaxes against torch's own layers and against sums written out in float64."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, only, spread

COLUMNS = st.sampled_from([32, 42, 64, 100])
ROWS = st.sampled_from([1, 20, 32, 33])
SOME = st.booleans()


def _maybe(t: Env, wanted: bool, *shape: int) -> tuple[Any, Any]:
    return spread(t, *shape) if wanted else (None, None)


def _sticks(t: Env, values: Tensor) -> Any:
    """A vector in row-major sticks of 32, the last one filled up with something nobody may use."""
    padded = F.pad(values, (0, -values.numel() % 32), value=7.0)
    return t.put(padded.reshape(1, 1, -1, 32), layout="ROW_MAJOR")


@drawn(16, rows=ROWS, columns=COLUMNS, batch=st.sampled_from([(1, 1), (2, 3)]), weight=SOME, bias=SOME, residual=SOME,
       kind=st.sampled_from(["layer_norm", "rms_norm"]), epsilon=st.sampled_from([1e-12, 1e-2]))  # fmt: skip
def norms(
    t: Env, rows: int, columns: int, batch: tuple, weight: bool, bias: bool, residual: bool, kind: str, epsilon: float
) -> None:
    """Torch's LayerNorm and RMSNorm of x plus residual; weights in tiles."""
    x, xs = spread(t, *batch, rows, columns)
    r, rs = _maybe(t, residual, *batch, rows, columns)
    w, ws = _maybe(t, weight, 1, columns)
    b, bs = _maybe(t, bias, 1, columns)
    out = getattr(t.ttnn, kind)(x, weight=w, bias=b, residual_input_tensor=r, epsilon=epsilon)

    def expected(x: Tensor, r: Any, w: Any, b: Any) -> Tensor:
        x = x.double() if r is None else x.double() + r.double()
        w = torch.ones(columns) if w is None else w[0]
        b = torch.zeros(columns) if b is None else b[0]
        if kind == "rms_norm":
            return (F.rms_norm(x, (columns,), w.double(), epsilon) + b.double()).float()
        return F.layer_norm(x, (columns,), w.double(), b.double(), epsilon).float()

    t.check(out, each(expected, xs, rs, ws, bs), ulps=2)


@drawn(4, columns=COLUMNS, kind=st.sampled_from(["layer_norm", "rms_norm"]))
def weights_in_sticks(t: Env, columns: int, kind: str) -> None:
    """A row-major weight whose last stick is only partly used."""
    x, w = t.rand(1, 1, 33, columns), t.rand(columns)
    out = getattr(t.ttnn, kind)(t.put(x), weight=_sticks(t, w), epsilon=1e-5)
    wanted = F.rms_norm(x, (columns,), w, 1e-5) if kind == "rms_norm" else F.layer_norm(x, (columns,), w, None, 1e-5)
    t.check(out, wanted, ulps=2)


def _width_sharded(t: Env, value: Any, cores: int, columns: int) -> Any:
    ttnn = t.ttnn
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(cores - 1, 0))})
    spec = ttnn.ShardSpec(grid, (32, columns // cores), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)
    return ttnn.to_memory_config(value, config)


@drawn(8, kind=st.sampled_from(["layer_norm", "rms_norm"]), residual=SOME, bias=SOME,
       form=st.sampled_from(["interleaved", "sharded", "welford"]))  # fmt: skip
def distributed(t: Env, kind: str, residual: bool, bias: bool, form: str) -> None:
    """Statistics, gather, norm: together the norm of the whole row, in every form that operands come in."""
    ttnn, width, ranks = t.ttnn, 64, t.shape[1]
    only(form != "welford" or kind == "layer_norm")
    whole, rest = t.rand(2, 1, 32, width * ranks), t.rand(2, 1, 32, width * ranks)
    weight, shift = t.rand(1, 1, 1, width * ranks), t.rand(1, 1, 1, width * ranks)
    x, r = t.put(whole, (0, 3)), t.put(rest, (0, 3)) if residual else None
    how: dict[str, Any] = {}
    told: dict[str, Any] = {}
    if form == "sharded":
        x = _width_sharded(t, x, 2, width)
        r = None if r is None else _width_sharded(t, r, 2, width)
        how["program_config"] = ttnn.LayerNormShardedMultiCoreProgramConfig(
            compute_with_storage_grid_size=(2, 1), subblock_w=1, block_h=1, block_w=1, inplace=False
        )
    if form == "welford":
        how["program_config"] = ttnn.LayerNormDefaultProgramConfig(
            legacy_reduction=False, legacy_rsqrt=False, use_welford=True
        )
        x_cores, y_cores = t.mesh.grid
        every = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x_cores - 1, y_cores - 1))})
        told = {"recip_tensor": ttnn.create_layer_norm_reciprocals(t.device, every, width)}
    pre, post = (getattr(ttnn, f"{kind}_{step}_all_gather") for step in ("pre", "post"))
    stats = pre(x, residual_input_tensor=r, **how, **told)
    total = whole + rest if residual else whole
    if form == "sharded" and residual:
        t.check(x, t.shards(total, (0, 3)))
        total = t.whole(x, (0, 3))
        stats = ttnn.to_memory_config(stats, ttnn.DRAM_MEMORY_CONFIG)
    elif residual:
        x = ttnn.add(x, r)
        total = t.whole(x, (0, 3))
    values = t.shadow.values(ttnn.all_gather(ttnn.to_memory_config(stats, ttnn.DRAM_MEMORY_CONFIG), dim=3,
                                             cluster_axis=1))  # fmt: skip
    assert values[0].shape[-1] == 32 * ranks * (1 if kind == "rms_norm" else 2)
    gathered = ttnn.all_gather(ttnn.to_memory_config(stats, ttnn.DRAM_MEMORY_CONFIG), dim=3, cluster_axis=1)
    if form == "sharded":
        gathered = _width_sharded(t, gathered, 1, values[0].shape[-1])
    b = t.put(shift, (None, 3)) if bias and kind == "layer_norm" else None
    out = post(x, gathered, epsilon=1e-5, weight=t.put(weight, (None, 3)), bias=b, **how)
    size = (width * ranks,)
    if kind == "rms_norm":
        wanted = F.rms_norm(total, size, weight.flatten(), 1e-5)
    else:
        wanted = F.layer_norm(total, size, weight.flatten(), shift.flatten() if b is not None else None, 1e-5)
    t.check(out, t.shards(wanted, (0, 3)), ulps=8)


@drawn(4, residual=SOME, epsilon=st.sampled_from([1e-6, 1e-2]))
def fused_rms(t: Env, residual: bool, epsilon: float) -> None:
    """In one operation; what was the residual is the sum afterwards."""
    ttnn, width, ranks, cores = t.ttnn, 64, t.shape[1], 2
    whole, rest, weight = t.rand(1, 1, 32, width * ranks), t.rand(1, 1, 32, width * ranks), t.rand(width * ranks)
    held = [_width_sharded(t, t.put(x, (None, 3)), cores, width) for x in (whole, rest)]
    program = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(cores, 1), subblock_w=1, block_h=1, block_w=1, inplace=False
    )
    stats = _width_sharded(t, t.put(torch.zeros(1, 1, 32, 32)), 1, 32)
    out = ttnn.fused_rms_minimal(
        held[0], program, 1, t.device, t.semaphores(1)[0], topology=t.linear, epsilon=epsilon, stats=stats,
        weight=t.put(weight.reshape(1, 1, -1, 32), (None, 2), layout="ROW_MAJOR"),
        residual_input_tensor=held[1] if residual else None, memory_config=held[0].memory_config(),
    )  # fmt: skip
    total = whole + rest if residual else whole
    t.check(out, t.shards(F.rms_norm(total, (width * ranks,), weight, epsilon), (None, 3)), ulps=4)
    t.check(held[1], t.shards(total if residual else rest, (None, 3)))
    assert all(value.isnan().all() for value in t.shadow.values(stats))


@drawn(8, training=SOME, weight=SOME, momentum=st.sampled_from([0.0, 0.1]), eps=st.sampled_from([1e-5, 1.0]))
def batch_norm(t: Env, training: bool, weight: bool, momentum: float, eps: float) -> None:
    """By given statistics, or in training by the batch's own, which move the running ones (without correction)."""
    x, xs = spread(t, 2, 3, 20, 33)
    held = [spread(t, 1, 3, 1, 1) for _ in range(2)]
    variance = t.put(t.rand(2, 12, 1, 1).abs() + 0.5, (0, 1))
    variances = t.shadow.values(variance)
    mean, means = held[0]
    w, ws = held[1] if weight else (None, None)
    out = t.ttnn.batch_norm(
        x, running_mean=mean, running_var=variance, training=training, eps=eps, momentum=momentum, weight=w
    )

    def expected(x: Tensor, mean: Tensor, variance: Tensor, w: Any) -> Tensor:
        w = None if w is None else w.flatten()
        stats = (None, None) if training else (mean.flatten(), variance.flatten())
        return F.batch_norm(x, *stats, weight=w, training=training, eps=eps)

    t.check(out, each(expected, xs, means, variances, ws), ulps=2)
    if training:
        own = each(lambda x: torch.var_mean(x.double(), (0, 2, 3), correction=0, keepdim=True), xs)
        for running, before, batch in ((variance, variances, 0), (mean, means, 1)):
            moved = each(lambda v, both, i=batch: (1 - momentum) * v + momentum * both[i].float(), before, own)
            t.check(running, moved, ulps=2)


@drawn(8, groups=st.sampled_from([2, 4, 8]), images=st.sampled_from([1, 2]), pixels=st.sampled_from([32, 64]))
def group_norm(t: Env, groups: int, images: int, pixels: int) -> None:
    """Torch's, channels last."""
    ttnn, channels = t.ttnn, 64
    x = t.rand(images, 1, pixels, channels)
    weight, bias = t.rand(channels), t.rand(channels)
    mask = ttnn.create_group_norm_input_mask(channels, groups, 1, ttnn.bfloat8_b)
    mask = ttnn.to_device(mask, t.device)
    out = ttnn.group_norm(
        t.put(x), num_groups=groups, epsilon=1e-5, input_mask=mask, weight=_sticks(t, weight), bias=_sticks(t, bias),
        core_grid=ttnn.CoreGrid(y=1, x=1), inplace=False, num_out_blocks=1,
    )  # fmt: skip
    wanted = F.group_norm(x.squeeze(1).mT, groups, weight, bias, 1e-5).mT.unsqueeze(1)
    t.check(out, wanted, ulps=2)


def _softmax(x: Tensor, dim: int = -1) -> Tensor:
    e = torch.exp(x.double() - x.double().amax(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).float()


@drawn(10, shape=st.sampled_from([(2, 3, 20, 42), (1, 2, 32, 64), (3, 5, 33)]), dim=st.sampled_from([-1, -2, 0, 1]),
       in_place=SOME)  # fmt: skip
def softmaxes(t: Env, shape: tuple, dim: int, in_place: bool) -> None:
    x, xs = spread(t, *shape)
    only(not in_place or (len(shape) == 4 and dim == -1))
    out = t.ttnn.softmax_in_place(x) if in_place else t.ttnn.softmax(x, dim=dim)
    wanted = each(lambda x: _softmax(x, dim), xs)
    t.check(out, wanted, ulps=2)
    if in_place:
        t.check(x, wanted, ulps=2)


@drawn(12, heads=st.sampled_from([1, 4]), rows=st.sampled_from([32, 64]), columns=st.sampled_from([64, 96]),
       scale=st.sampled_from([None, 0.125]), mask=st.sampled_from(["row", "tile", "sticks", "causal"]),
       in_place=SOME)  # fmt: skip
def masked_softmaxes(
    t: Env, heads: int, rows: int, columns: int, scale: float | None, mask: str, in_place: bool
) -> None:
    """One row of mask for all rows (of a tile the first; in sticks of 32), or a row each."""
    ttnn, x, xs = t.ttnn, *spread(t, 2, heads, rows, columns)
    values = t.rand(2, 1, {"tile": 32, "causal": rows}.get(mask, 1), columns, scale=3)
    held = t.put(values.reshape(2, 1, -1, 32), layout="ROW_MAJOR") if mask == "sticks" else t.put(values)
    only(in_place or mask not in ("causal", "sticks"))
    softmax = ttnn.scale_mask_softmax_in_place if in_place else ttnn.scale_mask_softmax
    out = softmax(x, scale, held, is_causal_mask=mask == "causal")
    added = values if mask == "causal" else values[:, :, :1]
    t.check(out, each(lambda x: _softmax(x * (scale or 1.0) + added), xs), ulps=2)


@drawn(6, head_size=st.sampled_from([None, 64]), mask=SOME, in_place=SOME)
def attention_softmaxes(t: Env, head_size: int | None, mask: bool, in_place: bool) -> None:
    x, xs = spread(t, 2, 3, 32, 64)
    values = t.rand(2, 1, 1, 64, scale=3)
    only(mask or not in_place)
    transformer = t.ttnn.transformer
    softmax = transformer.attention_softmax_ if in_place else transformer.attention_softmax
    out = softmax(x, head_size=head_size, attention_mask=t.put(values) if mask else None)
    scale = 1.0 if head_size is None else 1 / 8
    t.check(out, each(lambda x: _softmax(x * scale + (values if mask else 0.0)), xs), ulps=4)


def softmax_of_heads_on_cores(t: Env) -> None:
    """A causal mask of one head for the rows of several, sharded."""
    ttnn, heads, n = t.ttnn, 2, 64
    x, mask = t.rand(1, heads, n, n), t.rand(1, 1, n, n)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))})
    spec = ttnn.ShardSpec(cores, (n, n), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    program = ttnn.SoftmaxShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(2, 1), subblock_w=1, block_h=2, block_w=2
    )
    held = ttnn.to_memory_config(t.put(x), config)
    out = ttnn.scale_causal_mask_hw_dims_softmax_in_place(held, 0.5, t.put(mask), program_config=program)
    t.check(out, _softmax(x * 0.5 + mask), ulps=2)
    t.check(held, _softmax(x * 0.5 + mask), ulps=2)


CASES = collect(globals())
