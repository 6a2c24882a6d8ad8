"""How far heads, features and tokens are padded so that every device holds whole heads and whole tiles.

    heads     38 over tp 8                    -> 40      5 per device, heads 38 and 39 have zero weights
    heads     38 over tp 2, each over 4       -> 40      Ulysses cuts a tp member's heads once more: factor 8
    features  2432 over tp 8                  -> 2560    320 per device = 10 tiles
    tokens    240 over sp 8                   -> 256     32 per device

A shard of one (factor 1) is not padded: ttnn pads tiles inside a tensor by itself.
"""

from __future__ import annotations

import ttnn

from refsim.base.padded import note

TILE = ttnn.TILE_SIZE


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def padded_heads(heads: int, factor: int) -> int:
    return round_up(heads, factor)


def padded_features(features: int, factor: int) -> int:
    return features if factor == 1 else note("features", features, round_up(features, TILE * factor), "tp", factor)


def padded_tokens(tokens: int, factor: int) -> int:
    return tokens if factor == 1 else note("tokens", tokens, round_up(tokens, TILE * factor), "sp", factor)


def padded_prompt(tokens: int, factor: int) -> int:
    return tokens if factor == 1 else note("prompt tokens", tokens, round_up(tokens, TILE * factor), "sp", factor)
