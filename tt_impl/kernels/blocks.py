"""How a tensor of tiles is cut into blocks."""

TILE = 32


def tiles(size: int) -> int:
    """Return the tiles of a dim that is whole tiles."""
    return size // TILE


def width(count: int, limit: int) -> int:
    """Return the widest block of at most ``limit`` tiles that divides ``count`` tiles."""
    return max(n for n in range(1, min(count, limit) + 1) if count % n == 0)
