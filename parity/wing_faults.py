"""Deliberate faults in the device wing: each must fail the gate of ``wing_block`` or be refused by name.

A fault is a function that the wing's worker calls before its program (``tt_impl.launch.execute(fault=...)``); it
replaces a named function or attribute of a module of ``tt_impl`` and calls the original where it can. It is run on the
smallest case that shows it. Three things can happen:

    caught by a metric    the wing answers, and a metric of the block is beyond its bound
    caught by an error    the run is refused, in words that name the fault's nature (``says``)
    survived              the answer passes, or the run ends with some other error, which would be the fault's own bug

``run_faults`` runs every case without a fault first: a gate that fails a clean wing catches everything and shows
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from parity.thresholds import judge
from parity.wing_block import TRANSFORMER, Bench, BlockCase, thresholds
from refsim.errors import RefsimError

WORKERS = 2

TP2 = BlockCase("n300", "tp2")  # 3 heads on 2 devices: one padded head
TP2_DUAL = BlockCase("n300", "tp2", "tiny_dual")
TP8 = BlockCase("t3k-1x8", "tp8")  # 3 heads on 8 devices, 192 features in 256 lanes
SP2 = BlockCase("n300", "sp2")  # 75 tokens as 64 + 11 of 64
SP2_TP2 = BlockCase("bh-qb", "sp2_tp2")  # two axes of equal size: a wrong axis fits everywhere
SP2_TP4 = BlockCase("t3k", "sp2_tp4")
ULYSSES = BlockCase("t3k", "sp4_tp2", attention="ulysses", n=150)
USP = BlockCase("t3k", "sp8", attention="usp", ring=4, ulysses=2, n=150)  # shards 0-4 of 8 hold tokens
CFG2 = BlockCase("n300", "cfg2", kind=TRANSFORMER, n=60, batch=2)
WHOLE_SP2 = BlockCase("n300", "sp2", kind=TRANSFORMER, n=72)


@dataclass(frozen=True)
class Fault:
    """``says``: a regular expression in the error that refuses the fault; None where only a metric may catch it."""

    id: str
    sentence: str
    case: BlockCase
    inject: Callable[[], None]
    says: str | None = None


FAULTS: dict[str, Fault] = {}


def _fault(case: BlockCase, sentence: str, *, says: str | None = None) -> Callable[[Callable], Callable]:
    def register(inject: Callable[[], None]) -> Callable[[], None]:
        name = inject.__name__
        FAULTS[name.replace("_", "-")] = Fault(name.replace("_", "-"), sentence, case, inject, says)
        return inject

    return register


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``wrapper(original, *its arguments)``."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))


def _while_building(cls: type, put: Callable[..., Any]) -> None:
    """While a ``cls`` is built, ``Context.put`` is ``put(original, ctx, x, **placement)``."""
    from tt_impl.parallel.context import Context

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        plain = Context.put
        _around(Context, "put", put)
        try:
            original(self, *args, **kwargs)
        finally:
            Context.put = plain

    _around_init(cls, init)


def _around_init(cls: type, wrapper: Callable[..., None]) -> None:
    original = cls.__init__
    cls.__init__ = lambda self, *args, **kwargs: wrapper(original, self, *args, **kwargs)


# Weights


@_fault(
    TP2, "The row-parallel weight is cut along its output instead of its input.", says="width=.*height=|[Mm]ismatch"
)
def row_weight_cut_along_output() -> None:
    from tt_impl.layers.linear import RowParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x, **(where | {"tp_dim": 3}))

    _while_building(RowParallelLinear, put)


@_fault(TP2, "Every device holds its neighbour's part of the column-parallel weights.")
def col_weight_of_the_neighbour() -> None:
    from tt_impl.layers.linear import ColParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x.roll(x.shape[3] // ctx.tp, 3) if x.shape[2] > 1 else x, **where)

    _while_building(ColParallelLinear, put)


@_fault(SP2_TP2, "The column-parallel weights are cut over the sequence axis of the mesh.")
def col_weight_on_the_wrong_axis() -> None:
    from tt_impl.layers.linear import ColParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, *, tp_dim: int | None = None, **more: Any) -> Any:
        return original(ctx, x, sp_dim=tp_dim, **more)

    _while_building(ColParallelLinear, put)


@_fault(TP2, "bfp4_b weights where bf16 is meant.")
def weights_in_bfp4() -> None:
    import ttnn

    from tt_impl.parallel.context import Context

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        matrix = x.shape[0] == 1 and x.shape[-2] >= x.shape[-1] // 16 and x.shape[-2] > 128
        return original(ctx, x, **(where | {"dtype": ttnn.bfloat4_b} if matrix else where))

    _around(Context, "put", put)


# Heads


@_fault(TP2, "The fused QKV holds K, Q, V.")
def qkv_order_kqv() -> None:
    _reorder([1, 0, 2])


@_fault(TP2, "The fused QKV holds Q, V, K.")
def qkv_order_qvk() -> None:
    _reorder([0, 2, 1])


def _reorder(order: list[int]) -> None:
    from tt_impl.layers.linear import ColParallelQKV

    _around(ColParallelQKV, "_per_device", lambda original, self, x: original(self, x[order]))


@_fault(TP2, "The fused QKV is cut as all Q, all K, all V, without giving each device its own of all three.")
def qkv_reshuffle_omitted() -> None:
    from tt_impl.layers.linear import ColParallelQKV

    _around(ColParallelQKV, "_per_device", lambda original, self, x: x.flatten(0, 1))


@_fault(TP8, "Padded heads hold garbage and the output projection does not mask them.")
def head_padding_unmasked() -> None:
    _garbage_heads(only_qkv=False)


def _garbage_heads(*, only_qkv: bool) -> None:
    from tt_impl.layers import linear

    def garbage(rows: bool) -> Callable:
        def pad_to(original: Callable, x: torch.Tensor, *sizes: int) -> torch.Tensor:
            y = original(x, *sizes)
            if x.ndim == 2:
                inside = (
                    (slice(x.shape[0], None), slice(x.shape[1]))
                    if rows
                    else (slice(x.shape[0]), slice(x.shape[1], None))
                )
                y[inside] = 0.05
            return y

        return pad_to

    classes = (
        {linear.ColParallelQKV: True} if only_qkv else {linear.ColParallelQKV: True, linear.RowParallelLinear: False}
    )
    for cls, rows in classes.items():

        def init(original: Callable, self: Any, *args: Any, _rows: bool = rows, **kwargs: Any) -> None:
            plain = linear.pad_to
            _around(linear, "pad_to", garbage(_rows))
            try:
                original(self, *args, **kwargs)
            finally:
                linear.pad_to = plain

        _around_init(cls, init)


@_fault(TP2, "Heads per device are rounded down, so the last head is lost.")
def heads_rounded_down() -> None:
    from tt_impl.layers import attention, linear

    for module in (linear, attention):
        module.heads_per_device = lambda heads, tp, ulysses=1: heads // tp


@_fault(TP2, "Queries and keys are not normalised.")
def qk_norm_omitted() -> None:
    from tt_impl.layers.norm import RMSNorm

    RMSNorm.__call__ = lambda self, x: x


@_fault(TP2, "The norm of the prompt's keys has the weight of its queries.")
def qk_norm_of_the_wrong_name() -> None:
    from tt_impl.layers.norm import RMSNorm

    def init(original: Callable, self: Any, ctx: Any, weights: Any, name: str, **sizes: Any) -> None:
        original(self, ctx, weights, name.replace("norm_added_k", "norm_added_q"), **sizes)

    _around_init(RMSNorm, init)


# Collectives of tensor parallelism


@_fault(SP2_TP2, "Features are gathered along the sequence axis of the mesh.")
def gather_on_the_wrong_axis() -> None:
    from tt_impl.models.sd35.block import SD35Block

    SD35Block._gather = lambda self, x: self._ctx.ccl.all_gather(x, dim=3, axis=1 - self._ctx.tp_axis)


@_fault(TP2, "Rows instead of features are gathered.", says="width=.*height=|[Mm]ismatch")
def gather_on_the_wrong_dim() -> None:
    from tt_impl.models.sd35.block import SD35Block

    SD35Block._gather = lambda self, x: self._ctx.ccl.all_gather(x, dim=2, axis=self._ctx.tp_axis)


@_fault(SP2_TP2, "Partial sums are reduced along the sequence axis of the mesh.")
def reduce_on_the_wrong_axis() -> None:
    from tt_impl.layers import linear

    linear.reduce_scatter_features = lambda ctx, x: ctx.ccl.reduce_scatter(x, dim=3, axis=1 - ctx.tp_axis)


@_fault(TP2, "No reduce_scatter: every device keeps its lanes of its own partial sum.")
def reduce_scatter_missing() -> None:
    import ttnn

    from tt_impl.layers import linear

    linear.reduce_scatter_features = lambda ctx, x: ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)


@_fault(TP2, "Partial sums are reduced twice, which makes them tp times too large.")
def reduced_twice() -> None:
    from tt_impl.layers import linear
    from tt_impl.parallel.tensor import gather_features

    _around(
        linear,
        "reduce_scatter_features",
        lambda original, ctx, x: original(ctx, gather_features(ctx, original(ctx, x))),
    )


@_fault(TP2, "The bias is added before the reduction, tp times.")
def bias_before_the_reduction() -> None:
    import ttnn

    from tt_impl.layers import linear
    from tt_impl.parallel.tensor import gather_features

    def call(self: linear.RowParallelLinear, x: ttnn.Tensor) -> ttnn.Tensor:
        partial = ttnn.linear(x, self._weight, bias=gather_features(self._ctx, self._bias))
        return linear.reduce_scatter_features(self._ctx, partial)

    linear.RowParallelLinear.__call__ = call


@_fault(TP2, "The bias of row-parallel linears is forgotten.")
def bias_forgotten() -> None:
    from tt_impl.layers.linear import RowParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x * 0 if x.shape[2] == 1 else x, **where)

    _while_building(RowParallelLinear, put)


# Norms and modulation


@_fault(
    TP2,
    "Statistics of the layer norm are not gathered: each device normalises its own lanes.",
    says="stats|width|shape",
)
def norm_statistics_local() -> None:
    from tt_impl.layers import norm

    norm.gather_features = lambda ctx, stats: stats


@_fault(TP2, "Every device takes the first device's statistics of the layer norm for everyone's.")
def norm_statistics_of_one() -> None:
    import ttnn

    from tt_impl.layers import norm

    norm.gather_features = lambda ctx, stats: ttnn.concat([stats] * ctx.tp, 3)


@_fault(SP2_TP4, "The layer norm divides by the number of padded lanes.")
def norm_counts_padding() -> None:
    from tt_impl.layers.norm import DistributedLayerNorm

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._correction = 1.0

    _around_init(DistributedLayerNorm, init)


def _chunks(change: Callable[[list], list]) -> None:
    from tt_impl.layers.modulation import Modulation

    _around(Modulation, "__call__", lambda original, self, time: change(original(self, time)))


@_fault(TP2, "The gate of attention is forgotten.")
def gate_forgotten() -> None:
    import ttnn

    def change(chunks: list) -> list:
        return [ttnn.add(ttnn.multiply(c, 0.0), 1.0) if i == 2 else c for i, c in enumerate(chunks)]

    _chunks(change)


@_fault(TP2, "Shift and scale change places.")
def shift_and_scale_swapped() -> None:
    _chunks(lambda chunks: [chunks[1], chunks[0], *chunks[2:]])


@_fault(TP2, "The gates of attention and feed-forward change places.")
def gates_swapped() -> None:
    _chunks(lambda chunks: [*chunks[:2], chunks[5], *chunks[3:5], chunks[2], *chunks[6:]])


@_fault(TP2, "The modulation's chunks are cut over tp as they lie in the checkpoint, not lane by lane.")
def modulation_reshuffle_omitted() -> None:
    from tt_impl.layers.modulation import Modulation

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x.unflatten(3, (ctx.tp, 6, -1)).transpose(3, 4).flatten(3), **where)

    _while_building(Modulation, put)


@_fault(TP2_DUAL, "The second attention of a dual block is left out.")
def dual_attention_forgotten() -> None:
    from tt_impl.models.sd35.block import SD35Block

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._dual = False

    _around_init(SD35Block, init)


# Attention


def _logical_n(change: Callable[[Any, int], int]) -> None:
    from tt_impl.parallel import usp

    def attention(original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int) -> Any:
        return original(ctx, qkv, prompt, logical_n=change(qkv[0].shape[2] * ctx.ring, logical_n))

    _around(usp, "ring_attention", attention)


@_fault(SP2_TP4, "logical_n is one tile too many: 32 keys of padding count.")
def logical_n_one_tile_more() -> None:
    _logical_n(lambda padded, n: n + 32)


@_fault(SP2_TP4, "logical_n is one tile too few: the last 32 keys are masked.")
def logical_n_one_tile_less() -> None:
    _logical_n(lambda padded, n: n - 32)


@_fault(SP2_TP4, "logical_n is the padded number of tokens: no key of padding is masked.")
def logical_n_padded() -> None:
    _logical_n(lambda padded, n: padded)


@_fault(ULYSSES, "Ulysses attends to the rows of padding.")
def ulysses_padding_not_cut() -> None:
    from tt_impl.parallel import usp

    _around(
        usp,
        "_local",
        lambda original, ctx, qkv, prompt, *, logical_n: original(ctx, qkv, prompt, logical_n=qkv[0].shape[2]),
    )


@_fault(SP2, "joint_strategy is front.", says="joint_strategy|rear")
def joint_strategy_front() -> None:
    import ttnn

    def joint(original: Callable, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **(kwargs | {"joint_strategy": "front"}))

    _around(ttnn.transformer, "ring_joint_scaled_dot_product_attention", joint)


@_fault(TP2, "The prompt comes out in front and is split off as if it were at the rear.")
def joint_at_the_front() -> None:
    import ttnn

    from tt_impl.parallel import usp

    def local(original: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int) -> Any:
        out, prompt_out = original(ctx, qkv, prompt, logical_n=logical_n)
        whole = ttnn.concat([prompt_out, out], 2)
        return whole[:, :, : out.shape[2]], whole[:, :, out.shape[2] :]

    _around(usp, "_local", local)


@_fault(SP2, "Image tokens do not attend to the prompt.")
def joint_missing() -> None:
    from tt_impl.parallel import usp

    def attention(original: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
        return original(ctx, qkv, None, **more)[0], original(ctx, qkv, prompt, **more)[1]

    _around(usp, "ring_attention", attention)


@_fault(SP2, "No merge over the ring: each device attends to its own shard and the prompt only.")
def no_lse_merge() -> None:
    import ttnn

    from tt_impl.parallel import sdpa, usp

    def attention(_: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
        program = sdpa.program_config(ctx, qkv[0].shape[2], reserve_row=False)
        return ttnn.transformer.joint_scaled_dot_product_attention(
            *qkv, *prompt, joint_strategy="rear", program_config=program, compute_kernel_config=ctx.sdpa_config
        )

    _around(usp, "ring_attention", attention)


@_fault(SP2, "Shards are merged with equal weight instead of by their log-sum-exp.")
def lse_merge_averaged() -> None:
    import ttnn

    from tt_impl.parallel import sdpa, usp

    def attention(_: Callable, ctx: Any, qkv: Any, prompt: Any, *, logical_n: int) -> Any:
        (q, k, v), rows = qkv, qkv[0].shape[2]
        k, v = (ctx.ccl.all_gather(x, dim=2, axis=ctx.ring_axis) for x in (k, v))
        program = sdpa.program_config(ctx, rows, reserve_row=False)
        outs = []
        for start in range(0, logical_n, rows):
            stop = min(start + rows, logical_n)
            keys = [ttnn.concat([x[:, :, start:stop], p], 2) for x, p in zip((k, v), prompt[1:], strict=True)]
            outs.append(
                [
                    ttnn.transformer.scaled_dot_product_attention(
                        x, *keys, is_causal=False, program_config=program, compute_kernel_config=ctx.sdpa_config
                    )
                    for x in (q, prompt[0])
                ]
            )
        return tuple(ttnn.multiply(ttnn.add(a, b), 0.5) for a, b in zip(*outs, strict=True))

    _around(usp, "ring_attention", attention)


@_fault(ULYSSES, "The two dims of Ulysses' all_to_all change places.", says="all_to_all")
def ulysses_dims_swapped() -> None:
    from tt_impl.parallel import ulysses

    def exchange(original: Callable, ctx: Any, x: Any, *, gather: int, cut: int) -> Any:
        return original(ctx, x, gather=cut, cut=gather)

    _around(ulysses, "_all_to_all", exchange)


@_fault(ULYSSES, "Every device takes the first share of the prompt's heads.")
def ulysses_prompt_heads_of_one() -> None:
    import ttnn

    def partition(original: Callable, x: Any, *, dim: int, cluster_axis: int) -> Any:
        return x[:, : x.shape[dim] // x.device().shape[cluster_axis]]

    _around(ttnn, "mesh_partition", partition)


@_fault(USP, "The shards of USP lie row by row, not in the order of the ring, so the mask hits real keys.")
def usp_shards_in_device_order() -> None:
    from tt_impl.parallel.context import Context

    _around(Context, "_in_device_order", lambda original, self, x, dim, *, back=False: x)


@_fault(USP, "V travels the ring one shard behind K.")
def usp_v_behind_k() -> None:
    import ttnn

    from tt_impl.parallel import usp

    def attention(original: Callable, ctx: Any, qkv: Any, prompt: Any, **more: Any) -> Any:
        q, k, v = qkv
        n, axis = v.shape[2], ctx.ring_axis
        whole = ctx.ccl.all_gather(v, dim=2, axis=axis)
        whole = ttnn.concat([whole[:, :, n:], whole[:, :, :n]], 2)
        return original(ctx, (q, k, ttnn.mesh_partition(whole, dim=2, cluster_axis=axis)), prompt, **more)

    _around(usp, "ring_attention", attention)


# Whole transformer


@_fault(CFG2, "The cfg groups are swapped: the first one gets the positive half.")
def cfg_groups_swapped() -> None:
    _cfg_inputs([1, 0])


@_fault(CFG2, "Both cfg groups get the negative half.")
def cfg_groups_alike() -> None:
    _cfg_inputs([0, 0])


def _cfg_inputs(order: list[int]) -> None:
    from tt_impl.pipelines import transformer

    def program(original: Callable, *args: Any, inputs: dict[str, torch.Tensor], **more: Any) -> Any:
        dealt = {name: torch.cat([x.chunk(2)[i] for i in order]) for name, x in inputs.items()}
        return original(*args, inputs=dealt, **more)

    _around(transformer, "program", program)


@_fault(WHOLE_SP2, "Every device adds the first rows of the positional table.")
def positions_not_cut() -> None:
    from tt_impl.layers.embeddings import PatchEmbed

    def call(original: Callable, self: Any, latent: torch.Tensor) -> Any:
        from tt_impl.parallel.context import Context

        plain = Context.put

        def put(ctx: Any, x: torch.Tensor, **where: Any) -> Any:
            if x.shape[-1] == latent.shape[1] * 4:  # patches; the other one is the table
                return plain(ctx, x, **where)
            first = x[:, :, : x.shape[2] // ctx.sp]
            return plain(ctx, torch.cat([first] * ctx.sp, 2), **where)

        Context.put = put
        try:
            return original(self, latent)
        finally:
            Context.put = plain

    _around(PatchEmbed, "__call__", call)


@_fault(WHOLE_SP2, "The whole positional table is added to a shard.", says="[Bb]roadcast|shape|dimension")
def positions_whole() -> None:
    from tt_impl.layers import embeddings
    from tt_impl.parallel.context import Context

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        table = where.get("sp_dim") == 2 and "tp_dim" in where
        return original(ctx, x, **(where | {"sp_dim": None} if table else where))

    assert embeddings.PatchEmbed
    _around(Context, "put", put)


# Buffers, links, topology, memory


@_fault(TP2, "One buffer instead of a ping-pong pair.", says="HazardError: buffer 0 .* may still read it")
def single_buffer() -> None:
    from tt_impl.parallel import manager

    manager.SLOTS = 1


@_fault(TP2, "A gather's reader takes the buffer of the gather before.")
def stale_buffer() -> None:
    from tt_impl.parallel.manager import CCLManager

    def gather(original: Callable, self: Any, x: Any, buffer: Any, **more: Any) -> Any:
        original(self, x, buffer, **more)
        return next(
            b for pair in self._buffers.values() if any(c is buffer for c in pair) for b in pair if b is not buffer
        )

    _around(CCLManager, "_all_gather", gather)


@_fault(TP2, "Collectives never give buffers back.", says="HazardError: buffer . .* may still read it")
def buffers_never_returned() -> None:
    from tt_impl.mock.checks import BufferLedger

    BufferLedger.synchronised = lambda self, axis=None: None


def _ccl(change: Callable[[Any], None]) -> None:
    from tt_impl.parallel.manager import CCLManager

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        change(self)

    _around_init(CCLManager, init)


@_fault(TP2, "Four Ethernet links are asked for where the mesh has one.", says="asks for 4 links, but n300")
def links_beyond_the_mesh() -> None:
    def change(ccl: Any) -> None:
        ccl.num_links = [4, 4]

    _ccl(change)


@_fault(SP2_TP4, "A Ring is asked for on an axis that is a line.", says="Ring on axis . of t3k .*, which is a line")
def ring_on_a_line() -> None:
    import ttnn

    def change(ccl: Any) -> None:
        ccl.topology = [ttnn.Topology.Ring] * 2

    _ccl(change)


@_fault(TP2, "A bias is freed before it is used.", says="HazardError: .* was deallocated")
def use_after_free() -> None:
    import ttnn

    from tt_impl.layers.linear import RowParallelLinear

    def call(original: Callable, self: Any, x: Any) -> Any:
        ttnn.deallocate(self._bias)
        return original(self, x)

    _around(RowParallelLinear, "__call__", call)


def run_faults(ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Run the clean cases that the faults ``ids`` (None: all) use, then the faults; one record each, clean ones first.

    A record has ``id``, ``kind`` (``clean`` or ``fault``), ``case``, ``sentence``, ``verdict`` (``pass`` or
    ``false alarm``; ``caught`` or ``survived``), ``by`` (the metric, or the class of error), ``value``, ``threshold``,
    ``message``, ``metrics`` and ``seconds``.
    """
    chosen = list(FAULTS.values()) if ids is None else [FAULTS[i] for i in ids]
    jobs: list[tuple[BlockCase, Fault | None]] = [(case, None) for case in dict.fromkeys(f.case for f in chosen)]
    jobs += [(f.case, f) for f in chosen]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with Bench() as bench:
            for case in dict.fromkeys(case for case, _ in jobs):
                bench.reference(case)
            with ThreadPoolExecutor(WORKERS) as workers:
                return list(workers.map(lambda job: _run(bench, *job), jobs))
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _run(bench: Bench, case: BlockCase, fault: Fault | None) -> dict[str, Any]:
    started = time.monotonic()
    record: dict[str, Any] = {
        "id": fault.id if fault else case.id,
        "kind": "fault" if fault else "clean",
        "case": case.id,
        "sentence": fault.sentence if fault else "",
        **dict.fromkeys(("by", "value", "threshold")),
        "message": "",
        "metrics": {},
    }
    failures: list[str] = []
    try:
        ours = bench.wing(case, fault=f"parity.wing_faults:{fault.inject.__name__}" if fault else "")
        found = record["metrics"] = bench.measure(case, ours)
        failures = judge(found, thresholds(case))
        # the metric furthest beyond its bound; NaN is beyond everything
        excess = {t: found[t.metric] / t.limit if t.limit else found[t.metric] for t in thresholds(case)}
        worst = max(excess, key=lambda t: float("inf") if excess[t] != excess[t] else excess[t])
        record |= {"by": worst.metric, "value": found[worst.metric], "threshold": worst.limit}
        record["message"] = "; ".join(failures)
        caught = bool(failures)
    except RefsimError as e:
        record["message"] = str(e)
        named = re.search(r"(UserError|HazardError|PlacementError):", f"{type(e).__name__}: {e}")
        record["by"] = named[1] if named else "ttnn's refusal" if "TT_" in str(e) or "TypeError" in str(e) else "error"
        caught = (
            fault is not None and fault.says is not None and bool(re.search(fault.says, f"{type(e).__name__}: {e}"))
        )
        failures = [str(e)]
    if fault:
        record["verdict"] = "caught" if caught else "survived"
    else:
        record["verdict"] = "false alarm" if failures else "pass"
    record["seconds"] = round(time.monotonic() - started, 1)
    return record


def is_good(records: list[dict[str, Any]]) -> bool:
    """No clean case failed and no fault survived."""
    return all(r["verdict"] in ("pass", "caught") for r in records)


def table(records: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| fault | case | verdict | by | value | threshold | s |", "|---|---|---|---|---|---|---|"]
    for r in records:
        name = r["id"] if r["kind"] == "fault" else "(clean)"
        value, threshold = (f"{r[k]:.2g}" if r[k] is not None else "" for k in ("value", "threshold"))
        lines.append(f"| {name} | {r['case']} | {r['verdict']} | {r['by']} | {value} | {threshold} | {r['seconds']} |")
    bad = [f"{r['id']} ({r['verdict']}): {r['message'] or r['sentence']}" for r in records if not is_good([r])]
    faults = [r for r in records if r["kind"] == "fault"]
    caught = sum(r["verdict"] == "caught" for r in faults)
    return "\n".join([*lines, "", f"{caught} of {len(faults)} faults caught.", *bad])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m parity.wing_faults", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="records as JSON instead of a table")
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only faults whose id holds it")
    options = parser.parse_args(argv)
    ids = [i for i in FAULTS if options.k in i]
    if not ids:
        print(f"no fault's id holds '{options.k}'; there are {', '.join(FAULTS)}.", file=sys.stderr)
        return 2
    records = run_faults(ids)
    print(json.dumps(records, indent=2) if options.json else table(records))
    return 0 if is_good(records) else 1


if __name__ == "__main__":
    sys.exit(main())
