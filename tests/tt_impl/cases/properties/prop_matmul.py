"""Properties of matrix products: shapes, transposes, biases and activations against sums written out in float64."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import drawn, each, spread

DTYPES = st.sampled_from(["bfloat16", "float32", "bfloat8_b"])
SIZES = st.sampled_from([1, 7, 32, 40, 64])
ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
}


def _sums(a: Tensor, b: Tensor) -> Tensor:
    """The product as sums over the inner dim, in float64."""
    return (a.double().unsqueeze(-1) * b.double().unsqueeze(-3)).sum(-2)


@drawn(25, m=SIZES, k=SIZES, n=SIZES, batch=st.sampled_from([(), (1,), (3,), (2, 3)]), shared=st.booleans(),
       flip_a=st.booleans(), flip_b=st.booleans(), dtype=DTYPES)  # fmt: skip
def products(
    t: Env, m: int, k: int, n: int, batch: tuple, shared: bool, flip_a: bool, flip_b: bool, dtype: str
) -> None:
    """Batches of their own or one matrix for all; either operand transposed; sizes that fill no tile."""
    weights = (1,) * len(batch) if shared else batch
    a, a_values = spread(t, *batch, *((k, m) if flip_a else (m, k)), dtype=dtype)
    b, b_values = spread(t, *weights, *((n, k) if flip_b else (k, n)), dtype=dtype)
    kept = t.ttnn.float32 if dtype == "float32" else t.ttnn.bfloat16
    out = t.ttnn.matmul(a, b, transpose_a=flip_a, transpose_b=flip_b, dtype=kept)
    a_values = [x.mT for x in a_values] if flip_a else a_values
    b_values = [x.mT for x in b_values] if flip_b else b_values
    t.check(out, [x.float() for x in each(_sums, a_values, b_values)], ulps=2)


@drawn(16, m=SIZES, n=SIZES, bias=st.sampled_from(["row", "ones", "batch"]), batched=st.booleans(),
       name=st.sampled_from([None, *ACTIVATIONS]))  # fmt: skip
def biases(t: Env, m: int, n: int, bias: str, batched: bool, name: str | None) -> None:
    """Rows of any rank, and one matrix per batch entry; the activation comes last."""
    shape = {"row": (n,), "ones": (1, 1, 1, n), "batch": (3, m, n)}[bias]
    if len(shape) == 1:
        shape = (1, n)
    a, a_values = spread(t, 3, m, 64)
    b, b_values = spread(t, *((3,) if batched else ()), 64, n, scale=0.1)
    c, c_values = spread(t, *shape)
    out = t.ttnn.linear(a, b, bias=c, activation=name)

    def expected(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        whole = _sums(a, b) + c.double()
        return ACTIVATIONS[name](whole).float() if name else whole.float()

    wanted = each(expected, a_values, b_values, c_values)
    t.check(out, [x.reshape(tuple(out.shape)) for x in wanted], ulps=2)


def bias_of_some_rows(t: Env) -> None:
    """A row each, within a tile or over several; behind a program's activation it is refused."""
    ttnn = t.ttnn
    for rows in (8, 96):
        x, w, c = t.rand(rows, 64), t.rand(64, 32), t.rand(rows, 32)
        t.check(ttnn.linear(t.put(x), t.put(w), bias=t.put(c)), (_sums(x, w) + c).float(), ulps=2)
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(1, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=3,
        per_core_N=1, fuse_batch=True, mcast_in0=True, fused_activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU),
    )  # fmt: skip
    late = dict(bias=t.put(c), program_config=config)
    raises(Exception, lambda: ttnn.linear(t.put(x), t.put(w), **late), "linear", "activation")


def activations_of_programs(t: Env) -> None:
    """Every kind of program config that has an activation applies it once."""
    ttnn, x, w = t.ttnn, t.rand(1, 1, 64, 128), t.rand(1, 1, 128, 64, scale=0.1)
    blocks: dict[str, Any] = dict(in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=2, per_core_N=2)
    square = dict(compute_with_storage_grid_size=(1, 1), **blocks)
    kinds = [
        (ttnn.MatmulMultiCoreReuseMultiCastProgramConfig, dict(square, transpose_mcast=False)),
        (ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig, dict(square, fuse_batch=True, mcast_in0=True)),
    ]
    product = _sums(x, w).float()
    for kind, arguments in kinds:
        for activation, wanted in (
            (ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU), product.clamp(min=0)),
            (ttnn.UnaryWithParam(ttnn.UnaryOpType.SIGMOID), 1 / (1 + torch.exp(-product))),
        ):
            config = kind(**arguments, fused_activation=activation)
            t.check(ttnn.matmul(t.put(x), t.put(w), program_config=config), wanted, ulps=2)


@drawn(12, m=SIZES, n=SIZES, alpha=st.sampled_from([1.0, 0.5, -2.0]), beta=st.sampled_from([1.0, 0.0, 0.25]))
def addmm(t: Env, m: int, n: int, alpha: float, beta: float) -> None:
    """beta x + alpha a b; a beta of zero does not even read x."""
    x, x_values = spread(t, m, n)
    a, a_values = spread(t, m, 64)
    b, b_values = spread(t, 64, n, scale=0.1)
    out = t.ttnn.addmm(x, a, b, alpha=alpha, beta=beta)
    wanted = each(lambda x, a, b: (beta * x.double() + alpha * _sums(a, b)).float(), x_values, a_values, b_values)
    t.check(out, wanted, ulps=2)
    unwritten = t.empty(m, n)
    t.check(t.ttnn.addmm(unwritten, a, b, beta=0.0), [_sums(*p).float() for p in zip(a_values, b_values, strict=True)],
            ulps=2)  # fmt: skip


@drawn(8, n=SIZES, m=SIZES, batch=st.sampled_from([(1, 1), (2, 3)]))
def outer(t: Env, n: int, m: int, batch: tuple) -> None:
    a, a_values = spread(t, *batch, n)
    b, b_values = spread(t, *batch, m)
    wanted = each(lambda a, b: torch.einsum("bcn,bcm->bcnm", a, b), a_values, b_values)
    t.check(t.ttnn.outer(a, b), wanted)


def _grid(t: Env) -> Any:
    return t.ttnn.CoreCoord(*t.mesh.grid)


@drawn(8, heads=st.sampled_from([1, 3, 8]), users=st.sampled_from([32, 64]), k=st.sampled_from([32, 64]),
       n=st.sampled_from([32, 96]))  # fmt: skip
def attn_matmul(t: Env, heads: int, users: int, k: int, n: int) -> None:
    """Row b of every head with matrix b."""
    a, a_values = spread(t, 1, heads, users, k)
    b, b_values = spread(t, users, 1, k, n)
    out = t.ttnn.experimental.attn_matmul(a, b, compute_with_storage_grid_size=_grid(t))
    wanted = each(lambda a, b: torch.einsum("hbk,bkn->hbn", a[0], b[:, 0])[None], a_values, b_values)
    t.check(out, wanted, ulps=2)


@drawn(4, tokens=st.sampled_from([1, 33, 64]), flip=st.booleans())
def attn_matmul_from_cache(t: Env, tokens: int, flip: bool) -> None:
    """Only the first tiles of the cache are read."""
    read = -(-tokens // 32) * 32
    a, a_values = spread(t, 1, 4, 32, 64 if flip else read)
    b, b_values = spread(t, 32, 1, 128, 64)
    out = t.ttnn.experimental.attn_matmul_from_cache(
        a, b, num_tokens=tokens, transpose_hw=flip, compute_with_storage_grid_size=_grid(t)
    )
    form = "hbk,bnk->hbn" if flip else "hbk,bkn->hbn"
    wanted = each(lambda a, b: torch.einsum(form, a[0], b[:, 0, :read])[None], a_values, b_values)
    t.check(out, wanted, ulps=2)


@drawn(4, heads=st.sampled_from([4, 8]), shared=st.sampled_from([1, 2, 4]))
def group_attn_matmul(t: Env, heads: int, shared: int) -> None:
    """Heads of one group after each other share a matrix."""
    kv = heads // shared
    a, a_values = spread(t, 1, heads, 32, 64)
    b, b_values = spread(t, 32, kv, 64, 96)
    out = t.ttnn.experimental.group_attn_matmul(a, b, compute_with_storage_grid_size=_grid(t))

    def expected(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([torch.einsum("bk,bkn->bn", a[0, h], b[:, h // shared]) for h in range(heads)])[None]

    t.check(out, each(expected, a_values, b_values), ulps=2)


@drawn(8, experts=st.sampled_from([2, 4]), batch=st.sampled_from([(1, 1), (1, 3)]), seed=st.integers(0, 99),
       mode=st.sampled_from(["b", "a", "both"]), told=st.booleans())  # fmt: skip
def sparse(t: Env, experts: int, batch: tuple, seed: int, mode: str, told: bool) -> None:
    """Experts nobody chose give zeros, in all three modes, whether or not their number is told."""
    ttnn = t.ttnn
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(2, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1,
        out_block_h=1, out_block_w=1, per_core_M=1, per_core_N=1, fuse_batch=False, fused_activation=None,
        mcast_in0=True,
    )  # fmt: skip
    lead = {"b": batch, "a": (batch[1], experts), "both": (1, experts)}[mode]
    places = {"b": (*batch, 1, experts), "a": (1, 1, *lead), "both": (1, 1, 1, experts)}[mode]
    chosen = (torch.rand(places, generator=torch.Generator().manual_seed(seed)) > 0.5).float()
    x, w = t.rand(*lead, 32, 64), t.rand(1, experts, 64, 64, scale=0.1)
    out = ttnn.sparse_matmul(
        t.put(x), t.put(w), sparsity=t.put(chosen, layout="ROW_MAJOR"), nnz=int(chosen.sum()) if told else None,
        is_input_a_sparse=mode != "b", is_input_b_sparse=mode != "a", program_config=config,
    )  # fmt: skip
    if mode == "b":
        wanted = torch.einsum("abmk,ekn,abe->abemn", x, w[0], chosen[:, :, 0]).unsqueeze(2)
    else:
        wanted = torch.einsum("aemk,ekn,ae->aemn", x, w[0], chosen.reshape(lead))
    t.check(out, wanted, ulps=2)


CASES = collect(globals())
