"""Large tensors of one number: only their memory is taken, no host tensor is filled for them.

For a device ``ttnn.zeros``, ``ones`` and ``full`` fill a host tensor with every element and copy it to the mock, which
throws it away: a second, and gigabytes, for each GiB. From :data:`LARGE` elements on they are called for one tile, with
all checks of what was given, and ``ttnn.empty``, which fills nothing, takes the memory that they would have taken.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
import ttnn

from tt_impl.mock.storage.host import give_back_zeros
from tt_impl.mock.storage.seeded import real
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


class Constructors:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`, to be installed nearest to ttnn.

    It makes large tensors of one number without filling one on the host, and with ``of_host``, for programs without
    values, those of large host tensors, too.
    """

    def __init__(self, of_host: bool = False) -> None:
        self._of_host = of_host

    def __call__(self, call: Invocation) -> Any:
        if call.name == "ttnn.from_torch" and self._of_host:
            return memory_of_host(call)
        names = _FROM_SHAPE.get(call.name) or _LIKE.get(call.name)
        return call.proceed() if names is None else _memory_of_number(call, call.named(*names), names)


def _memory_of_number(call: Invocation, named: dict[str, Any], names: tuple[str, ...]) -> Any:
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
    if template is not None:
        values["tensor"].deallocate()
    return _whole(sample, shape, device, memory)


def _whole(sample: ttnn.Tensor, shape: Sequence[int], device: ttnn.MeshDevice, memory: ttnn.MemoryConfig) -> Any:
    """Take the memory of a tensor like ``sample``, whose own is given back, in another shape."""
    kind = {"dtype": sample.dtype, "layout": sample.layout, "memory_config": memory}
    distribution = sample.tensor_topology()
    sample.deallocate()  # the whole lies where it would have lain
    whole = ttnn.empty(shape, device=device, **kind)
    whole.update_tensor_topology(distribution)
    return whole


def memory_of_host(call: Invocation) -> Any:
    """Take the memory that ``ttnn.from_torch`` takes for a large tensor, without converting its values.

    On the host zeros, as which random weights come, take none. A tensor of a few elements goes through ttnn's own
    mapper, which tells what lies where.
    """
    named = call.named("tensor", "dtype")
    tensor = named["tensor"]
    device = named.get("device")
    unknown = {name for name, value in named.items() if value is not None} - _FROM_TORCH
    if device is None and isinstance(tensor, torch.Tensor) and tensor.numel() >= LARGE:
        values = _real(tensor)
        host = call.original(**named | {"tensor": values})
        give_back_zeros(host, values)
        return host
    if not isinstance(tensor, torch.Tensor) or device is None or unknown or tensor.numel() < LARGE:
        return call.original(**named | {"tensor": _real(tensor)})
    devices = device.get_num_devices()
    few = {name: value for name, value in named.items() if name != "memory_config"}
    few["tensor"] = torch.zeros([1 if size == 1 else devices for size in tensor.shape], dtype=tensor.dtype)
    sample = None
    if few["tensor"].numel() <= LARGE:
        with contextlib.suppress(RuntimeError):  # what cannot be cut so is told of the tensor itself
            sample = call.original(**few)
    part = None if sample is None else _cut(sample, tensor.shape)
    if part is None:
        if sample is not None:
            sample.deallocate()
        return call.original(**named | {"tensor": _real(tensor)})
    return _whole(sample, part, device, named.get("memory_config") or sample.memory_config())


_FROM_TORCH = {"tensor", *_OPTIONS, "mesh_mapper", "pad_value", "cq_id", "preserve_nan_values", "enable_bfloat_opt"}


def _cut(sample: ttnn.Tensor, shape: Sequence[int]) -> list[int] | None:
    """Return the part of ``shape`` on each device, as ``sample`` was cut; None if it does not divide."""
    topology = sample.tensor_topology()
    part = list(shape)
    for placement, count in zip(topology.placements(), topology.distribution_shape(), strict=True):
        if (dim := getattr(placement, "dim", None)) is not None:
            if part[dim] % count:
                return None
            part[dim] //= count
    return part


def _real(tensor: Any) -> Any:
    """Return a tensor with memory in place of one that has none: of torch's device meta, or random weights."""
    is_meta = isinstance(tensor, torch.Tensor) and tensor.is_meta
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if is_meta else real(tensor)
