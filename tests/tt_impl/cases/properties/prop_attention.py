"""Properties of attention and of paged caches: softmaxes written out row by row, pages looked up token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, only, spread

SHARES = st.sampled_from([(4, 4), (4, 2), (4, 1)])
SOME = st.booleans()
SIZE = 64


def _attended(
    q: Tensor, k: Tensor, v: Tensor, sees: Callable[[int, int], bool], *, scale: float | None = None,
    mask: Tensor | None = None, sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[B, H, N, E] by the definition, in float64: row n weighs the columns m that it sees; a sink weighs nothing."""
    batch, heads, rows, size = q.shape
    visible = _visible(sees, rows, k.shape[2])
    out = torch.zeros(batch, heads, rows, v.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            shared = h * k.shape[1] // heads
            scores = q[b, h].double() @ k[b, shared].double().T * (scale or size**-0.5)
            if mask is not None:
                scores += mask[min(b, mask.shape[0] - 1), min(h, mask.shape[1] - 1)].double()
            weights = torch.exp(scores - 8) * visible
            total = weights.sum(-1, keepdim=True)
            if sink is not None:
                total += math.exp(float(sink[h]) * (scale or size**-0.5) - 8)
            out[b, h] = weights / total @ v[b, shared].double()
    return out.float()


@lru_cache(maxsize=1)
def _visible(sees: Callable[[int, int], bool], rows: int, columns: int) -> Tensor:
    return torch.tensor([[sees(n, m) for m in range(columns)] for n in range(rows)])


@drawn(8, heads=SHARES, batch=st.sampled_from([1, 2]), causal=SOME, window=st.sampled_from([None, 16, 33]), sink=SOME,
       scale=st.sampled_from([None, 0.3]), joined=SOME)  # fmt: skip
def prefill(
    t: Env, heads: tuple, batch: int, causal: bool, window: int | None, sink: bool, scale: float | None, joined: bool
) -> None:
    """Causal or not, within windows, with a sink; fewer heads of K and V; other tokens on every device."""
    n, (h, kv) = 64, heads
    (q, qs), (k, ks), (v, vs) = (spread(t, batch, x, n, SIZE) for x in (h, kv, kv))
    s, ss = spread(t, 1, h, 1, 1, scale=4.0) if sink else (None, qs)
    out = t.ttnn.transformer.scaled_dot_product_attention(
        q, k, v, is_causal=causal, sliding_window_size=window, attention_sink=s, scale=scale,
        output_concat_heads=joined, program_config=t.sdpa_config(),
    )  # fmt: skip

    def sees(row: int, column: int) -> bool:
        if causal:
            return column <= row and (window is None or column > row - window)
        return window is None or abs(row - column) <= window // 2

    def expected(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        whole = _attended(q, k, v, sees, scale=scale, sink=s.flatten() if sink else None)
        return torch.cat(list(whole.unbind(1)), -1).unsqueeze(1) if joined else whole

    t.check(out, each(expected, qs, ks, vs, ss), ulps=2)


@drawn(6, heads=SHARES, entries=st.sampled_from([1, 2]), every_head=SOME, scale=st.sampled_from([None, 0.3]))
def masks(t: Env, heads: tuple, entries: int, every_head: bool, scale: float | None) -> None:
    """A finite mask, not scaled, of one or all batch entries, one or all heads; K and V of other length than Q."""
    (q, qs), (k, ks), (v, vs) = (spread(t, 2, x, n, SIZE) for x, n in ((heads[0], 32), (heads[1], 96), (heads[1], 96)))
    m, ms = spread(t, entries, 4 if every_head else 1, 32, 96, scale=2.0)
    out = t.ttnn.transformer.scaled_dot_product_attention(
        q, k, v, attn_mask=m, is_causal=False, scale=scale, program_config=t.sdpa_config()
    )

    def sees(row: int, column: int) -> bool:
        return True

    t.check(out, each(lambda q, k, v, m: _attended(q, k, v, sees, scale=scale, mask=m), qs, ks, vs, ms), ulps=2)


def blocks_of_rows(t: Env) -> None:
    """Windows of many tokens are taken some rows at a time; the cuts are not seen in the result.

    The last rows come so long after the last column that they see none.
    """
    from tt_impl.mock.rules import attention

    q, k, v = (t.rand(1, 2, rows, SIZE) for rows in (140, 96, 96))
    wanted = _attended(q, k, v, lambda n, m: n - 20 < m <= n)
    before, attention.BLOCK = attention.BLOCK, 96 * 7
    try:
        out = attention.attend(q, k, v, hidden=attention.outside(20, causal=True))
    finally:
        attention.BLOCK = before
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@drawn(6, form=st.sampled_from(["columns", "values"]), kind=st.sampled_from(["causal", "whole", "mask"]),
       wide=st.sampled_from([64, 96]))  # fmt: skip
def latent(t: Env, form: str, kind: str, wide: int) -> None:
    """V is a part of K's columns, or a tensor whose size is another one; a mask is scaled like the scores."""
    (q, qs), (k, ks), (v, vs) = (spread(t, 1, x, 64, size) for x, size in ((4, 128), (1, 128), (1, wide)))
    given = dict(head_dim_v=wide) if form == "columns" else dict(input_tensor_v=v)
    m, ms = spread(t, 1, 1, 64, 64, scale=8.0) if kind == "mask" else (None, qs)
    out = t.ttnn.transformer.flash_mla_prefill(
        q, k, is_causal=kind == "causal", attn_mask=m, program_config=t.sdpa_config(), **given
    )
    values = [x[..., :wide] for x in ks] if form == "columns" else vs

    def sees(row: int, column: int) -> bool:
        return column <= row or kind != "causal"

    def expected(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return _attended(q, k, v, sees, mask=None if kind != "mask" else m * 128**-0.5)

    t.check(out, each(expected, qs, ks, values, ms), ulps=2)


def _pages(t: Env, users: int, per_user: int) -> Tensor:
    return torch.randperm(users * per_user, generator=t.random).reshape(users, per_user)


def _unpaged(cache: Tensor, table: Tensor, block: int) -> Tensor:
    """[B, Hkv, S, E] by looking up every token."""
    rows = [
        torch.stack([cache[table[user, n // block], :, n % block] for n in range(table.shape[1] * block)], 1)
        for user in range(table.shape[0])
    ]
    return torch.stack(rows)


@drawn(8, heads=SHARES, paged=SOME, window=st.sampled_from([None, 32, 40]), sink=SOME, latent=SOME,
       at=st.lists(st.integers(-1, 127), min_size=2, max_size=2))  # fmt: skip
def decode(t: Env, heads: tuple, paged: bool, window: int | None, sink: bool, latent: bool, at: list) -> None:
    """One token of each of two users, each at a place of its own or skipped, from whole caches or pages."""
    ttnn, users, block, (h, kv) = t.ttnn, 2, 32, heads
    only(not latent or (kv, sink, window) == (1, False, None))
    table = _pages(t, users, 4)
    shape = (users * 4, kv, block, SIZE) if paged else (users, kv, 128, SIZE)
    (q, qs), (k, ks), (v, vs) = spread(t, 1, users, h, SIZE), spread(t, *shape), spread(t, *shape)
    held = torch.nn.functional.pad(sinks := t.rand(h, 1, scale=4.0), (0, 31))
    how: dict[str, Any] = dict(cur_pos_tensor=t.integers(torch.tensor(at)), program_config=t.sdpa_config())
    if paged:
        how["page_table_tensor"] = t.integers(table)
    transformer, prefix = ttnn.transformer, "paged_" if paged else ""
    if latent:
        out = getattr(transformer, f"{prefix}flash_multi_latent_attention_decode")(q, k, head_dim_v=32, **how)
        vs = [x[..., :32] for x in ks]
    else:
        how |= dict(sliding_window_size=window, attention_sink=t.put(held) if sink else None)
        out = getattr(transformer, f"{prefix}scaled_dot_product_attention_decode")(q, k, v, **how)

    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if paged:
            k, v = _unpaged(k, table, block), _unpaged(v, table, block)
        result = torch.full((1, users, h, v.shape[-1]), float("nan"))
        for user, last in enumerate(at):
            if last < 0:
                continue
            one = _attended(
                q[:, user, :, None], k[user : user + 1], v[user : user + 1],
                lambda _, m, last=last: m <= last and (window is None or m > last - window),
                sink=sinks.flatten() if sink else None,
            )  # fmt: skip
            result[:, user] = one[:, :, 0]
        return result

    t.check(out, each(expected, qs, ks, vs), ulps=2)


@drawn(6, start=st.sampled_from([0, 32, 96]), window=st.sampled_from([None, 48]), latent=SOME, told=SOME)
def chunks(t: Env, start: int, window: int | None, latent: bool, told: bool) -> None:
    """Some rows that begin anywhere, to all pages before and among themselves; the start a number or a tensor."""
    ttnn, users, block, n = t.ttnn, 2, 32, 32
    table = _pages(t, users, 8)
    only(not latent or (window, told) == (None, False))
    kv = 1 if latent else 2
    (q, qs), (k, ks), (v, vs) = (
        spread(t, *shape) for shape in ((users, 4, n, SIZE), (users * 8, kv, block, SIZE), (users * 8, kv, block, SIZE))
    )
    place: dict[str, Any] = dict(chunk_start_idx=start)
    if told:
        place = dict(chunk_start_idx_tensor=t.integers(torch.tensor([start])))
    if latent:
        out = ttnn.transformer.chunked_flash_mla_prefill(
            q, k, 32, t.integers(table), start, program_config=t.sdpa_config()
        )
        vs = [x[..., :32] for x in ks]
    else:
        out = ttnn.transformer.chunked_scaled_dot_product_attention(
            q, k, v, t.integers(table), **place, sliding_window_size=window, program_config=t.sdpa_config()
        )

    def sees(row: int, column: int) -> bool:
        return column <= row + start and (window is None or column > row + start - window)

    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attended(q, _unpaged(k, table, block), _unpaged(v, table, block), sees)

    t.check(out, each(expected, qs, ks, vs), ulps=2)


@drawn(3, paged=SOME, start=st.sampled_from([0, 64]), rank=st.sampled_from([0, 1, 3]))
def ring_of_rows(t: Env, paged: bool, start: int, rank: int) -> None:
    """Of eight stretches of rows a device has one from the front and one from the rear."""
    ttnn, ring, n, block = t.ttnn, 4, 256, 32
    only(paged or start == 0)
    total = start + n
    q, k, v = t.rand(1, 2, n, SIZE), t.rand(1, 2, total, SIZE), t.rand(1, 2, total, SIZE)
    how: dict[str, Any] = dict(program_config=t.sdpa_config())
    held = [k, v]
    if paged:
        table = _pages(t, 1, total // block)
        order = table[0].argsort()
        held = [x[0].unflatten(1, (-1, block)).transpose(0, 1)[order] for x in (k, v)]
        how |= dict(page_table=t.integers(table), chunk_start_idx=start)
    out = ttnn.transformer.ring_distributed_scaled_dot_product_attention(
        t.put(q), *map(t.put, held), ring_size=ring, ring_id=rank, **how
    )
    whole = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, torch.arange(total) <= torch.arange(n)[:, None] + start
    )
    parts = whole.chunk(2 * ring, 2)
    t.check(out, torch.cat([parts[rank], parts[2 * ring - 1 - rank]], 2), ulps=2)


@drawn(4, balanced=SOME, real=st.sampled_from([256, 200]), joint=SOME)
def causal_ring(t: Env, balanced: bool, real: int, joint: bool) -> None:
    """A ring over axis 1; balanced, its devices hold a stretch from the front and one from the rear.

    A joint stream without a token is the same as none.
    """
    ttnn, ring, n = t.ttnn, t.shape[1], 256
    only(not balanced or real == n)
    q, k, v = (t.rand(1, 4, n, SIZE) for _ in range(3))
    chunks = [x for r in range(ring) for x in (r, 2 * ring - 1 - r)]
    order = torch.cat([torch.arange(n).chunk(2 * ring)[c] for c in chunks]) if balanced else torch.arange(n)
    buffers = [t.empty(1, 4, n, SIZE) for _ in range(2)]
    x, y = t.mesh.grid
    program = ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(x, y - 1), q_chunk_size=32, k_chunk_size=32, exp_approx_mode=False
    )
    out, *_ = ttnn.transformer.ring_joint_scaled_dot_product_attention(
        *(t.put(z[:, :, order], (None, 2)) for z in (q, k, v)),
        *([t.put(torch.zeros(1, 4, 0, SIZE)) for _ in range(3)] if joint else ()),
        persistent_output_buffer_k=buffers[0],
        persistent_output_buffer_v=buffers[1], joint_strategy="rear", logical_n=real, program_config=program, dim=2,
        multi_device_global_semaphore=t.semaphores(2), num_links=1, cluster_axis=1, mesh_device=t.device,
        topology=t.linear, subdevice_id=ttnn.SubDeviceId(0), ccl_core_grid_offset=ttnn.CoreCoord(0, y - 1),
        is_causal=True, is_balanced=balanced,
    )  # fmt: skip
    seen = (torch.arange(n) <= torch.arange(n)[:, None]) & (torch.arange(n) < real)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)[:, :, order]
    t.check(out, t.shards(wanted, (None, 2)), ulps=2)
    t.check(buffers[0], k[:, :, order])


def _tokens(t: Env, value: Tensor) -> Any:
    """[1, B, H, E] with a user on each core."""
    ttnn, users = t.ttnn, value.shape[1]
    grid = ttnn.num_cores_to_corerangeset(users, ttnn.CoreCoord(*t.mesh.grid), row_wise=True)
    spec = ttnn.ShardSpec(grid, (32, value.shape[-1]), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    return ttnn.to_memory_config(t.put(value), config)


@drawn(8, at=st.lists(st.integers(-1, 127), min_size=3, max_size=3),
       kind=st.sampled_from(["whole", "shared", "paged", "ring"]))  # fmt: skip
def updates(t: Env, at: list, kind: str) -> None:
    """A token of each user to its place: in its own cache, one for all, pages, a ring of pages."""
    ttnn, users, block, kv = t.ttnn, 3, 32, 1
    table = _pages(t, users, 4)
    # In one cache for all, no two users write to one place.
    places = [max(0, place) // 3 * 3 % 126 + user for user, place in enumerate(at)] if kind == "shared" else at
    if kind == "ring":  # the second user has been round once, the third twice
        places = [place if place < 0 else place % 64 + 64 * user for user, place in enumerate(at)]
    shape = {"whole": (users, kv, 128, SIZE), "shared": (1, kv, 128, SIZE)}.get(kind, (users * 4, kv, block, SIZE))
    cache, caches = spread(t, *shape)
    new = t.rand(1, users, kv, SIZE)
    how: dict[str, Any] = dict(update_idxs_tensor=t.integers(torch.tensor(places)))
    if kind in ("paged", "ring"):
        how["page_table"] = t.integers(table)
    if kind == "ring":
        how["cache_position_modulo"] = 64
    if kind == "shared":
        how["share_cache"] = True
    ttnn.experimental.paged_update_cache(cache, _tokens(t, new), **how)
    wanted = [x.clone() for x in caches]
    for x in wanted:
        for user, place in enumerate(places):
            if place >= 0:
                place = place % 64 if kind == "ring" else place
                entry = {"whole": user, "shared": 0}.get(kind, int(table[user, place // block]))
                x[entry, :, place if kind in ("whole", "shared") else place % block] = new[0, user]
    t.check(cache, wanted, ulps=0)


@drawn(6, tokens=st.sampled_from([32, 96, 160]), ring=SOME, user=st.sampled_from([0, 1]))
def fills(t: Env, tokens: int, ring: bool, user: int) -> None:
    """A prompt into pages, of which a ring keeps the last tokens."""
    ttnn, block, kv = t.ttnn, 32, 2
    table = _pages(t, 2, 5)
    cache, caches = spread(t, 10, kv, block, SIZE)
    new = t.rand(1, kv, tokens, SIZE)
    how: dict[str, Any] = dict(cache_position_modulo=64) if ring else {}
    ttnn.experimental.paged_fill_cache(cache, t.put(new), t.integers(table), batch_idx=user, **how)
    wanted = [x.clone() for x in caches]
    for x in wanted:
        for n in range(tokens):
            place = n % 64 if ring else n
            x[table[user, place // block], :, place % block] = new[0, :, n]
    t.check(cache, wanted, ulps=0)


def other_geometry(t: Env) -> None:
    """A cache of blocks of 64 tokens and heads of 64 read as 32 tokens and heads of 128: tile by tile."""
    ttnn = t.ttnn
    cache, table = t.rand(4, 1, 64, 64), _pages(t, 1, 4)
    held, tokens = t.put(cache), t.rand(1, 1, 64, 128)
    ttnn.experimental.paged_fill_cache(held, t.put(tokens), t.integers(table), batch_idx=0, block_size=32)
    wanted = cache.clone()
    for number, block in enumerate(table[0, :2].tolist()):
        tiles = [tokens[0, 0, number * 32 : number * 32 + 32, c : c + 32] for c in range(0, 128, 32)]
        wanted[block, 0] = torch.cat([torch.cat(tiles[:2], 1), torch.cat(tiles[2:], 1)], 0)
    t.check(held, wanted, ulps=0)


def rows_by_index(t: Env) -> None:
    """Packed rows to physical rows of two caches; a place that is none is skipped."""
    caches, rows = [t.rand(3, 2, 32, SIZE) for _ in range(2)], [t.rand(1, 2, 4, SIZE) for _ in range(2)]
    held = [t.put(x) for x in caches]
    places = [5, -1, 70, 33]
    indices = t.integers(torch.tensor([[*places, 7, 8]]))  # more than there are rows
    t.ttnn.experimental.indexed_fused_update_cache(held[0], t.put(rows[0]), held[1], t.put(rows[1]), indices)
    for cache, new, tensor in zip(caches, rows, held, strict=True):
        for row, place in enumerate(places):
            if place >= 0:
                cache[place // 32, :, place % 32] = new[0, :, row]
        t.check(tensor, cache, ulps=0)


def a_slice_of_a_cache(t: Env) -> None:
    x, xs = spread(t, 2, 2, 128, SIZE)
    out = t.ttnn.experimental.nlp_kv_cache_load_slice(x, seq_len_start=32, seq_len_end=96)
    t.check(out, [x[:, :, 32:96] for x in xs])


CASES = collect(globals())
