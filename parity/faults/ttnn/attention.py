"""Faults of the device backend in attention over shards: masks, the joint prompt, merges, exchanges, shard order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.faults.around import at
from parity.faults.registry import fault
from parity.faults.ttnn.cases import SP2, SP2_SPLIT, SP2_TP4, TP2, ULYSSES, USP
from parity.faults.ttnn.device import ttnn

padding = partial(fault, "padding", case=SP2_TP4)
joint = partial(fault, "joint", case=SP2)
merge = partial(fault, "merge", case=SP2)
exchange = partial(fault, "exchange", case=ULYSSES)


@padding("logical_n is one tile too many: 32 keys of padding count.", "logical_n rounded up to whole tiles once more")
@at("tt_impl.parallel.usp:ring_attention")
def logical_n_one_tile_more(original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int, **more: Any) -> Any:
    return original(ctx, qkv, prompt, logical_n=logical_n + 32, **more)


@padding("logical_n is one tile too few: the last 32 keys are masked.", "logical_n rounded down to whole tiles")
@at("tt_impl.parallel.usp:ring_attention")
def logical_n_one_tile_less(original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int, **more: Any) -> Any:
    return original(ctx, qkv, prompt, logical_n=logical_n - 32, **more)


@padding(
    "logical_n is the padded number of tokens: no key of padding is masked.", "logical_n read from the tensor's shape"
)
@at("tt_impl.parallel.usp:ring_attention")
def logical_n_padded(original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int, **more: Any) -> Any:
    return original(ctx, qkv, prompt, logical_n=qkv[0].shape[2] * ctx.ring, **more)


@padding("Ulysses attends to the rows of padding.", "rows of padding not cut after the all_to_all", case=ULYSSES)
@at("tt_impl.parallel.usp:_local")
def ulysses_padding_not_cut(original: Callable, ctx: Any, qkv: Any, prompt: Any, **tokens: Any) -> Any:
    return original(ctx, qkv, prompt, logical_n=qkv[0].shape[2])


@joint("joint_strategy is front.", "the other value of an option of the ring's operation", says="joint_strategy|rear")
@at("ttnn:transformer.ring_joint_scaled_dot_product_attention")
def joint_strategy_front(original: Callable, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **(kwargs | {"joint_strategy": "front"}))


@joint(
    "The prompt comes out in front and is split off as if it were at the rear.",
    "diffusers concatenates some models' prompts in front",
    case=TP2,
)
@at("tt_impl.parallel.usp:_local")
def joint_at_the_front(original: Callable, ctx: Any, qkv: Any, prompt: Any, **tokens: Any) -> Any:
    out, prompt_out = original(ctx, qkv, prompt, **tokens)
    whole = ttnn.concat([prompt_out, out], 2)
    return whole[:, :, : out.shape[2]], whole[:, :, out.shape[2] :]


@joint("Image tokens do not attend to the prompt.", "the joint tensors handed over for one stream only")
@at("tt_impl.parallel.usp:ring_attention")
def joint_missing(original: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
    return original(ctx, qkv, None, **more)[0], original(ctx, qkv, prompt, **more)[1]


@joint(
    "A prompt that is cut over sp is taken for one that every device holds.",
    "its length not handed on to attention",
    case=SP2_SPLIT,
)
@at("tt_impl.blocks.double:joint_attention")
def joint_split_taken_for_whole(original: Callable, *args: Any, logical_l: int | None = None, **more: Any) -> Any:
    return original(*args, **more)


@merge(
    "No merge over the ring: each device attends to its own shard and the prompt only.",
    "joint attention of one device used on a sequence that is sharded",
    says="devices that should hold the same tensor differ in it",
)
@at("tt_impl.parallel.usp:ring_attention")
def no_lse_merge(_: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
    from tt_impl.parallel import sdpa

    program = sdpa.program_config(ctx, qkv[0].shape[2], reserve_row=False)
    return ttnn.transformer.joint_scaled_dot_product_attention(
        *qkv, *prompt, joint_strategy="rear", program_config=program, compute_kernel_config=ctx.sdpa_config
    )


@merge("Shards are merged with equal weight instead of by their log-sum-exp.", "outputs of the steps averaged")
@at("tt_impl.parallel.usp:ring_attention")
def lse_merge_averaged(_: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int, **more: Any) -> Any:
    from tt_impl.parallel import sdpa

    q, k, v = qkv
    rows = qkv[0].shape[2]
    k, v = (ctx.ccl.all_gather(x, dim=2, axis=ctx.ring_axis) for x in (k, v))
    options = {
        "is_causal": False,
        "program_config": sdpa.program_config(ctx, rows, reserve_row=False),
        "compute_kernel_config": ctx.sdpa_config,
    }
    outs = []
    for start in range(0, logical_n, rows):
        stop = min(start + rows, logical_n)
        keys = [ttnn.concat([x[:, :, start:stop], p], 2) for x, p in zip((k, v), prompt[1:], strict=True)]
        outs.append([ttnn.transformer.scaled_dot_product_attention(x, *keys, **options) for x in (q, prompt[0])])
    return tuple(ttnn.multiply(ttnn.add(a, b), 0.5) for a, b in zip(*outs, strict=True))


@exchange(
    "The two dims of Ulysses' all_to_all change places.",
    "in_dim and out_dim exchanged",
    says="ttnn.slice on .* must be less than or equal to the shape of the tensor",
)
@at("tt_impl.parallel.ulysses:_all_to_all")
def ulysses_dims_swapped(original: Callable, ctx: Any, x: Any, *, gather: int, cut: int) -> Any:
    return original(ctx, x, gather=cut, cut=gather)


@exchange(
    "Every device takes the first share of the prompt's heads.", "a slice where a partition over the devices is meant"
)
@at("ttnn:mesh_partition")
def ulysses_prompt_heads_of_one(original: Callable, x: Any, *, dim: int, cluster_axis: int) -> Any:
    return x[:, : x.shape[dim] // x.device().shape[cluster_axis]]


@exchange(
    "The shards of USP lie row by row, not in the order of the ring, so the mask hits real keys.",
    "shards dealt in the order of device ids",
    case=USP,
)
@at("tt_impl.parallel.context:Context._in_device_order")
def usp_shards_in_device_order(original: Callable, self: Any, x: Any, dim: Any, *, back: Any = False) -> Any:
    return x


@exchange("V travels the ring one shard behind K.", "two gathers on one semaphore, of which one is late", case=USP)
@at("tt_impl.parallel.usp:ring_attention")
def usp_v_behind_k(original: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
    q, k, v = qkv
    n = v.shape[2]
    axis = ctx.ring_axis
    whole = ctx.ccl.all_gather(v, dim=2, axis=axis)
    whole = ttnn.concat([whole[:, :, n:], whole[:, :, :n]], 2)
    return original(ctx, (q, k, ttnn.mesh_partition(whole, dim=2, cluster_axis=axis)), prompt, **more)
