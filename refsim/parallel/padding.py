"""How far heads, features and tokens are padded so that every shard is the same and tile-aligned.

    heads     38 over tp 8         -> 40          5 per device, heads 38 and 39 have zero weights
    features  2432 over tp 8       -> 2560        320 per device = 10 tiles
    tokens    240 over sp 8        -> 256         32 per device, the last 16 rows are never valid keys

A shard of one (factor 1) is not padded: TTNN pads tiles inside a tensor by itself.
"""

from __future__ import annotations

from refsim.base.padded import note

TILE = 32


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def padded_heads(heads: int, factor: int) -> int:
    return note("heads", heads, round_up(heads, factor), "tp", factor)


def exchanged_heads(heads: int, factor: int) -> int:
    """Return the same for heads of one tp member that Ulysses cuts once more."""
    return note("exchanged heads", heads, round_up(heads, factor), "ulysses", factor)


def padded_features(features: int, factor: int) -> int:
    return features if factor == 1 else note("features", features, round_up(features, TILE * factor), "tp", factor)


def padded_tokens(tokens: int, factor: int) -> int:
    return tokens if factor == 1 else note("tokens", tokens, round_up(tokens, TILE * factor), "sp", factor)


def padded_prompt(tokens: int, factor: int) -> int:
    return tokens if factor == 1 else note("prompt tokens", tokens, round_up(tokens, TILE * factor), "sp", factor)
