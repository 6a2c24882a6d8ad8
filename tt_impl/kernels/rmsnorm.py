"""out = x * rsqrt(mean(x^2) + eps) * weight, in two passes over the row, so that a row of any length fits.

    pass 1   x --read--> [block] --square, sum of a row--> [+ so far] --rsqrt(s / features + eps)--> [scale]
    pass 2   x --read--> [block] --* scale * weight--> [out block] --write--> out

The mean divides by the real features: padded features are zero and add nothing to the sum.
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles, width
from tt_impl.kernels.drain import drain


def make_rmsnorm(grid, features, eps=1e-6, max_block=8):
    """Make the kernel: x and out (R, D), weight (32, D) in row 0; whole tiles, ``features`` of the D columns real."""

    @ttl.operation(grid=grid)
    def rmsnorm(x: ttnn.Tensor, weight: ttnn.Tensor, out: ttnn.Tensor) -> None:
        block = width(tiles(x.shape[1]), max_block)
        columns = tiles(x.shape[1]) // block
        rows = tiles(x.shape[0])
        per = -(-rows // ttl.grid_size(dims=1))

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, block), block_count=2)
        w_dfb = ttl.make_dataflow_buffer_like(weight, shape=(1, block), block_count=2)
        sum_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 1), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, block), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            for r in range(first, min(first + per, rows)):
                for c in range(0, columns * block, block):
                    with x_dfb.reserve() as x_blk:
                        ttl.copy(x[r : r + 1, c : c + block], x_blk).wait()
                for c in range(0, columns * block, block):
                    with x_dfb.reserve() as x_blk, w_dfb.reserve() as w_blk:
                        tx_x = ttl.copy(x[r : r + 1, c : c + block], x_blk)
                        tx_w = ttl.copy(weight[0:1, c : c + block], w_blk)
                        tx_x.wait()
                        tx_w.wait()

        @ttl.compute()
        def compute():
            first = ttl.node(dims=1) * per
            for _ in range(first, min(first + per, rows)):
                with sum_dfb.reserve() as sum_blk:
                    sum_blk.store(ttl.block.fill(0, shape=(1, 1)))
                for _ in range(columns):
                    with x_dfb.wait() as x_blk, sum_dfb.wait() as so_far, sum_dfb.reserve() as sum_blk:
                        sum_blk.store(so_far + ttl.math.reduce_sum(ttl.math.square(x_blk), dims=[1], shape=(1, 1)))
                with sum_dfb.wait() as total, sum_dfb.reserve() as scale:
                    mean = total * ttl.block.fill(1.0 / features, shape=(1, 1))
                    scale.store(ttl.math.rsqrt(mean + ttl.block.fill(eps, shape=(1, 1))))
                with sum_dfb.wait() as scale:
                    for _ in range(columns):
                        with x_dfb.wait() as x_blk, w_dfb.wait() as w_blk, out_dfb.reserve() as out_blk:
                            scaled = x_blk * ttl.block.broadcast(scale, dims=[1], shape=(1, block))
                            out_blk.store(scaled * ttl.block.broadcast(w_blk, dims=[0], shape=(1, block)))

        drain(out, out_dfb, (1, block), per * columns)

    return rmsnorm
