"""out = silu(x @ gate) * (x @ up): two matmuls over the same blocks of x, joined before anything leaves L1.

for every block of out:
    [g] = [u] = 0
    for every block of K:  x, gate, up --read--> [x] [gate] [up] --> [g] + x @ gate, [u] + x @ up
    silu([g]) * [u] --> [out block] --write--> out
"""

import ttl
import ttnn

from tt_impl.kernels.blocks import tiles, width
from tt_impl.kernels.drain import drain


def make_matmul_silu_mul(grid, max_m=4, max_n=4, max_k=4):
    """Make the kernel: x (M, K), gate and up (K, N), out (M, N), whole tiles."""

    @ttl.operation(grid=grid)
    def matmul_silu_mul(x: ttnn.Tensor, gate: ttnn.Tensor, up: ttnn.Tensor, out: ttnn.Tensor) -> None:
        sides = ((out.shape[0], max_m), (out.shape[1], max_n), (x.shape[1], max_k))
        m, n, k = (width(tiles(side), limit) for side, limit in sides)
        columns = tiles(out.shape[1]) // n
        steps = tiles(x.shape[1]) // k
        blocks = tiles(out.shape[0]) // m * columns
        per = -(-blocks // ttl.grid_size(dims=1))

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(m, k), block_count=2)
        gate_dfb = ttl.make_dataflow_buffer_like(gate, shape=(k, n), block_count=2)
        up_dfb = ttl.make_dataflow_buffer_like(up, shape=(k, n), block_count=2)
        g_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)
        u_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(m, n), block_count=2)

        @ttl.datamovement()
        def read():
            first = ttl.node(dims=1) * per
            for index in range(first, min(first + per, blocks)):
                r = index // columns * m
                c = index % columns * n
                for s in range(0, steps * k, k):
                    with x_dfb.reserve() as x_blk, gate_dfb.reserve() as gate_blk, up_dfb.reserve() as up_blk:
                        tx_x = ttl.copy(x[r : r + m, s : s + k], x_blk)
                        tx_gate = ttl.copy(gate[s : s + k, c : c + n], gate_blk)
                        tx_up = ttl.copy(up[s : s + k, c : c + n], up_blk)
                        tx_x.wait()
                        tx_gate.wait()
                        tx_up.wait()

        @ttl.compute()
        def compute():
            first = ttl.node(dims=1) * per
            for _ in range(first, min(first + per, blocks)):
                with g_dfb.reserve() as g_blk, u_dfb.reserve() as u_blk:
                    g_blk.store(ttl.block.fill(0, shape=(m, n)))
                    u_blk.store(ttl.block.fill(0, shape=(m, n)))
                for _ in range(steps):
                    with x_dfb.wait() as x_blk, gate_dfb.wait() as gate_blk, up_dfb.wait() as up_blk:
                        with g_dfb.wait() as g_so_far, g_dfb.reserve() as g_blk:
                            g_blk.store(g_so_far + x_blk @ gate_blk)
                        with u_dfb.wait() as u_so_far, u_dfb.reserve() as u_blk:
                            u_blk.store(u_so_far + x_blk @ up_blk)
                with g_dfb.wait() as g_blk, u_dfb.wait() as u_blk, out_dfb.reserve() as out_blk:
                    out_blk.store(ttl.math.silu(g_blk) * u_blk)

        drain(out, out_dfb, (m, n), per)

    return matmul_silu_mul
