"""What a device tensor's buffer is called, and where it lies."""

from __future__ import annotations

import ttnn


def buffer_of(tensor: ttnn.Tensor) -> int | None:
    """Return a number that all tensors of one buffer share, and no others; None if it was given back.

    ttnn has none for a buffer whose cores have addresses of their own, which is told by its first core's place: the
    next buffer there has the same, a negative one.
    """
    number = tensor.buffer_unique_id()
    if number is None and tensor.is_allocated() and per_core(tensor):
        return -1 - abs(hash((tensor.device().id(), *_first_core(tensor), address_of(tensor))))
    return number


def per_core(tensor: ttnn.Tensor) -> bool:
    """Tell whether every core gave the buffer a place of its own: ``experimental_set_per_core_allocation``."""
    return hasattr(tensor, "is_per_core_allocated") and tensor.is_per_core_allocated()  # ttnn 0.80 has none


def address_of(tensor: ttnn.Tensor) -> int:
    """Return where the buffer of ``tensor`` lies; on its first core, where every core has an address of its own."""
    if not per_core(tensor):
        return tensor.buffer_address()
    row, column, x, y = _first_core(tensor)
    return tensor.experimental_per_core_buffer_address(ttnn.MeshCoordinate(row, column), ttnn.CoreCoord(x, y))


def _first_core(tensor: ttnn.Tensor) -> tuple[int, int, int, int]:
    """Return row and column of a tensor's first device, x and y of its first core."""
    row, column = tensor.device_coords()[0]
    core = tensor.memory_config().shard_spec.grid.ranges()[0].start
    return row, column, core.x, core.y
