"""Large tensors of one number: only their memory is taken, no host tensor is filled for them.

For a device ``ttnn.zeros``, ``ones`` and ``full`` fill a host tensor with every element and copy it to the mock, which
throws it away: a second, and gigabytes, for each GiB. From :data:`LARGE` elements on they are called for one tile, with
all checks of what was given, and ``ttnn.empty``, which fills nothing, takes the memory that they would have taken.
"""

from __future__ import annotations

import math
from typing import Any

import ttnn

from tt_impl.trace.intercept import Invocation, on_device

LARGE = 2**20
"""Elements; below, ttnn's own way takes a few milliseconds."""
_TILE = 32
_OPTIONS = ("dtype", "layout", "device", "memory_config")
_FROM_SHAPE = {
    "ttnn.zeros": ("shape", *_OPTIONS),
    "ttnn.ones": ("shape", *_OPTIONS),
    "ttnn.full": ("shape", "fill_value", *_OPTIONS),
}
_LIKE = {
    "ttnn.zeros_like": ("tensor",),
    "ttnn.ones_like": ("tensor",),
    "ttnn.full_like": ("tensor", "fill_value"),
}
"""Those run a program on the device where the tensor is in tiles, and fill a host tensor otherwise."""


def take_memory_only(call: Invocation) -> Any:
    """Make a large tensor of one number without filling one on the host.

    A handler for :func:`tt_impl.trace.intercept.intercepted`, to be installed nearest to ttnn.
    """
    names = _FROM_SHAPE.get(call.name) or _LIKE.get(call.name)
    if names is None:
        return call.proceed()
    named = call.named(*names)
    if named.keys() - {*names, *_OPTIONS}:  # a tensor to write into, for one
        return call.proceed()
    template = named.get("tensor")
    if template is not None and (not on_device(template) or template.layout != ttnn.ROW_MAJOR_LAYOUT):
        return call.proceed()
    shape = tuple(named.get("shape", ()) if template is None else template.shape)
    device = named.get("device") or (None if template is None else template.device())
    if device is None or math.prod(shape) < LARGE:
        return call.proceed()
    return _without_host(call, named, shape, device)


def _without_host(call: Invocation, named: dict[str, Any], shape: tuple[int, ...], device: ttnn.MeshDevice) -> Any:
    """Call the operation for a tile or four, and take the memory of the whole."""
    small = [*(1 for _ in shape[:-2]), *(min(size, _TILE + size % _TILE) for size in shape[-2:])]
    template = named.get("tensor")
    values = {name: value for name, value in named.items() if name != "memory_config"}
    if template is None:
        values["shape"] = small
    else:
        values["tensor"] = ttnn.empty(small, dtype=template.dtype, layout=template.layout, device=device)
    sample = call.original(**values)
    memory = named.get("memory_config") or (sample if template is None else template).memory_config()
    kind = {"dtype": sample.dtype, "layout": sample.layout, "memory_config": memory}
    distribution = sample.tensor_topology()
    for tensor in (sample, values.get("tensor")):  # the whole lies where it would have lain
        if tensor is not None:
            tensor.deallocate()
    whole = ttnn.empty(shape, device=device, **kind)
    whole.update_tensor_topology(distribution)
    return whole
