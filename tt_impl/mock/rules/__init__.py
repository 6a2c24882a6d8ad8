"""Shadow rules by family; importing this package registers them."""

from tt_impl.mock.rules import (
    attention,
    backward,
    binary,
    cache,
    collectives,
    conv,
    creation,
    data_movement,
    eltwise,
    group_norm,
    heads,
    indexing,
    layout,
    matmul,
    norm,
    reduction,
)

__all__ = [
    "attention",
    "backward",
    "binary",
    "cache",
    "collectives",
    "conv",
    "creation",
    "data_movement",
    "eltwise",
    "group_norm",
    "heads",
    "indexing",
    "layout",
    "matmul",
    "norm",
    "reduction",
]
