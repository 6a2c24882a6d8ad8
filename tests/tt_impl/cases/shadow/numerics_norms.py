"""Norms, rounded: whole, over devices, of groups, with heads and rotation; softmax and means."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refsim.numerics.composites import Compute, elementwise, fused_norms, norms
from tests.tt_impl.cases.shadow.numerics import BINARY, FAST, WIDE, _rounds, _same
from tests.tt_impl.cases.shadow.numerics_options import _alone
from tests.tt_impl.cases.values.norm import _reciprocals
from tests.tt_impl.env import Env, collect


def norms_and_softmax(t: Env) -> None:
    """Each by its default config; a distributed norm is that of all shards."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 1, 32, 256)
    weight = t.rand(1, 1, 1, 256)
    row = weight.reshape(-1)
    _same(t, ttnn.layer_norm(t.put(x), weight=t.put(weight), epsilon=1e-5), norms.layer_norm(x, row))
    _same(t, ttnn.rms_norm(t.put(x), weight=t.put(weight), epsilon=1e-5), norms.rms_norm(x, row))
    _same(t, ttnn.softmax(t.put(x), dim=-1), norms.softmax(x))
    _same(t, ttnn.mean(t.put(x), dim=-1, keepdim=True), FAST.store(WIDE.reduce("mean", x), "bfloat16"))
    cut = (None, 3)
    stats = ttnn.layer_norm_pre_all_gather(t.put(x, cut))
    whole = ttnn.all_gather(stats, dim=3, cluster_axis=1)
    out = ttnn.layer_norm_post_all_gather(t.put(x, cut), whole, epsilon=1e-5)
    _same(t, out, *norms.distributed_norm(list(x.chunk(4, -1))))
    image = t.rand(1, 1, 64, 64)
    mask = ttnn.create_group_norm_input_mask(64, 2, 1)
    config = {"core_grid": ttnn.CoreGrid(y=1, x=1), "inplace": False, "output_layout": ttnn.TILE_LAYOUT}
    mask = t.put(ttnn.to_torch(mask).float())
    out = ttnn.group_norm(t.put(image), num_groups=2, epsilon=1e-5, input_mask=mask, num_out_blocks=1, **config)
    expected = norms.group_norm(image.squeeze(1).mT, 2, compute=norms.RMS_NORM).mT.unsqueeze(1)
    _same(t, out, expected)
    out = ttnn.experimental.dit_rms_norm_unary_fused(t.put(x), 1e-5, t.put(weight), activation=ttnn.UnaryOpType.SILU)
    narrow = norms.RMS_NORM
    _same(t, out, narrow.store(narrow.sfpu("silu", norms.rms_norm(x, row))))
    assert t.shadow.numerics.once == {}


def moments_by_welford(t: Env) -> None:
    """Mean and variance are exact and packed, then the norm goes on: of groups, on one device and over pixels cut."""
    _rounds(t)
    ttnn = t.ttnn
    image, weight, bias = t.rand(1, 1, 512, 256) + 1, t.rand(256), t.rand(256)
    image = image.bfloat16().float()
    core_grid = ttnn.CoreGrid(x=1, y=1)
    affine, mask = ttnn.dram_group_norm_params_from_torch([weight, bias], 256, 8, t.device, core_grid=core_grid)
    how = dict(zip(("weight", "bias"), affine, strict=True)) | {"num_groups": 8, "epsilon": 1e-5, "input_mask": mask}
    by_group = image.unflatten(-1, (8, 32))
    moments = by_group.mean((1, 2, 4)), by_group.var((1, 2, 4), correction=0)
    channels_first = image.squeeze(1).mT

    def expected(compute: Compute, out_dtype: str) -> Tensor:
        args: dict[str, Any] = {"moments": moments, "compute": compute, "out_dtype": out_dtype}
        return norms.group_norm(channels_first, 8, weight, bias, **args).mT.unsqueeze(1)

    x = image[:, :, :32]
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    config = ttnn.LayerNormDefaultProgramConfig(use_welford=True)
    narrow = norms.LAYER_NORM
    out = ttnn.layer_norm(t.put(x), epsilon=1e-5, program_config=config)
    _same(t, out, norms.from_moments(x, narrow.store(mean), narrow.store(variance), eps=1e-5, compute=narrow))
    own = t.put(image, (None, 2))
    make = ttnn.experimental.dit_fused_distributed_groupnorm_create_stats_buffer
    out = ttnn.experimental.dit_fused_distributed_groupnorm(
        own, cluster_axis=1, mesh_device=t.device, multi_device_global_semaphore=t.semaphores(2), topology=t.linear,
        activation="silu", persistent_output_buffer=make(own, 8, 1, t.device), **how,
    )  # fmt: skip
    activated = WIDE.store(WIDE.sfpu("silu", expected(WIDE, "float32")), "bfloat16")
    _same(t, out, *activated.chunk(4, 2))
    assert t.shadow.numerics.once == {}


def norms_over_a_ring_in_one_kernel(t: Env) -> None:
    """Statistics of all devices, the norm of a row, or of each head, then heads turned, packed once."""
    _rounds(t)
    experimental = t.ttnn.experimental
    x, weight, bias = t.rand(1, 1, 32, 512), t.rand(1, 512), t.rand(1, 512)
    cos, sin = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    own = t.put(x, (None, 3))
    shards = list(x.chunk(4, -1))

    def run(name: str, **how: Any) -> Any:
        if not how.get("per_head_norm"):
            make = getattr(experimental, f"dit_fused_distributed_{name}_create_stats_buffer")
            how["persistent_output_buffer"] = make(own, 1, t.device)
        return getattr(experimental, f"dit_fused_distributed_{name}")(
            own, 1, t.device, t.semaphores(2), topology=t.linear, epsilon=1e-5, weight=t.put(weight, (None, 1)), **how
        )

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, 64))[0].transpose(1, 2)

    out = run("layernorm", bias=t.put(bias, (None, 1)))
    _same(t, out, fused_norms.fused_layer_norm(shards[0], shards, (weight[0, :128], bias[0, :128])))
    rope = {
        "transformation_mat": t.put(elementwise.swapped()[None, None]), "rope_cos": t.put(cos), "rope_sin": t.put(sin),
    }  # fmt: skip
    out = run("rmsnorm", num_heads_per_device=2, **rope)
    normed = fused_norms.fused_rms_norm(shards[0], shards, (weight[0, :128], None), out_dtype="float32")
    _same(t, out, fused_norms.rotated_once(heads(normed), cos, sin))
    out = run("rmsnorm", num_heads_per_device=2, per_head_norm=True)
    single = heads(shards[0])
    _same(t, out, fused_norms.fused_rms_norm(single, [single], (heads(weight[None, None, :, :128]), None)))
    assert t.shadow.numerics.once == {}


def heads_of_a_distributed_norm(t: Env) -> None:
    """wan_fused_rmsnorm: squares are added by the packer, statistics of all devices reduced, heads then rotated."""
    _rounds(t)
    ttnn = t.ttnn
    x = t.rand(1, 1, 32, 512)
    weight = t.rand(1, 512)
    cos, sin = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    own = t.put(x, (None, 3))
    stats = ttnn.experimental.wan_fused_rmsnorm_pre_allgather(own)
    parts = [norms.packed_squares(part, compute=WIDE) for part in x.chunk(4, -1)]
    _same(t, ttnn.slice(stats, [0, 0, 0, 0], [1, 1, 32, 1]), parts[0])
    whole = ttnn.all_gather(stats, 3, cluster_axis=1)
    swap = t.put(elementwise.swapped()[None, None])
    how = {"epsilon": 1e-5, "num_heads_per_device": 2, "weight": t.put(weight, (None, 1))}
    out = ttnn.experimental.wan_fused_rmsnorm_post_allgather(
        own, whole, transformation_mat=swap, rope_cos=t.put(cos), rope_sin=t.put(sin), **how
    )
    affine = (weight[0, :128], None)
    args = {"kind": "rms", "compute": WIDE}
    sums = torch.cat(parts, -1)
    normed = norms.from_statistics(x[..., :128], sums, 512, affine, out_dtype="float32", **args)
    turned = elementwise.rotary(
        normed.unflatten(-1, (2, 64))[0].transpose(1, 2), cos, sin, dtype="float32", compute=BINARY
    )
    _same(t, out, WIDE.store(turned, "bfloat16"))
    out = ttnn.experimental.wan_fused_rmsnorm_post_allgather(own, whole, epsilon=1e-5)  # of one head, and not turned
    _same(t, out, norms.from_statistics(x[..., :128], sums, 512, (None, None), out_dtype="bfloat16", **args))
    assert t.shadow.numerics.once == {}


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


def means_of_cores_and_blocks(t: Env) -> None:
    """Rows of a grid share the pixels of a sample; ``num_out_blocks`` cuts what a core has, -1 by its size."""
    _rounds(t)
    ttnn = t.ttnn

    def check(samples: int, pixels: int, shares: tuple[int, int | None], **config: Any) -> None:
        image = (t.rand(samples, 1, pixels, 64) + 1).bfloat16().float()
        mask = t.put(ttnn.to_torch(ttnn.create_group_norm_input_mask(64, 2, 2)).float())
        how = {"num_groups": 2, "epsilon": 1e-5, "input_mask": mask, "output_layout": ttnn.TILE_LAYOUT, **config}
        channels_first = image.squeeze(1).mT
        moments = norms.summed_moments(channels_first, 2, cores=shares[0], blocks=shares[1])
        expected = norms.group_norm(channels_first, 2, moments=moments).mT.unsqueeze(1)
        image = t.put(image)
        if "memory_config" in config:
            image = ttnn.to_memory_config(image, config["memory_config"])
        _same(t, ttnn.group_norm(image, inplace=False, **how), expected)

    grid = ttnn.CoreGrid(x=2, y=4)
    check(1, 512, (4, 2), core_grid=grid, num_out_blocks=2)
    check(1, 512, (4, 1), core_grid=grid)
    check(2, 256, (2, 1), core_grid=grid)
    check(8, 64, (1, 1), core_grid=ttnn.CoreGrid(x=4, y=2))
    check(1, 16384, (4, 2), core_grid=grid, num_out_blocks=-1)
    sharded = ttnn.create_sharded_memory_config(
        (1, 1, 512, 64), ttnn.CoreGrid(x=2, y=4), ttnn.ShardStrategy.BLOCK, ttnn.ShardOrientation.ROW_MAJOR
    )
    check(1, 512, (4, None), core_grid=grid, memory_config=sharded)
    check(2, 64, (2, 1))  # the largest grid whose rows divide what the padded samples have in tiles
    check(1, 40, (2, 1))
    check(1, 512, (16, 1))  # the largest grid whose rows divide 16 tiles
    _alone(t)


CASES = collect(globals())
