"""Softmax of whole rows, fused: a row of tiles stays in L1 from the first read to the last write.

    x, mask --read--> [x + mask] --max of a row--> [max] --exp(x - max)--> [e] --sum of a row--> [sum]
                                                                           [e] * 1 / [sum] --> [out] --write--> out

The mask is added: 0 on real columns, a large negative number on padded ones, which would otherwise count exp(0) each.
A row that does not fit L1 in its buffers is refused.
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles
from tt_impl.kernels.drain import drain


def make_softmax(grid):
    """Make the kernel: x and out (R, S), mask (32, S) with the mask in row 0; whole tiles."""

    @ttl.operation(grid=grid)
    def softmax(x: ttnn.Tensor, mask: ttnn.Tensor, out: ttnn.Tensor) -> None:
        row = tiles(x.shape[1])
        rows = tiles(x.shape[0])
        per = -(-rows // ttl.grid_size(dims=1))

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, row), block_count=2)
        mask_dfb = ttl.make_dataflow_buffer_like(mask, shape=(1, row), block_count=1)
        masked_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, row), block_count=1)
        e_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, row), block_count=1)
        one_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 1), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, row), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            if first < rows:
                with mask_dfb.reserve() as mask_blk:
                    ttl.copy(mask[0:1, 0:row], mask_blk).wait()
            for r in range(first, min(first + per, rows)):
                with x_dfb.reserve() as x_blk:
                    ttl.copy(x[r : r + 1, 0:row], x_blk).wait()

        @ttl.compute()
        def compute():
            first = ttl.node(dims=1) * per
            if first < rows:
                with mask_dfb.wait() as mask_blk:
                    for _ in range(first, min(first + per, rows)):
                        with x_dfb.wait() as x_blk, masked_dfb.reserve() as masked_blk:
                            masked_blk.store(x_blk + ttl.block.broadcast(mask_blk, dims=[0], shape=(1, row)))
                        with masked_dfb.wait() as masked_blk:
                            with one_dfb.reserve() as max_blk:
                                max_blk.store(ttl.math.reduce_max(masked_blk, dims=[1], shape=(1, 1)))
                            with one_dfb.wait() as max_blk, e_dfb.reserve() as e_blk:
                                top = ttl.block.broadcast(max_blk, dims=[1], shape=(1, row))
                                e_blk.store(ttl.math.exp(masked_blk - top))
                        with e_dfb.wait() as e_blk:
                            with one_dfb.reserve() as sum_blk:
                                sum_blk.store(ttl.math.recip(ttl.math.reduce_sum(e_blk, dims=[1], shape=(1, 1))))
                            with one_dfb.wait() as sum_blk, out_dfb.reserve() as out_blk:
                                out_blk.store(e_blk * ttl.block.broadcast(sum_blk, dims=[1], shape=(1, row)))

        drain(out, out_dfb, (1, row), per)

    return softmax
