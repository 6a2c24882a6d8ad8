"""Rotary position embedding, halves of a head turned against each other.

    head   | x1: first half | x2: second half |
    out    | x1 cos - x2 sin | x2 cos + x1 sin |      cos, sin: one row per token, half a head wide

One block is a tile row of one head. Heads of one tile row share cos and sin, which are read again for each.
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles


def make_rope(grid, head_dim):
    """Make the kernel: x and out (R, H * E), cos and sin (R, E / 2); whole tiles, half a head is whole tiles too."""
    half = tiles(head_dim // 2)

    @ttl.operation(grid=grid)
    def rope(x: ttnn.Tensor, cos: ttnn.Tensor, sin: ttnn.Tensor, out: ttnn.Tensor) -> None:
        heads = tiles(x.shape[1]) // (2 * half)
        blocks = tiles(x.shape[0]) * heads
        per = -(-blocks // ttl.grid_size(dims=1))

        first_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, half), block_count=2)
        second_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, half), block_count=2)
        cos_dfb = ttl.make_dataflow_buffer_like(cos, shape=(1, half), block_count=2)
        sin_dfb = ttl.make_dataflow_buffer_like(sin, shape=(1, half), block_count=2)
        out_first_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, half), block_count=2)
        out_second_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, half), block_count=2)

        @ttl.datamovement()
        def read():
            start = ttl.node(dims=1) * per
            for b in range(start, min(start + per, blocks)):
                r = b // heads
                c = b % heads * 2 * half
                with first_dfb.reserve() as first_blk, second_dfb.reserve() as second_blk:
                    tx_first = ttl.copy(x[r : r + 1, c : c + half], first_blk)
                    tx_second = ttl.copy(x[r : r + 1, c + half : c + 2 * half], second_blk)
                    tx_first.wait()
                    tx_second.wait()
                with cos_dfb.reserve() as cos_blk, sin_dfb.reserve() as sin_blk:
                    tx_cos = ttl.copy(cos[r : r + 1, 0:half], cos_blk)
                    tx_sin = ttl.copy(sin[r : r + 1, 0:half], sin_blk)
                    tx_cos.wait()
                    tx_sin.wait()

        @ttl.compute()
        def compute():
            start = ttl.node(dims=1) * per
            for _ in range(start, min(start + per, blocks)):
                with (
                    first_dfb.wait() as first_blk,
                    second_dfb.wait() as second_blk,
                    cos_dfb.wait() as cos_blk,
                    sin_dfb.wait() as sin_blk,
                ):
                    with out_first_dfb.reserve() as out_first_blk, out_second_dfb.reserve() as out_second_blk:
                        out_first_blk.store(first_blk * cos_blk - second_blk * sin_blk)
                        out_second_blk.store(second_blk * cos_blk + first_blk * sin_blk)

        @ttl.datamovement()
        def write():
            start = ttl.node(dims=1) * per
            for b in range(start, min(start + per, blocks)):
                r = b // heads
                c = b % heads * 2 * half
                with out_first_dfb.wait() as out_blk:
                    ttl.copy(out_blk, out[r : r + 1, c : c + half]).wait()
                with out_second_dfb.wait() as out_blk:
                    ttl.copy(out_blk, out[r : r + 1, c + half : c + 2 * half]).wait()

    return rope
