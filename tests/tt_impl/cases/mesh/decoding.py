"""Parts of decoding on four devices in a row: the cut vocabulary, shared key-value heads, the cache, rotation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import InvariantError, UserError
from refsim.base.options import RunOptions
from tests.tt_impl.env import Env, collect, raises

TP, WORDS = 4, 40


class _Weights:
    """Random ones of whatever is asked for."""

    def __init__(self, t: Env) -> None:
        self._t, self.known = t, {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.known.setdefault(name, self._t.rand(*shape, scale=shape[-1] ** -0.5))


def _context(t: Env) -> Any:
    from tt_impl.parallel.context import Context

    return Context(t.device, RunOptions.of(mesh=t.mesh.spec, parallel="tp4", backend="ttnn-mock", dtype="fp32"))


def _argmax(t: Env, logits: Tensor) -> Tensor:
    """Of (rows, words): zeros in the padding lanes, as a head padded with zeros leaves them."""
    from tt_impl.parallel.vocab import VocabArgmax

    ctx = _context(t)
    padded = F.pad(logits, (0, TP * 32 - WORDS))[None, None]
    return ctx.get_equal(VocabArgmax(ctx, WORDS)(ctx.put(padded, tp_dim=3)))[0, 0, :, 0]


def best_word(t: Env) -> None:
    """On the first shard and on the second, where eight words are real."""
    logits = t.rand(7, WORDS)
    logits[2, 36] = 9.0
    assert _argmax(t, logits).tolist() == logits.argmax(-1).tolist()


def padding_never_wins(t: Env) -> None:
    logits = t.rand(5, WORDS) - 20.0
    assert _argmax(t, logits).tolist() == logits.argmax(-1).tolist()


def smallest_of_equal_words(t: Env) -> None:
    logits = t.rand(3, WORDS)
    logits[:, [31, 32, 39]] = 7.0
    assert _argmax(t, logits).tolist() == [31.0] * 3


def devices_that_differ_are_noticed(t: Env) -> None:
    ctx = _context(t)
    try:
        ctx.get_equal(t.put(t.rand(1, 1, 32, 128), (None, 3)))
    except InvariantError:
        return
    raise AssertionError("four different shards passed for one tensor")


def shared_heads(t: Env) -> None:
    """Eight or four query heads on two key-value heads: devices 0 and 1 hold the first, 2 and 3 the second."""
    for heads in (8, 4):
        _shared_heads(t, heads)


def _shared_heads(t: Env, heads: int) -> None:
    from tt_impl.layers.grouped_attention import GroupedQKV, causal_mask, grouped_attention
    from tt_impl.layers.kv_cache import KVCache

    ctx, weights = _context(t), _Weights(t)
    sizes = {"features": 64, "heads": heads, "kv_heads": 2, "head_dim": 32}
    qkv = GroupedQKV(weights, ctx, "a", **sizes, tp=TP)
    x = t.rand(1, 1, 11, 64)
    q, k, v = (
        F.linear(x[0, 0], weights.known[f"a.{n}_proj.weight"]).unflatten(-1, (-1, 32)).transpose(0, 1) for n in "qkv"
    )
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1).flatten(1)
    cache, parts = KVCache(), []
    for rows in (x[:, :, :7], x[:, :, 7:10], x[:, :, 10:]):
        local_q, *new = qkv(ctx.put(rows))
        seen = cache.append(*new)
        mask = causal_mask(ctx, rows.shape[2], cache.length)
        parts.append(t.whole(grouped_attention(ctx, local_q, *seen, mask=mask), (0, 3)))
    torch.testing.assert_close(torch.cat(parts, 2)[0, 0], wanted, rtol=2e-2, atol=2e-2)


def cropped_cache(t: Env) -> None:
    from tt_impl.layers.kv_cache import KVCache

    cache, x = KVCache(), t.rand(1, 2, 21, 32)
    cache.append(t.put(x[:, :, :5]), t.put(-x[:, :, :5]))
    cache.append(t.put(x[:, :, 5:21]), t.put(-x[:, :, 5:21]))
    cache.crop(9)
    k, v = cache.append(t.put(x[:, :, 9:12]), t.put(-x[:, :, 9:12]))
    assert cache.length == 12
    t.check(k, x[:, :, :12])
    t.check(v, -x[:, :, :12])
    for rows in (0, 13):
        try:
            cache.crop(rows)
        except ValueError:
            continue
        raise AssertionError(f"12 rows were cropped to {rows}")


def cache_in_pages(t: Env) -> None:
    """Two users in turn, some rows rejected: the attention of whole caches, and that of torch."""
    from tt_impl.layers.grouped_attention import causal_mask
    from tt_impl.layers.kv_cache import KVCache
    from tt_impl.layers.paged_cache import PagePool

    ctx, heads, size = _context(t), 4, 32
    pool = PagePool(ctx, layers=1, pages=5)
    users = [(KVCache(), pool.new_cache()[0], []) for _ in range(2)]
    for user, rows, kept in ((0, 37, 37), (1, 3, 3), (0, 16, 2), (1, 16, 16), (0, 16, 16), (1, 16, 1), (1, 1, 1)):
        whole, paged, seen = users[user]
        q, k, v = t.rand(1, heads, rows, size), t.rand(1, 2, rows, size), t.rand(1, 2, rows, size)
        seen.append((k, v))
        keys, values = (torch.cat(parts, 2) for parts in zip(*seen, strict=True))
        mask = causal_mask(ctx, rows, keys.shape[2])
        ours, other = (cache.attend(ctx, *map(ctx.put, (q, k, v)), mask=mask) for cache in (paged, whole))
        hidden = torch.ones(rows, keys.shape[2], dtype=torch.bool).tril(keys.shape[2] - rows)
        wanted = F.scaled_dot_product_attention(q, keys, values, attn_mask=hidden, enable_gqa=True)
        found, contiguous = (t.shadow.values(x)[-1] for x in (ours, other))
        torch.testing.assert_close(found, wanted.transpose(1, 2).flatten(2)[None], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(found, contiguous, rtol=2e-2, atol=2e-2)
        assert paged.length == whole.length == keys.shape[2]
        if kept < rows:
            paged.crop(paged.length - rows + kept)
            whole.crop(whole.length - rows + kept)
            seen[-1] = (k[:, :, :kept], v[:, :, :kept])


def no_page_is_left(t: Env) -> None:
    from tt_impl.layers.paged_cache import PagePool

    pool = PagePool(_context(t), layers=1, pages=2)
    x = t.put(t.rand(1, 2, 33, 32))
    pool.new_cache()[0].attend(pool.ctx, x, x, x, mask=None)
    raises(UserError, lambda: pool.new_cache()[0].attend(pool.ctx, x, x, x, mask=None), "all 2 pages of 32 rows")


def rotary_of_part_of_a_tile(t: Env) -> None:
    """ttnn gives whole tiles; what is beyond the rows is nobody's."""
    from tt_impl.layers.rope import rotate_halves, text_rotary

    ctx, x = _context(t), t.rand(1, 2, 5, 32)
    tables = text_rotary(ctx, torch.arange(3, 8), 32, 1e4)
    whole = t.ttnn.experimental.rotary_embedding(ctx.put(x), *tables)
    assert whole.shape[2] == 32 and all(v[:, :, 5:].isnan().all() for v in t.shadow.values(whole))
    angles = torch.outer(torch.arange(3, 8).float(), 1e4 ** -(torch.arange(0, 32, 2) / 32))
    first, second = x.chunk(2, -1)
    turned = [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()]
    t.check(rotate_halves(ctx.put(x), *tables), torch.cat(turned, -1), ulps=2)


CASES = collect(globals())
