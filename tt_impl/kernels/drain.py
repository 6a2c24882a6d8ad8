"""The last data movement thread of a kernel: finished blocks from their dataflow buffer to the tensor."""

import ttl

from tt_impl.kernels.blocks import tiles


def drain(out, out_dfb, shape, per):
    """Define the thread of the kernel that calls this; node n drains blocks n * per .. (n + 1) * per - 1 of ``out``.

    ``shape``: rows and columns of a block in tiles. Blocks are numbered row by row. What the threads of one kernel read
    from around them is one name space in the simulator, hence the names.
    """
    out_rows, out_width = shape
    out_columns = tiles(out.shape[1]) // out_width
    out_blocks = tiles(out.shape[0]) // out_rows * out_columns
    out_per = per

    @ttl.datamovement()
    def write():
        first = ttl.node(dims=1) * out_per
        for index in range(first, min(first + out_per, out_blocks)):
            r = index // out_columns * out_rows
            c = index % out_columns * out_width
            with out_dfb.wait() as out_blk:
                ttl.copy(out_blk, out[r : r + out_rows, c : c + out_width]).wait()
