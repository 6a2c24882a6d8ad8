"""Properties of the diffusion transformers' products: bias, gate, residual, parts, and the gather before them."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.cases.properties.prop_collectives import _over
from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, only, spread

SOME, AXES = st.booleans(), st.sampled_from([0, 1])
ROWS = st.sampled_from([32, 40, 64])
ACTIVATIONS = {
    None: lambda x: x,
    "GELU": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "SILU": lambda x: x / (1 + torch.exp(-x)),
    "RELU": lambda x: torch.where(x > 0, x, 0.0),
}
NAMES = st.sampled_from(list(ACTIVATIONS))


def _activation(t: Env, name: str | None) -> Any:
    return None if name is None else t.ttnn.UnaryWithParam(getattr(t.ttnn.UnaryOpType, name))


def _sums(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    product = (x.double().unsqueeze(-1) * w.double().unsqueeze(-3)).sum(-2)
    return product if b is None else product + b.double().flatten()


def _gated(x: Tensor) -> Tensor:
    """Tiles of gate and up take turns."""
    tiles = list(x.split(32, -1))
    return torch.cat([ACTIVATIONS["SILU"](gate) * up for gate, up in zip(tiles[::2], tiles[1::2], strict=True)], -1)


@drawn(8, rows=ROWS, biased=SOME, name=NAMES, swiglu=SOME, two=SOME)
def products(t: Env, rows: int, biased: bool, name: str | None, swiglu: bool, two: bool) -> None:
    """An input in one piece, or in two of which the first is filled up to a tile; gates instead of an activation."""
    only(not swiglu or name is None)
    (w, ws), (b, bs) = spread(t, 128, 192, scale=0.1), spread(t, 1, 192)
    (x, xs), (y, ys) = spread(t, 1, 1, rows, 48 if two else 128), spread(t, 1, 1, rows, 64)
    out = t.ttnn.experimental.minimal_matmul(
        [x, y] if two else x, w, bias_tensor=b if biased else None, fused_activation=_activation(t, name),
        fuse_swiglu=swiglu,
    )  # fmt: skip

    def expected(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
        whole = _sums(x, w[:48]) + _sums(y, w[64:]) if two else _sums(x, w)
        whole = whole + b.double().flatten() if biased else whole
        return (_gated(whole) if swiglu else ACTIVATIONS[name](whole)).float()

    t.check(out, each(expected, xs, ys, ws, bs), ulps=2)


@drawn(6, rows=ROWS, biased=SOME, name=NAMES, chunks=st.sampled_from([2, 3]))
def parts(t: Env, rows: int, biased: bool, name: str | None, chunks: int) -> None:
    """Q, K and V of one product."""
    (x, xs), (w, ws), (b, bs) = (
        spread(t, 1, 1, rows, 64),
        spread(t, 64, 64 * chunks, scale=0.1),
        spread(t, 1, 64 * chunks),
    )
    outputs = t.ttnn.experimental.minimal_matmul_split(
        x, w, chunks=chunks, bias_tensor=b if biased else None, fused_activation=_activation(t, name)
    )
    whole = each(lambda x, w, b: ACTIVATIONS[name](_sums(x, w, b if biased else None)).float(), xs, ws, bs)
    assert len(outputs) == chunks
    for number, out in enumerate(outputs):
        t.check(out, [x[..., 64 * number : 64 * number + 64] for x in whole], ulps=2)


@drawn(6, rows=ROWS, biased=SOME, scalar=st.sampled_from([1.0, -0.5]), gated=st.sampled_from(["row", "all"]))
def ends_of_branches(t: Env, rows: int, biased: bool, scalar: float, gated: str) -> None:
    """The residual, and the gated product on top: a gate for all rows, or one for each."""
    (x, xs), (w, ws), (b, bs) = spread(t, 1, 1, rows, 64), spread(t, 64, 96, scale=0.1), spread(t, 1, 96)
    (r, rs), (g, gs) = spread(t, 1, 1, rows, 96), spread(t, 1, 1, 1 if gated == "row" else rows, 96)
    out = t.ttnn.experimental.dit_minimal_matmul_addcmul_fused(x, w, scalar, r, g, b if biased else None)

    def expected(x: Tensor, w: Tensor, b: Tensor, r: Tensor, g: Tensor) -> Tensor:
        return (r + scalar * _sums(x, w, b if biased else None) * g).float()

    t.check(out, each(expected, xs, ws, bs, rs, gs), ulps=2)


def _blocks(t: Env) -> Any:
    return t.ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=t.ttnn.CoreCoord(6, 6),
    )  # fmt: skip


@drawn(8, axis=AXES, chunks=st.sampled_from([1, 3]), biased=SOME, name=NAMES, residual=SOME)
def gathered_before(t: Env, axis: int, chunks: int, biased: bool, name: str | None, residual: bool) -> None:
    """The inner dim is cut over the axis; the buffer holds it whole then."""
    only(not residual or (chunks, name) == (1, None))
    n = t.shape[axis]
    x, xs = spread(t, 1, 1, 64, 64)
    (w, ws), (b, bs) = spread(t, 64 * n, 384, scale=0.1), spread(t, 1, 384)
    (r, rs), (g, gs) = spread(t, 1, 1, 64, 384), spread(t, 1, 1, 1, 384)
    buffer = t.empty(1, 1, 64, 64 * n)
    terms = dict(scalar=0.5, addcmul_input_tensor1=r, addcmul_input_tensor2=g) if residual else {}
    outputs = t.ttnn.experimental.all_gather_minimal_matmul_async(
        x, w, bias_tensor=b if biased else None, config=_blocks(t), num_workers_per_link=6, chunks=chunks,
        fused_activation=_activation(t, name), multi_device_global_semaphore=t.semaphores(2),
        barrier_semaphore=t.semaphores(1)[0], persistent_output_buffer=buffer, num_links=1, cluster_axis=axis,
        topology=t.linear, **terms,
    )  # fmt: skip
    whole = _over(t, axis, xs, lambda group, _: torch.cat(group, -1))
    t.check(buffer, whole, ulps=0)

    def expected(x: Tensor, w: Tensor, b: Tensor, r: Tensor, g: Tensor) -> Tensor:
        product = ACTIVATIONS[name](_sums(x, w, b if biased else None))
        return (r + 0.5 * product * g if residual else product).float()

    wanted, size = each(expected, whole, ws, bs, rs, gs), 384 // chunks
    for number, out in enumerate(outputs):
        t.check(out, [v[..., size * number : size * number + size] for v in wanted], ulps=2)


CASES = collect(globals())
