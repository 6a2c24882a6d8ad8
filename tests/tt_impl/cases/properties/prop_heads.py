"""Properties of head splits, rotary embeddings, caches and state spaces, element by element."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import drawn, each, only, spread

SHARES = st.sampled_from([(4, 4), (4, 2), (8, 1), (6, 3)])
SOME = st.booleans()


def _head(x: Tensor, head: int, size: int = 32, first: int = 0) -> Tensor:
    """Columns of one head, behind ``first`` columns."""
    return x[..., first + head * size : first + (head + 1) * size]


def _heads(x: Tensor, count: int, size: int = 32, first: int = 0) -> Tensor:
    return torch.stack([_head(x.reshape(x.shape[0], x.shape[-2], -1), i, size, first) for i in range(count)], 1)


def _three(t: Env, outputs: Any, wanted: list[tuple]) -> None:
    for position, output in enumerate(outputs):
        t.check(output, [values[position] for values in wanted])


@drawn(10, heads=SHARES, rows=st.sampled_from([1, 32, 40]), batch=st.sampled_from([1, 2]), transposed=SOME,
       apart=SOME, name=st.sampled_from(["nlp", "tied", "transformer"]))  # fmt: skip
def fused_columns(t: Env, heads: tuple, rows: int, batch: int, transposed: bool, apart: bool, name: str) -> None:
    """[all of Q | all of K | all of V], K and V apart or together, or K used as V."""
    ttnn, (q, kv), size = t.ttnn, heads, 32
    only(name != "tied" or (q + kv) * size % (q + 2 * kv) != 0)  # else ttnn cannot tell which of both is meant
    only(not apart or name == "nlp")
    rest = (1 if name == "tied" else 2) * kv * size
    shape = (batch, 1, rows) if name != "transformer" else (batch, rows)
    x, xs = spread(t, *shape, q * size + (0 if apart else rest))
    y, ys = spread(t, *shape, rest) if apart else (None, xs)
    if name == "transformer":
        out = ttnn.transformer.split_query_key_value_and_split_heads(
            x, num_heads=q, num_kv_heads=kv, transpose_key=transposed
        )
    else:
        out = ttnn.experimental.nlp_create_qkv_heads(
            x, y, num_heads=q, num_kv_heads=kv, transpose_k_heads=transposed, kv_tied=name == "tied"
        )
    start = 0 if apart else q * size

    def expected(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        k = _heads(y, kv, size, start)
        v = k if name == "tied" else _heads(y, kv, size, start + kv * size)
        return _heads(x, q), k.mT if transposed else k, v

    _three(t, out, each(expected, xs, ys))


def _blocks(t: Env, value: Tensor, cores: int) -> Any:
    """A row of cores for every entry of dim 0, ``cores`` wide."""
    ttnn = t.ttnn
    last = ttnn.CoreCoord(cores - 1, value.shape[0] - 1)
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), last)})
    spec = ttnn.ShardSpec(grid, (value.shape[-2], value.shape[-1] // cores), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.BLOCK_SHARDED, ttnn.BufferType.L1, spec)
    return ttnn.to_memory_config(t.put(value), config)


def _on_users(t: Env, users: int, height: int, width: int) -> Any:
    """A shard for each user."""
    ttnn, (columns, _) = t.ttnn, t.mesh.grid
    grid = ttnn.num_cores_to_corerangeset(users, ttnn.CoreCoord(columns, t.mesh.grid[1]), row_wise=True)
    spec = ttnn.ShardSpec(grid, (height, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)


@drawn(
    6, heads=st.sampled_from([(4, 2), (8, 2), (4, 4)]), transposed=SOME, how=st.sampled_from(["one", "two", "sharded"])
)
def grouped_columns(t: Env, heads: tuple, transposed: bool, how: str) -> None:
    """Group after group: a core holds the heads of Q that share its head of K and V."""
    ttnn, (q, kv), size, rows = t.ttnn, heads, 32, 64
    shared = q // kv
    groups = [[t.rand(2, 1, rows, n * size) for n in (shared, 1, 1)] for _ in range(kv)]
    height = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1)
    if how == "two":
        x = torch.cat([group[0] for group in groups], -1)
        y = torch.cat([part for group in groups for part in group[1:]], -1)
        out = ttnn.experimental.create_qkv_heads_from_separate_tensors(
            _blocks(t, x, kv), _blocks(t, y, kv), num_heads=q,
            num_kv_heads=kv, transpose_k_heads=transposed, memory_config=height,
        )  # fmt: skip
    else:
        x = torch.cat([part for group in groups for part in group], -1)
        held = _blocks(t, x if how == "one" else x[:, 0], kv)
        if how == "one":
            out = ttnn.experimental.create_qkv_heads(
                held, num_heads=q, num_kv_heads=kv, transpose_k_heads=transposed, memory_config=height
            )
        else:
            out = ttnn.transformer.split_query_key_value_and_split_heads(
                held, num_heads=q, num_kv_heads=kv, transpose_key=transposed, memory_config=height
            )
    wanted_q = torch.stack([_head(group[0][:, 0], i) for group in groups for i in range(shared)], 1)
    k, v = (torch.stack([group[i][:, 0] for group in groups], 1) for i in (1, 2))
    for output, wanted in zip(out, (wanted_q, k.mT if transposed else k, v), strict=True):
        t.check(output, wanted)


def fixed_models(t: Env) -> None:
    """Splits whose head counts are those of one model."""
    experimental, rows = t.ttnn.experimental, 64
    x, xs = spread(t, 1, 1, rows, 2304)
    _three(t, experimental.nlp_create_qkv_heads_vit(x),
           each(lambda x: tuple(_heads(x, 12, 64, 768 * i) for i in range(3)), xs))  # fmt: skip
    x, xs = spread(t, 1, 1, rows, 4672)
    _three(t, experimental.nlp_create_qkv_heads_falcon7b(x),
           each(lambda x: (_heads(x, 71, 64), _heads(x, 1, 64, 71 * 64), _heads(x, 1, 64, 72 * 64)), xs))  # fmt: skip
    x, xs = spread(t, 1, 1, rows, 128)
    t.check(experimental.nlp_create_qkv_heads_segformer(x)[0], each(lambda x: _heads(x, 4), xs))
    front, rear = experimental.nlp_create_q_heads_split(t.put(whole := t.rand(1, 1, 64, 384)), num_heads=2,
                                                        split_head_dim=128)  # fmt: skip
    t.check(front, _heads(whole, 2, 192)[..., :128])
    t.check(rear, _heads(whole, 2, 192)[..., 128:])


@drawn(6, heads=st.sampled_from([2, 4]), shared=st.sampled_from([1, 2]), n=st.sampled_from([32, 64]), apart=SOME)
def pairs(t: Env, heads: int, shared: int, n: int, apart: bool) -> None:
    """Heads of pairs of tokens, split and joined again; heads of K and V are ``shared``, and may come apart."""
    from tt_impl.mock.storage.errors import RefusedOption

    experimental, counts = t.ttnn.experimental, (heads, heads // shared, heads // shared)
    split = experimental.nlp_create_qkv_heads_boltz
    x = t.rand(1, n, n, sum(counts) * 32)
    held = [t.put(part) for part in (x.split([heads * 32, x.shape[-1] - heads * 32], -1) if apart else (x,))]
    how = dict(num_heads=heads, transpose_k_heads=False) | ({} if shared == 1 else {"num_kv_heads": counts[1]})
    out = split(*held, **how)
    first = (0, heads, heads + counts[1])
    for output, start, count in zip(out, first, counts, strict=True):
        t.check(output, torch.stack([_head(x[0], i, first=start * 32) for i in range(count)]))
    raises(RefusedOption, lambda: split(*held, **how | {"transpose_k_heads": True}), "transpose_k_heads")
    two = [t.put(t.rand(2, *tuple(part.shape)[1:])) for part in held]
    raises(RefusedOption, lambda: split(*two, **how), "a batch")
    t.check(experimental.nlp_concat_heads_boltz(out[0]), x[..., : heads * 32])


def _angles(t: Env, *shape: int) -> tuple[Tensor, Tensor]:
    angle = torch.rand(*shape, generator=t.random) * 6
    return angle.cos().bfloat16().float(), angle.sin().bfloat16().float()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + half) as complex numbers times e^(i angle), where the halves of cos and sin are equal."""
    half = x.shape[-1] // 2
    number = torch.complex(x[..., :half], x[..., half:]) * torch.complex(cos, sin)[..., :half]
    return torch.cat([number.real, number.imag], -1)


@drawn(
    8,
    rows=st.sampled_from([32, 40, 64]),
    size=st.sampled_from([64, 128]),
    kind=st.sampled_from(["hf", "plain", "token"]),
)
def rotary_by_halves(t: Env, rows: int, size: int, kind: str) -> None:
    """A rotation of the plane of each pair; cached angles may be of more tokens, or all of one token."""
    x = t.rand(1, 4, rows, size)
    cos, sin = (torch.cat([c, c], -1) for c in _angles(t, 1, 1, 96, size // 2))
    held = [t.put(c) for c in (cos, sin)]
    experimental = t.ttnn.experimental
    if kind == "hf":
        out = experimental.rotary_embedding_hf(t.put(x), *held)
        used = slice(rows)
    else:
        out = experimental.rotary_embedding(t.put(x), *held, *([70] if kind == "token" else []))
        used = slice(70, 71) if kind == "token" else slice(rows)
    wanted = _turned(x, cos[:, :, used], sin[:, :, used])
    for value in t.shadow.values(out):
        torch.testing.assert_close(value[:, :, :rows], wanted, rtol=2**-6, atol=2**-6)


def rotary_halves_turned(t: Env) -> None:
    x, xs = spread(t, 1, 2, 32, 64)
    t.check(
        t.ttnn.experimental.rotate_half(x),
        each(lambda x: torch.roll(x, 32, -1) * torch.tensor([-1.0, 1.0]).repeat_interleave(32), xs),
    )


@drawn(6, users=st.sampled_from([1, 4, 8]), rows=st.sampled_from([1, 32]), fused=SOME)
def rotary_of_users(t: Env, users: int, rows: int, fused: bool) -> None:
    """One token of every user by its own angle: by halves, or neighbours of Q and K in one operation.

    Of ``rows`` of angles that a user has, the first is used.
    """
    ttnn, size, heads = t.ttnn, 64, 8
    config = _on_users(t, users, 32, size)
    if not fused:
        cos, sin = (torch.cat([c, c], -1) for c in _angles(t, 1, users, rows, size // 2))
        x = t.rand(1, users, heads, size)
        held = [ttnn.to_memory_config(t.put(v), config) for v in (x, cos, sin)]
        out = ttnn.experimental.rotary_embedding_hf(*held, is_decode_mode=True)
        for value in t.shadow.values(out):
            torch.testing.assert_close(value, _turned(x, cos[:, :, :1], sin[:, :, :1]), rtol=2**-6, atol=2**-6)
        return
    half = _angles(t, 1, 2 * users, 1, size // 2)
    cos, sin = (c.repeat_interleave(2, -1).expand(-1, -1, 32, -1).contiguous() for c in half)
    swap = torch.zeros(1, 1, 32, 32)
    swap[..., range(0, 32, 2), range(1, 32, 2)], swap[..., range(1, 32, 2), range(0, 32, 2)] = 1, -1
    grid = t.mesh.grid[0]
    q, k = t.rand(1, users, heads, size), t.rand(1, users, heads, size)

    def at(first: int, count: int, width: int) -> Any:
        cores = ttnn.num_cores_to_corerangeset_in_subcoregrids(
            ttnn.CoreCoord(first % grid, first // grid), count,
            ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid - 1, t.mesh.grid[1] - 1))]),
            row_wise=True,
        )  # fmt: skip
        spec = ttnn.ShardSpec(cores, (32, width), ttnn.ShardOrientation.ROW_MAJOR)
        return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)

    held = [ttnn.to_memory_config(t.put(v), c) for v, c in (
        (q, at(0, users, size)), (k, at(users, users, size)), (cos, at(0, 2 * users, size)),
        (sin, at(0, 2 * users, size)), (swap.repeat(1, 1, 2 * users, 1), at(0, 2 * users, 32)),
    )]  # fmt: skip
    outputs = ttnn.experimental.rotary_embedding_llama_fused_qk(*held)
    for output, x, part in zip(outputs, (q, k), (slice(users), slice(users, None)), strict=True):
        number = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        wanted = torch.view_as_real(number * torch.complex(*half)[:, part]).flatten(-2)
        for value in t.shadow.values(output):
            torch.testing.assert_close(value, wanted, rtol=2**-6, atol=2**-6)


def _columns(t: Env, value: Tensor, cores: int, rows: int, layout: str = "TILE") -> Any:
    ttnn = t.ttnn
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(cores - 1, 0))})
    spec = ttnn.ShardSpec(grid, (rows, value.shape[-1] // cores), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)
    return ttnn.to_memory_config(t.put(value, layout=layout), config)


def state_spaces(t: Env) -> None:
    """The recurrence written out as a sum of products, the sum over states, and the product of both expansions."""
    ttnn, tokens, width = t.ttnn, 32, 64
    a, bx, h = t.rand(1, 1, tokens, width) * 0.5, t.rand(1, 1, tokens, width), t.rand(1, 1, 1, width)
    state = _columns(t, h, 2, 1, "ROW_MAJOR")
    held = [_columns(t, x, 2, tokens) for x in (a, bx)]
    out = ttnn.experimental.prefix_scan(*held, state, memory_config=held[0].memory_config(), dtype=ttnn.bfloat16)
    wanted = torch.zeros(tokens, width)
    for i in range(tokens):
        wanted[i] = h[0, 0, 0] * a[0, 0, : i + 1].prod(0)
        wanted[i] += sum(bx[0, 0, j] * a[0, 0, j + 1 : i + 1].prod(0) for j in range(i + 1))
    t.check(out, wanted[None, None], ulps=4)
    t.check(state, wanted[None, None, -1:], ulps=4)
    x, xs = spread(t, 1, 1, 32, 64 * 32)
    t.check(ttnn.experimental.hc_sum_reduce(x), each(lambda x: x @ torch.eye(64).repeat_interleave(32, 0), xs), ulps=2)
    a, b = t.rand(1, 1, 32, 32), t.rand(1, 1, 32, 5120)
    out = ttnn.experimental.repeat_and_interleave_eltwise_mul(t.put(a), t.put(b))
    t.check(out, torch.einsum("xyls,xylc->xylcs", a, b).flatten(-2))


CASES = collect(globals())
