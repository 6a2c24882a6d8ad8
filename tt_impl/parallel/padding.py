"""How far heads, features and tokens are padded so that every device holds whole heads and whole tiles.

Heads to a multiple of tp, features and tokens to whole 32-row tiles per device; a factor of 1 is not padded (ttnn pads
tiles inside a tensor by itself).
"""

from __future__ import annotations

import ttnn

TILE = ttnn.TILE_SIZE


def heads_per_device(heads: int, tp: int, ulysses: int = 1) -> int:
    """Heads of one tp member, a multiple of what Ulysses cuts them into."""
    return -(-heads // (tp * ulysses)) * ulysses


def features_per_device(features: int, tp: int) -> int:
    return features if tp == 1 else -(-features // (TILE * tp)) * TILE


def tokens_per_device(tokens: int, sp: int) -> int:
    return tokens if sp == 1 else -(-tokens // (TILE * sp)) * TILE
