"""Which part of a sharded tensor lies on which core."""

from __future__ import annotations

import math

import torch
import ttnn

from tt_impl.mock.storage.errors import ShadowError

_ONLY_SHARDED = (
    "TT_FATAL: logical_core_filter is only supported for sharded buffer layouts "
    "(interleaved layout does not support per-core filtering)"
)
"""What ttnn says as it writes to a device; a mock device takes the call."""


def written_rows(tensor: ttnn.Tensor, cores: ttnn.CoreRangeSet) -> torch.Tensor:
    """Mark, in the shape of ``tensor``, where its shard lies on one of ``cores``.

    Shards follow each other over the cores of the grid as the orientation says; a block-sharded tensor has its rows
    of shards on rows of cores, or on columns if the orientation is by columns.
    """
    config = tensor.memory_config()
    spec = config.shard_spec
    if not config.is_sharded():
        if cores.num_cores():
            raise RuntimeError(_ONLY_SHARDED)
        return torch.zeros(tuple(tensor.shape), dtype=torch.bool)
    if spec is None:
        raise ShadowError("what lies on a core is known of height-, width- and block-sharded tensors only.")
    columns = tensor.shape[-1]
    rows = math.prod(tuple(tensor.shape)[:-1])
    height, width = spec.shape
    by_rows = spec.orientation == ttnn.ShardOrientation.ROW_MAJOR
    order = [(core.x, core.y) for core in ttnn.corerange_to_cores(spec.grid, None, by_rows)]
    chosen = {(core.x, core.y) for core in ttnn.corerange_to_cores(cores, None, True)} if cores.num_cores() else set()
    across = -(-columns // width)
    written = torch.zeros(rows, columns, dtype=torch.bool)
    for row in range(-(-rows // height)):
        for column in range(across):
            if config.memory_layout == ttnn.TensorMemoryLayout.BLOCK_SHARDED:
                low = spec.grid.bounding_box().start
                core = (low.x + column, low.y + row) if by_rows else (low.x + row, low.y + column)
            else:
                core = order[row * across + column]
            if core in chosen:
                written[row * height : (row + 1) * height, column * width : (column + 1) * width] = True
    return written.reshape(tuple(tensor.shape))
