"""How far things are padded, and how tokens are cut and put together again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.parallel.padding import TILE, padded_features, padded_heads, padded_tokens
from refsim.parallel.sequence import TokenShards
from tests.refsim.helpers import run


@pytest.mark.parametrize(
    ("function", "size", "factor", "wanted"),
    [
        (padded_heads, 38, 8, 40),
        (padded_heads, 38, 1, 38),
        (padded_heads, 38, 2, 38),
        (padded_features, 2432, 8, 2560),
        (padded_features, 2432, 4, 2432),
        (padded_features, 33, 1, 33),
        (padded_tokens, 240, 8, 256),
        (padded_tokens, 4096, 8, 4096),
        (padded_tokens, 4097, 8, 4352),
        (padded_tokens, 40, 1, 40),
        (padded_tokens, 1, 2, 64),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_padded_sizes(function, size, factor, wanted):
    assert function(size, factor) == wanted


@given(st.integers(1, 5000), st.integers(1, 32))
def test_padding_is_the_least_that_gives_equal_aligned_shards(size, factor):
    for padded, unit in (
        (padded_heads(size, factor), factor),
        (padded_features(size, factor), TILE * factor if factor > 1 else 1),
        (padded_tokens(size, factor), TILE * factor if factor > 1 else 1),
    ):
        assert padded % unit == 0
        assert size <= padded < size + unit


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(1, 8))
def test_shards_hold_every_token_once_and_in_order(logical_n, factor):
    shards = TokenShards.of(logical_n, factor)
    assert shards.local_n * factor == padded_tokens(logical_n, factor)
    full = torch.arange(1, logical_n + 1).view(1, logical_n, 1)
    seen = []
    for shard in range(factor):
        local = shards.cut(full, shard, dim=1)
        assert local.shape == (1, shards.local_n, 1)
        start, stop = shards.tokens(shard)
        valid = [row for a, b in shards.valid(shard) for row in range(a, b)]
        assert local[0, valid, 0].tolist() == list(range(start + 1, stop + 1))
        assert (local != 0).sum() == len(valid)
        seen += local[0, valid, 0].tolist()
    assert seen == list(range(1, logical_n + 1))


def test_a_shard_of_padding_has_no_valid_row():
    shards = TokenShards(logical_n=40, factor=4, local_n=32)
    assert [shards.valid(shard) for shard in range(4)] == [[(0, 32)], [(0, 8)], [(0, 0)], [(0, 0)]]
    assert [shards.tokens(shard) for shard in range(4)] == [(0, 32), (32, 40), (40, 40), (40, 40)]


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize(("mesh", "sp"), [("t3k-1x8", 8), ("t3k", 4), ("n150", 1)], ids=["ring8", "line4", "serial"])
def test_gathered_tokens_are_the_tokens_that_were_cut(mesh, sp, dim):
    parallel = {"t3k": "sp4_tp2"}.get(mesh, f"sp{sp}")
    values = run("tokens_round_trip", mesh, parallel, {"logical_n": 70, "dim": dim}).values
    assert all(value["same"] for value in values)
    assert {value["local"][dim] for value in values} == {padded_tokens(70, sp) // sp}
