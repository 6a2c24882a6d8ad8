"""Between a device's values and ttnn's tensors on the host."""

from __future__ import annotations

from typing import Any

import torch
import ttnn

from refsim.base import heap
from tt_impl.mock.storage.dtypes import RANGES
from tt_impl.mock.storage.padding import Padding, ends_inside
from tt_impl.mock.storage.values import Shards, view_of
from tt_impl.mock.storage.views import bits_of, one_of
from tt_impl.trace.intercept import uncaught


def host_tensor(tensor: ttnn.Tensor, shards: Shards, padding: float | None = 0.0) -> ttnn.Tensor:
    """Copy ``tensor`` to the host: a host tensor of its specification and distribution, with the values ``shards``.

    Tiles are filled up with ``padding``; if nobody knows it (None) and the dtype has NaN, with that.
    """
    how: dict[str, Any] = {"spec": tensor.spec}
    if tuple(tensor.shape) != tuple(tensor.padded_shape):
        if padding is None:
            padding = float("nan") if tensor.dtype in (ttnn.bfloat16, ttnn.float32) else 0.0
        how["pad_value"] = padding
    with uncaught():
        parts = [ttnn.from_torch(_for_ttnn(shards[i], tensor.dtype), **how) for i in range(len(shards))]
        if len(parts) == 1:
            return parts[0]
        host = ttnn.from_host_shards(parts, ttnn.MeshShape(*shards.mesh_shape))
        host.update_tensor_topology(tensor.tensor_topology())
        return host


def _for_ttnn(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    if dtype in RANGES:
        return value.to(torch.int32)
    return value.to(torch.bfloat16) if dtype == ttnn.bfloat16 else value


def host_shards(host: ttnn.Tensor, devices: int) -> list[torch.Tensor]:
    """Return the torch values of a host tensor, one per device; replicas share one torch tensor.

    ttnn keeps one host buffer for all replicas of a tensor of torch, so the address of the buffer tells them; what it
    copied from devices tells by its bits. An undistributed tensor is the same on all devices.
    """
    values: list[torch.Tensor] = []
    converted: dict[int, torch.Tensor] = {}
    with uncaught():
        for part in ttnn.get_device_tensors(host):
            address = _bytes_of(part).data_ptr()
            if address not in converted:
                converted[address] = one_of(ttnn.to_torch(part), converted.values())
            values.append(converted[address])
    return values * devices if len(values) == 1 else values


def host_padding(host: ttnn.Tensor) -> Padding:
    """Return what fills up the tiles of a host tensor, as its first part has it."""
    below, right = ends_inside(view_of(host))
    if not below and not right:
        return Padding()
    with uncaught():
        part = ttnn.get_device_tensors(host)[0].to_torch_with_padded_shape()
    rows, columns = (*(1, 1), *host.shape)[-2:]
    return Padding(_only(part[..., rows:, :columns]), _only(part[..., columns:]))


def _only(values: torch.Tensor) -> float | None:
    """Return the one number that all are; None if there is no such."""
    numbers = values.unique()
    return float(numbers) if numbers.numel() == 1 else None


def copy_into(host: ttnn.Tensor, values: ttnn.Tensor) -> None:
    """Overwrite a host tensor with another one of the same shape, dtype and layout."""
    with uncaught():
        for target, part in zip(ttnn.get_device_tensors(host), ttnn.get_device_tensors(values), strict=True):
            _bytes_of(target).copy_(_bytes_of(part))


def give_back_zeros(host: ttnn.Tensor, source: torch.Tensor) -> None:
    """Leave a host tensor of zeros, a copy of ``source``, without memory of its own."""
    storage = source.untyped_storage()
    borrowed = range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    with uncaught():
        for part in ttnn.get_device_tensors(host):
            memory = _bytes_of(part)
            if memory.data_ptr() not in borrowed and not bits_of(memory).count_nonzero():
                heap.give_back_zeros(memory.data_ptr(), memory.nbytes)


def _bytes_of(part: ttnn.Tensor) -> torch.Tensor:
    """Return the memory of one device's part of a host tensor."""
    (coordinate,) = part.tensor_topology().mesh_coords()
    return torch.from_dlpack(part.host_buffer().get_shard(coordinate))
