"""Column of the largest value of every row, in two passes over the row; of equal ones the first.

    pass 1   x --read--> [block] --max of a row--> max with [so far]  --> [top]
    pass 2   x, columns --read--> [block == top ? -column : lowest] --max of a row--> max with [so far] --> -[best]

The simulator has no operation that gives an index, so the columns' numbers are an operand: a row of them in fp32,
negated so that the first of equal ones is the largest. Padded columns must hold less than any real value.
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles, width
from tt_impl.kernels.drain import drain

LOWEST = -3.0e38


def make_argmax(grid, max_block=8):
    """Make the kernel: x (R, V); columns (32, V) in fp32, 0 .. V-1 in row 0; out (R, 32) in fp32, in column 0."""

    @ttl.operation(grid=grid)
    def argmax(x: ttnn.Tensor, columns: ttnn.Tensor, out: ttnn.Tensor) -> None:
        block = width(tiles(x.shape[1]), max_block)
        steps = tiles(x.shape[1]) // block
        rows = tiles(x.shape[0])
        per = -(-rows // ttl.grid_size(dims=1))

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, block), block_count=2)
        columns_dfb = ttl.make_dataflow_buffer_like(columns, shape=(1, block), block_count=2)
        top_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 1), block_count=2)
        best_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, 1), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, 1), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            for r in range(first, min(first + per, rows)):
                for c in range(0, steps * block, block):
                    with x_dfb.reserve() as x_blk:
                        ttl.copy(x[r : r + 1, c : c + block], x_blk).wait()
                for c in range(0, steps * block, block):
                    with x_dfb.reserve() as x_blk, columns_dfb.reserve() as columns_blk:
                        tx_x = ttl.copy(x[r : r + 1, c : c + block], x_blk)
                        tx_columns = ttl.copy(columns[0:1, c : c + block], columns_blk)
                        tx_x.wait()
                        tx_columns.wait()

        @ttl.compute()
        def compute():
            for _ in range(min(per, rows - ttl.node(dims=1) * per)):
                with top_dfb.reserve() as top_blk, best_dfb.reserve() as best_blk:
                    top_blk.store(ttl.block.fill(LOWEST, shape=(1, 1)))
                    best_blk.store(ttl.block.fill(LOWEST, shape=(1, 1)))
                for _ in range(steps):
                    with x_dfb.wait() as x_blk, top_dfb.wait() as so_far, top_dfb.reserve() as top_blk:
                        top_blk.store(ttl.math.max(so_far, ttl.math.reduce_max(x_blk, dims=[1], shape=(1, 1))))
                with top_dfb.wait() as top_blk:
                    for _ in range(steps):
                        with x_dfb.wait() as x_blk, columns_dfb.wait() as columns_blk:
                            is_top = ttl.math.eq(x_blk, ttl.block.broadcast(top_blk, dims=[1], shape=(1, block)))
                            number = ttl.math.neg(ttl.block.broadcast(columns_blk, dims=[0], shape=(1, block)))
                            none = ttl.block.fill(LOWEST, shape=(1, block))
                            best = ttl.math.reduce_max(ttl.block.where(is_top, number, none), dims=[1], shape=(1, 1))
                            with best_dfb.wait() as so_far, best_dfb.reserve() as best_blk:
                                best_blk.store(ttl.math.max(so_far, best))
                with best_dfb.wait() as best_blk, out_dfb.reserve() as out_blk:
                    out_blk.store(ttl.math.neg(best_blk))

        drain(out, out_dfb, (1, 1), per)

    return argmax
