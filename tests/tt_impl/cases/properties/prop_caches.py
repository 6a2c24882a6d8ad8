"""Properties of whole caches, of heads joined again, and of the rotation and attention beside them."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.cases.properties.prop_attention import SIZE, _attended, _pages
from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, spread

SOME = st.booleans()


@drawn(8, users=st.sampled_from([1, 2, 4]), heads=st.sampled_from([1, 2]), place=st.integers(0, 63),
       offset=st.sampled_from([0, 4]), old=SOME)  # fmt: skip
def tokens_of_all_users(t: Env, users: int, heads: int, place: int, offset: int, old: bool) -> None:
    """The same place of every user; user i's token is row ``offset`` + i of its tile."""
    cache, caches = spread(t, users, heads, 64, SIZE)
    new, rows = spread(t, 1, heads, 32, SIZE)
    if old:
        t.ttnn.kv_cache.update_cache_for_token_(cache, new, place, offset)
    else:
        t.ttnn.update_cache(cache, new, place, batch_offset=offset)
    wanted = [x.clone() for x in caches]
    for x, row in zip(wanted, rows, strict=True):
        for user in range(users):
            for head in range(heads):
                x[user, head, place] = row[0, head, offset + user]
    t.check(cache, wanted, ulps=0)


@drawn(8, user=st.integers(0, 2), heads=st.sampled_from([1, 2]), tokens=st.sampled_from([32, 64]),
       first=st.sampled_from([0, 32]), old=SOME)  # fmt: skip
def prompts_of_users(t: Env, user: int, heads: int, tokens: int, first: int, old: bool) -> None:
    """One user's tokens, from a place on; everything else stays."""
    cache, caches = spread(t, 3, heads, 96, SIZE)
    new, rows = spread(t, 1, heads, tokens, SIZE)
    if old:
        t.ttnn.kv_cache.fill_cache_for_user_(cache, new, user, update_idx=first)
    else:
        t.ttnn.fill_cache(cache, new, user, update_idx=first)
    wanted = [x.clone() for x in caches]
    for x, row in zip(wanted, rows, strict=True):
        for token in range(tokens):
            x[user, :, first + token] = row[0, :, token]
    t.check(cache, wanted, ulps=0)


def _apart(t: Env, value: Tensor, first: int) -> Any:
    """[1, B, H, E] with a user on each core of a row, from core ``first`` on."""
    ttnn, users = t.ttnn, value.shape[1]
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(first, 0), ttnn.CoreCoord(first + users - 1, 0))})
    spec = ttnn.ShardSpec(cores, (32, value.shape[-1]), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    return ttnn.to_memory_config(t.put(value), config)


@drawn(6, at=st.lists(st.integers(-1, 127), min_size=3, max_size=3), paged=SOME, heads=st.sampled_from([1, 2]))
def both_caches(t: Env, at: list[int], paged: bool, heads: int) -> None:
    """K and V in one call; -1 skips a user."""
    users, block = 3, 32
    table = _pages(t, users, 4)
    shape = (users * 4, heads, block, SIZE) if paged else (users, heads, 128, SIZE)
    (k, ks), (v, vs) = spread(t, *shape), spread(t, *shape)
    new = t.rand(1, users, heads, SIZE), t.rand(1, users, heads, SIZE)
    how: dict[str, Any] = dict(update_idxs_tensor=t.integers(torch.tensor(at)))
    how |= dict(page_table=t.integers(table)) if paged else {}
    t.ttnn.experimental.paged_fused_update_cache(k, _apart(t, new[0], 0), v, _apart(t, new[1], users), **how)
    for held, before, rows in ((k, ks, new[0]), (v, vs, new[1])):
        wanted = [x.clone() for x in before]
        for x in wanted:
            for user, place in enumerate(at):
                if place >= 0:
                    entry = (int(table[user, place // block]), place % block) if paged else (user, place)
                    x[entry[0], :, entry[1]] = rows[0, user]
        t.check(held, wanted, ulps=0)


@drawn(6, heads=st.sampled_from([1, 2, 6]), batch=st.sampled_from([1, 2]), rows=st.sampled_from([32, 40]),
       size=st.sampled_from([32, 64]))  # fmt: skip
def heads_joined(t: Env, heads: int, batch: int, rows: int, size: int) -> None:
    """Head after head in the columns."""
    x, xs = spread(t, batch, heads, rows, size)
    wanted = [torch.cat(list(part.unbind(1)), -1) for part in xs]
    t.check(t.ttnn.transformer.concatenate_heads(x), wanted, ulps=0)
    t.check(t.ttnn.experimental.nlp_concat_heads(x), [w.unsqueeze(1) for w in wanted], ulps=0)


@drawn(6, users=st.sampled_from([8, 32]), heads=st.sampled_from([(8, 2), (4, 1), (16, 8)]), overlap=SOME)
def heads_of_tokens(t: Env, users: int, heads: tuple, overlap: bool) -> None:
    """One token of every user: Q, K and V apart, and Q's heads joined again."""
    ttnn, (q, kv), size = t.ttnn, heads, SIZE
    x, xs = spread(t, 1, 1, users, (q + 2 * kv) * size)
    width = ttnn.create_sharded_memory_config(
        (1, 1, 32, (q + 2 * kv) * size), core_grid=ttnn.CoreGrid(x=(q + 2 * kv) // 2, y=1) if q < 16 else
        ttnn.CoreGrid(x=8, y=2), strategy=ttnn.ShardStrategy.WIDTH,
    )  # fmt: skip
    held = ttnn.to_memory_config(x, width) if overlap else x
    out = ttnn.experimental.nlp_create_qkv_heads_decode(
        held, num_heads=q, num_kv_heads=kv, overlap_qk_coregrid=True,
        memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1),
    )  # fmt: skip
    first = 0
    for part, count in zip(out, (q, kv, kv), strict=True):
        columns = [v[..., first * size : (first + count) * size] for v in xs]
        t.check(part, [torch.stack(c[0, 0].split(size, -1), 1)[None] for c in columns], ulps=0)
        first += count
    joined = ttnn.experimental.nlp_concat_heads_decode(out[0], num_heads=q)
    for value, part in zip(t.shadow.values(joined), xs, strict=True):
        assert torch.equal(value[:, :, :users], part[..., : q * size])
        assert value.shape[2] == 32 and value[:, :, users:].isnan().all()  # ttnn makes a whole tile of rows


@drawn(6, heads=st.sampled_from([1, 4]), rows=st.sampled_from([32, 64]), size=st.sampled_from([32, 64, 128]),
       longer=SOME)  # fmt: skip
def turned_neighbours(t: Env, heads: int, rows: int, size: int, longer: bool) -> None:
    """Neighbouring columns as complex numbers; the table of angles may go on behind the rows."""
    angle = torch.rand(1, 1, rows + 32 * longer, size // 2, generator=t.random) * 6
    cos, sin = angle.cos().bfloat16().float(), angle.sin().bfloat16().float()
    turn = torch.zeros(1, 1, 32, 32)
    turn[..., range(0, 32, 2), range(1, 32, 2)], turn[..., range(1, 32, 2), range(0, 32, 2)] = 1, -1
    x, xs = spread(t, 1, heads, rows, size)
    tables = [t.put(c.repeat_interleave(2, -1)) for c in (cos, sin)]
    out = t.ttnn.experimental.rotary_embedding_llama(x, *tables, t.put(turn))

    def turned(x: Tensor) -> Tensor:
        number = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.complex(cos, sin)[:, :, :rows]
        return torch.view_as_real(number).flatten(-2)

    t.check(out, [turned(part) for part in xs], ulps=2)


@drawn(6, tokens=st.sampled_from([(64, 32), (32, 40), (96, 64)]), heads=st.sampled_from([1, 3]),
       batch=st.sampled_from([1, 2]), scale=st.sampled_from([None, 0.25]))  # fmt: skip
def two_streams(t: Env, tokens: tuple, heads: int, batch: int, scale: float | None) -> None:
    """Both streams' rows see both streams' columns."""
    n, text = tokens
    spatial, prompt = ([spread(t, batch, heads, rows, SIZE) for _ in range(3)] for rows in (n, text))
    how = {} if scale is None else dict(scale=scale)
    outputs = t.ttnn.transformer.joint_scaled_dot_product_attention(
        *(x for x, _ in (*spatial, *prompt)), joint_strategy="rear", program_config=t.sdpa_config(), **how
    )

    def sees(row: int, column: int) -> bool:
        return True

    def joint(*parts: Tensor) -> Tensor:
        q, k, v = (torch.cat(pair, 2) for pair in zip(parts[:3], parts[3:], strict=True))
        return _attended(q, k, v, sees, scale=scale)

    whole = each(joint, *(xs for _, xs in (*spatial, *prompt)))
    t.check(outputs[0], [x[:, :, :n] for x in whole], ulps=2)
    t.check(outputs[1], [x[:, :, n:] for x in whole], ulps=2)


CASES = collect(globals())
