"""The API of TT-Lang of April 2026, which published kernels are written in, on that of today's simulator.

Then buffers were made with ``buffer_factor``, reductions took a tile of scales and broadcasts the block to fill,
and ``where``, ``transpose`` and ``fill`` had other places. What a kernel uses of it is counted in :data:`USED`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

USED: Counter[str] = Counter()
"""Names of the older API by how often they were called since somebody emptied it."""


def add_to(namespace: Any) -> None:
    """Let a simulator's namespace answer the older calls, too."""
    math = namespace.math
    block = namespace.block
    make_buffer = namespace.make_dataflow_buffer_like
    broadcast_to = block.broadcast
    fill_with = block.fill

    def make_dataflow_buffer_like(*args: Any, buffer_factor: int | None = None, **named: Any) -> Any:
        if buffer_factor is not None:
            USED["ttl.make_dataflow_buffer_like(buffer_factor=)"] += 1
            named["block_count"] = buffer_factor
        return make_buffer(*args, **named)

    def reduction(name: str) -> Callable[..., Any]:
        reduce_to = getattr(math, name)

        def reduce(x: Any, *rest: Any, dims: Any = None, shape: Any = None) -> Any:
            scales = _block(rest)
            if dims is None:
                dims = next(value for value in rest if isinstance(value, list | tuple))
            if shape is None:
                reduced = {dim % len(x._shape) for dim in dims}
                shape = tuple(1 if dim in reduced else size for dim, size in enumerate(x._shape))
                USED[f"ttl.math.{name}() without a shape"] += 1
            result = reduce_to(x, dims=dims, shape=shape)
            if scales is None:
                return result
            USED[f"ttl.math.{name}() with a tile of scales"] += 1
            if tuple(scales._shape) != tuple(shape):
                scales = broadcast_to(scales, dims=list(range(len(shape))), shape=shape)
            return result * scales

        return reduce

    def broadcast(x: Any, *rest: Any, dims: Any = None, shape: Any = None) -> Any:
        if shape is None:
            USED["ttl.math.broadcast() to a block"] += 1
            shape = _block(rest)._shape
        if dims is None:
            dims = next(value for value in rest if isinstance(value, list | tuple))
        return broadcast_to(x, dims=dims, shape=tuple(shape))

    def fill(first: Any, second: Any = None, shape: Any = None) -> Any:
        if _block((first,)) is not None:
            USED["ttl.math.fill() of a block"] += 1
            return fill_with(second, shape=tuple(first._shape))
        return fill_with(first, shape=second if shape is None else shape)

    namespace.make_dataflow_buffer_like = make_dataflow_buffer_like
    for name in ("reduce_sum", "reduce_max"):
        setattr(math, name, reduction(name))
    for owner in (math, block):
        owner.broadcast = broadcast
        owner.fill = fill
    for owner, name in ((math, "where"), (namespace, "where"), (math, "transpose"), (math, "mask")):
        setattr(owner, name, _moved(name, getattr(block, name)))
    namespace.transpose = _moved("transpose", lambda x, *_: block.transpose(x))


def _block(values: tuple[Any, ...]) -> Any:
    """Return the first block among arguments; None if there is none."""
    return next((value for value in values if type(value).__name__ == "Block"), None)


def _moved(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def moved(*args: Any) -> Any:
        USED[f"ttl.{name} of another place"] += 1
        return function(*args)

    return moved
