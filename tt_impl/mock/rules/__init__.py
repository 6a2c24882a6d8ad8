"""Shadow rules by family; importing this package registers them."""

from tt_impl.mock.rules import attention, cache, collectives, conv, eltwise, group_norm, heads, layout, matmul, norm

__all__ = ["attention", "cache", "collectives", "conv", "eltwise", "group_norm", "heads", "layout", "matmul", "norm"]
