"""out = x + y, block by block.

x --read--> [x block] --.
y --read--> [y block] --+--> [out block] --write--> out
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles, width
from tt_impl.kernels.drain import drain


def make_residual_add(grid, max_block=8):
    """Make the kernel: x, y and out (R, D), whole tiles, one dtype."""

    @ttl.operation(grid=grid)
    def residual_add(x: ttnn.Tensor, y: ttnn.Tensor, out: ttnn.Tensor) -> None:
        block = width(tiles(out.shape[1]), max_block)
        columns = tiles(out.shape[1]) // block
        blocks = tiles(out.shape[0]) * columns
        per = -(-blocks // ttl.grid_size(dims=1))

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, block), block_count=2)
        y_dfb = ttl.make_dataflow_buffer_like(y, shape=(1, block), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, block), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            for b in range(first, min(first + per, blocks)):
                r = b // columns
                c = b % columns * block
                with x_dfb.reserve() as x_blk, y_dfb.reserve() as y_blk:
                    tx_x = ttl.copy(x[r : r + 1, c : c + block], x_blk)
                    tx_y = ttl.copy(y[r : r + 1, c : c + block], y_blk)
                    tx_x.wait()
                    tx_y.wait()

        @ttl.compute()
        def compute():
            first = ttl.node(dims=1) * per
            for _ in range(first, min(first + per, blocks)):
                with x_dfb.wait() as x_blk, y_dfb.wait() as y_blk, out_dfb.reserve() as out_blk:
                    out_blk.store(x_blk + y_blk)

        drain(out, out_dfb, (1, block), per)

    return residual_add
