"""Caches, whole and in pages, and decoding from them, against torch on each user's own tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises

USERS, KV_HEADS, TOKENS, SIZE, BLOCK = 4, 2, 128, 64, 32
PAGES = torch.tensor([[7, 2, 9, 4], [1, 15, 0, 12], [3, 5, 13, 6], [11, 8, 14, 10]])
"""Blocks of 32 tokens, four a user, out of order."""
TABLE = F.pad(PAGES, (0, 4), value=-1)
"""With room for four more: ttnn wants rows of 32 bytes."""


def _paged(cache: Tensor) -> Tensor:
    """[B, Hkv, S, E] -> the pile of blocks [16, Hkv, 32, E]."""
    pile = torch.empty(PAGES.numel(), KV_HEADS, BLOCK, SIZE)
    for user in range(USERS):
        for number, block in enumerate(PAGES[user].tolist()):
            pile[block] = cache[user, :, number * BLOCK : (number + 1) * BLOCK]
    return pile


def _updated(cache: Tensor, token: Tensor, places: list[int]) -> Tensor:
    wanted = cache.clone()
    for user, place in enumerate(places):
        if place >= 0:
            wanted[user, :, place] = token[0, user]
    return wanted


def update(t: Env) -> None:
    """Every user at a place of its own; -1 leaves a user out."""
    write = t.ttnn.experimental.paged_update_cache
    cache, token = t.rand(USERS, KV_HEADS, TOKENS, SIZE), t.rand(1, USERS, KV_HEADS, SIZE)
    places = [5, 127, -1, 64]
    wanted = _updated(cache, token, places)
    whole = t.put(cache)
    write(whole, t.token(token), update_idxs_tensor=t.integers(torch.tensor(places)))
    t.check(whole, wanted)
    pile = t.put(_paged(cache))
    tables = dict(update_idxs_tensor=t.integers(torch.tensor(places)), page_table=t.integers(TABLE))
    write(pile, t.token(token), **tables)
    t.check(pile, _paged(wanted))
    assert not torch.equal(t.shadow.values(pile)[0], _paged(cache))
    listed = t.put(cache)
    write(listed, t.token(token), update_idxs=[1, 2, 3, 4])
    t.check(listed, _updated(cache, token, [1, 2, 3, 4]))


def fused_update(t: Env) -> None:
    k, v = t.rand(USERS, KV_HEADS, TOKENS, SIZE), t.rand(USERS, KV_HEADS, TOKENS, SIZE)
    new_k, new_v = t.rand(1, USERS, KV_HEADS, SIZE), t.rand(1, USERS, KV_HEADS, SIZE)
    places = [0, 31, 32, 100]
    on_mesh = t.put(_paged(k)), t.put(_paged(v))
    t.ttnn.experimental.paged_fused_update_cache(
        on_mesh[0], t.token(new_k), on_mesh[1], t.token(new_v, USERS),
        update_idxs_tensor=t.integers(torch.tensor(places)), page_table=t.integers(TABLE),
    )  # fmt: skip
    t.check(on_mesh[0], _paged(_updated(k, new_k, places)))
    t.check(on_mesh[1], _paged(_updated(v, new_v, places)))


def fill(t: Env) -> None:
    """96 of a user's 128 tokens into its pages, or into its row of a whole cache; the others stay."""
    cache, tokens = t.rand(USERS, KV_HEADS, TOKENS, SIZE), t.rand(1, KV_HEADS, 96, SIZE)
    wanted = cache.clone()
    wanted[2, :, :96] = tokens[0]
    pile = t.put(_paged(cache))
    t.ttnn.experimental.paged_fill_cache(pile, t.put(tokens), t.integers(TABLE), batch_idx=2)
    t.check(pile, _paged(wanted))
    pile = t.put(_paged(cache))
    user = t.integers(torch.tensor([2]))
    t.ttnn.experimental.paged_fill_cache(pile, t.put(tokens), t.integers(TABLE), batch_idx_tensor=user)
    t.check(pile, _paged(wanted))
    for write in (t.ttnn.fill_cache, t.ttnn.kv_cache.fill_cache_for_user_):
        whole = t.put(cache)
        write(whole, t.put(tokens), 2)
        t.check(whole, wanted)
    later = cache.clone()
    later[1, :, 32:] = tokens[0]
    whole = t.put(cache)
    t.ttnn.fill_cache(whole, t.put(tokens), 1, update_idx=32)
    t.check(whole, later)


def same_token(t: Env) -> None:
    cache, tokens = t.rand(USERS, KV_HEADS, TOKENS, SIZE), t.rand(1, KV_HEADS, 32, SIZE)
    wanted = cache.clone()
    wanted[:, :, 70] = tokens[0, :, :USERS].transpose(0, 1)
    whole = t.put(cache)
    t.ttnn.update_cache(whole, t.put(tokens), 70)
    t.check(whole, wanted)
    whole = t.put(cache)
    t.ttnn.kv_cache.update_cache_for_token_(whole, t.put(tokens), 70, 0)
    t.check(whole, wanted)


def _decoded(q: Tensor, k: Tensor, v: Tensor, last: list[int], scale: float | None = None) -> Tensor:
    wanted = torch.full_like(q, float("nan"))
    for user, position in enumerate(last):
        if position >= 0:
            keys, values = k[user : user + 1, :, : position + 1], v[user : user + 1, :, : position + 1]
            out = F.scaled_dot_product_attention(q[:, user].unsqueeze(2), keys, values, enable_gqa=True, scale=scale)
            wanted[:, user] = out.squeeze(2)
    return wanted


def decode(t: Env) -> None:
    """Eight heads of q share two of k and v."""
    attend = t.ttnn.transformer.scaled_dot_product_attention_decode
    q = t.rand(1, USERS, 8, SIZE)
    k, v = (t.rand(USERS, KV_HEADS, TOKENS, SIZE) for _ in range(2))
    on_mesh = t.put(q), t.put(k), t.put(v)
    t.check(attend(*on_mesh, cur_pos=[5, 127, 0, 64]), _decoded(q, k, v, [5, 127, 0, 64]))
    last = [5, 127, -1, 64]
    out = attend(*on_mesh, cur_pos_tensor=t.integers(torch.tensor(last)), scale=0.3)
    t.check(out, _decoded(q, k, v, last, 0.3))
    t.check(attend(*on_mesh, is_causal=False), _decoded(q, k, v, [TOKENS - 1] * USERS))
    mask = t.rand(1, USERS, 8, TOKENS)
    scaled = mask[0].unsqueeze(2) / SIZE**0.5  # like the scores
    wanted = F.scaled_dot_product_attention(q[0].unsqueeze(2), k, v, scaled, enable_gqa=True)
    t.check(attend(*on_mesh, is_causal=False, attn_mask=t.put(mask)), wanted.squeeze(2).unsqueeze(0))
    by_user = t.put(mask.transpose(0, 1))
    t.check(attend(*on_mesh, is_causal=False, attn_mask=by_user), wanted.squeeze(2).unsqueeze(0))


def decode_from_pages(t: Env) -> None:
    q = t.rand(1, USERS, 8, SIZE)
    k, v = (t.rand(USERS, KV_HEADS, TOKENS, SIZE) for _ in range(2))
    last = [5, 127, 33, 64]
    out = t.ttnn.transformer.paged_scaled_dot_product_attention_decode(
        t.put(q), t.put(_paged(k)), t.put(_paged(v)), t.integers(TABLE),
        cur_pos_tensor=t.integers(torch.tensor(last)),
    )  # fmt: skip
    t.check(out, _decoded(q, k, v, last))


def prefill_in_chunks(t: Env) -> None:
    """Tokens 64 to 127 of a prompt to all 128, causal."""
    ttnn = t.ttnn
    q = t.rand(USERS, 8, TOKENS, SIZE)
    k, v = (t.rand(USERS, KV_HEADS, TOKENS, SIZE) for _ in range(2))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    config = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=64, k_chunk_size=64)
    attend = ttnn.transformer.chunked_scaled_dot_product_attention
    piles = t.put(_paged(k)), t.put(_paged(v)), t.integers(TABLE)
    for start in (0, 64):
        chunk = t.put(q[:, :, start : start + 64].contiguous())
        t.check(attend(chunk, *piles, start, program_config=config), wanted[:, :, start : start + 64])
    where = t.integers(torch.tensor([64]))
    t.check(attend(chunk, *piles, chunk_start_idx_tensor=where, program_config=config), wanted[:, :, 64:])


def heads_of_a_token(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 32, 12 * SIZE)
    parts = x.reshape(1, 32, 12, SIZE).split([8, 2, 2], 2)
    cores = ttnn.create_sharded_memory_config(
        (1, 1, 32, 12 * SIZE), core_grid=ttnn.CoreGrid(x=6, y=1), strategy=ttnn.ShardStrategy.WIDTH
    )
    heads = ttnn.experimental.nlp_create_qkv_heads_decode(
        ttnn.to_memory_config(t.put(x), cores), num_heads=8, num_kv_heads=2
    )
    for out, wanted in zip(heads, parts, strict=True):
        t.check(out, wanted)
    joined = ttnn.experimental.nlp_concat_heads_decode(heads[0], num_heads=8)
    t.check(joined, parts[0].reshape(1, 1, 32, 8 * SIZE))


def unknown_arguments(t: Env) -> None:
    from tt_impl.mock.storage.errors import RefusedOption

    cache, tokens = t.put(t.rand(PAGES.numel(), KV_HEADS, BLOCK, SIZE)), t.put(t.rand(1, KV_HEADS, BLOCK, SIZE))
    real = t.integers(torch.tensor([32]))
    fill = t.ttnn.experimental.paged_fill_cache
    how = dict(cache_position_modulo=BLOCK, valid_seq_len_tensor=real)
    raises(Exception, lambda: fill(cache, tokens, t.integers(TABLE), **how), "valid_seq_len_tensor")
    attend, q, one = t.ttnn.transformer.scaled_dot_product_attention_decode, t.rand(1, 2, 8, 32), t.rand(1, 2, 64, 32)
    on_mesh = [t.put(x) for x in (q, one, one)]
    raises(RefusedOption, lambda: attend(*on_mesh, cur_pos=[3, 4], share_cache=True), "share_cache")
    on_mesh[1:] = [t.put(one.repeat(2, 1, 1, 1))] * 2
    raises(RefusedOption, lambda: attend(*on_mesh, is_causal=False, sliding_window_size=8), "window without is_causal")


CASES = collect(globals())
