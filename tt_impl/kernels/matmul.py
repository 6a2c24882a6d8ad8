"""out = a @ b [+ residual], streamed over K: only one block of each operand is in L1 at a time.

    for every block of out:
        [acc] = 0
        for every block of K:  a, b --read--> [a block] [b block] --> [acc] + a @ b --> [acc]
        [acc] [+ residual block] --> [out block] --write--> out

The accumulator is a buffer of its own, in the dtype of ``out``.
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles, width
from tt_impl.kernels.drain import drain


def make_matmul(grid, max_m=4, max_n=4, max_k=4):
    """Make the kernel: a (M, K), b (K, N), out (M, N), whole tiles."""

    @ttl.operation(grid=grid)
    def matmul(a: ttnn.Tensor, b: ttnn.Tensor, out: ttnn.Tensor) -> None:
        m = width(tiles(out.shape[0]), max_m)
        n = width(tiles(out.shape[1]), max_n)
        k = width(tiles(a.shape[1]), max_k)
        columns = tiles(out.shape[1]) // n
        steps = tiles(a.shape[1]) // k
        blocks = tiles(out.shape[0]) // m * columns
        per = -(-blocks // ttl.grid_size(dims=1))

        a_dfb = ttl.make_dataflow_buffer_like(a, shape=(m, k), block_count=2)
        b_dfb = ttl.make_dataflow_buffer_like(b, shape=(k, n), block_count=2)
        acc_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            for index in range(first, min(first + per, blocks)):
                r = index // columns * m
                c = index % columns * n
                for s in range(0, steps * k, k):
                    with a_dfb.reserve() as a_blk, b_dfb.reserve() as b_blk:
                        tx_a = ttl.copy(a[r : r + m, s : s + k], a_blk)
                        tx_b = ttl.copy(b[s : s + k, c : c + n], b_blk)
                        tx_a.wait()
                        tx_b.wait()

        @ttl.compute()
        def compute():
            first = ttl.node(dims=1) * per
            for _ in range(first, min(first + per, blocks)):
                with acc_dfb.reserve() as acc_blk:
                    acc_blk.store(ttl.block.fill(0, shape=(m, n)))
                for _ in range(steps):
                    with a_dfb.wait() as a_blk, b_dfb.wait() as b_blk, acc_dfb.wait() as so_far:
                        with acc_dfb.reserve() as acc_blk:
                            acc_blk.store(so_far + a_blk @ b_blk)
                with acc_dfb.wait() as acc_blk, out_dfb.reserve() as out_blk:
                    out_blk.store(acc_blk)

        drain(out, out_dfb, (m, n), per)

    return matmul


def make_matmul_residual_add(grid, max_m=4, max_n=4, max_k=4):
    """Make the kernel: a (M, K), b (K, N), residual and out (M, N), whole tiles."""

    @ttl.operation(grid=grid)
    def matmul_residual_add(a: ttnn.Tensor, b: ttnn.Tensor, residual: ttnn.Tensor, out: ttnn.Tensor) -> None:
        m = width(tiles(out.shape[0]), max_m)
        n = width(tiles(out.shape[1]), max_n)
        k = width(tiles(a.shape[1]), max_k)
        columns = tiles(out.shape[1]) // n
        steps = tiles(a.shape[1]) // k
        blocks = tiles(out.shape[0]) // m * columns
        per = -(-blocks // ttl.grid_size(dims=1))

        a_dfb = ttl.make_dataflow_buffer_like(a, shape=(m, k), block_count=2)
        b_dfb = ttl.make_dataflow_buffer_like(b, shape=(k, n), block_count=2)
        residual_dfb = ttl.make_dataflow_buffer_like(residual, shape=(m, n), block_count=2)
        acc_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            for index in range(first, min(first + per, blocks)):
                r = index // columns * m
                c = index % columns * n
                for s in range(0, steps * k, k):
                    with a_dfb.reserve() as a_blk, b_dfb.reserve() as b_blk:
                        tx_a = ttl.copy(a[r : r + m, s : s + k], a_blk)
                        tx_b = ttl.copy(b[s : s + k, c : c + n], b_blk)
                        tx_a.wait()
                        tx_b.wait()
                with residual_dfb.reserve() as residual_blk:
                    ttl.copy(residual[r : r + m, c : c + n], residual_blk).wait()

        @ttl.compute()
        def compute():
            first = ttl.node(dims=1) * per
            for _ in range(first, min(first + per, blocks)):
                with acc_dfb.reserve() as acc_blk:
                    acc_blk.store(ttl.block.fill(0, shape=(m, n)))
                for _ in range(steps):
                    with a_dfb.wait() as a_blk, b_dfb.wait() as b_blk, acc_dfb.wait() as so_far:
                        with acc_dfb.reserve() as acc_blk:
                            acc_blk.store(so_far + a_blk @ b_blk)
                with acc_dfb.wait() as acc_blk, residual_dfb.wait() as residual_blk, out_dfb.reserve() as out_blk:
                    out_blk.store(acc_blk + residual_blk)

        drain(out, out_dfb, (m, n), per)

    return matmul_residual_add
