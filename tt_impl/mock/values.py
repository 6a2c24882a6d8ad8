"""The golden values of device tensors: one torch tensor per device, kept by buffer.

A buffer has an id that views share and that is never given twice, so a view sees what was written in place through
another one, and a preallocated output overwrites what was there. Devices that hold the same value may share one
torch tensor; nothing is ever changed in place, only replaced.

Floating point of all device formats is kept as bfloat16 or float32: every value of bfp8_b and bfp4_b is a bfloat16
(7 or 3 bits of mantissa, the same exponents). Integers are kept as int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
import ttnn

from refsim.errors import RefsimError
from tt_impl.intercept import uncaught

INTEGERS = (ttnn.uint8, ttnn.uint16, ttnn.int32, ttnn.uint32)
RANGES = {
    ttnn.uint8: (0, 2**8 - 1),
    ttnn.uint16: (0, 2**16 - 1),
    ttnn.uint32: (0, 2**32 - 1),
    ttnn.int32: (-(2**31), 2**31 - 1),
}
BLOCK_FLOATS = (ttnn.bfloat8_b, ttnn.bfloat4_b)


class ShadowError(RefsimError):
    """The shadow cannot tell the value of a tensor: names the operation."""

    op = ""
    """Full name of the operation (``ttnn.add``), where one is to blame."""


class MissingRule(ShadowError):
    """No rule says what the operation computes."""

    def __init__(self, op: str) -> None:
        super().__init__(f"{op} has no shadow rule.")
        self.op = op


class RefusedOption(ShadowError):
    """There is a rule, but it does not know an argument of this call."""

    def __init__(self, op: str, what: str) -> None:
        super().__init__(f"the shadow rule of {op} does not know {what}.")
        self.op, self.what = op, what


class UnseenValue(ShadowError):
    """An operation reads memory whose value nobody saw being written."""

    def __init__(self, op: str, what: str) -> None:
        super().__init__(
            f"{op} reads a {what} without golden value: "
            "it was made before the shadow began or by a function that the shadow does not see."
        )
        self.op = op


def round_to(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """``value`` as a tensor of ``dtype`` stores it; block floats by ttnn's own host conversion."""
    if dtype in INTEGERS:
        return _whole(value, dtype)
    if dtype == ttnn.float32:
        return value.float()
    if dtype == ttnn.bfloat16:
        return value.to(torch.bfloat16)
    if dtype in BLOCK_FLOATS:
        with uncaught():
            host = ttnn.from_torch(value.float(), dtype=dtype, layout=ttnn.TILE_LAYOUT)
            return ttnn.to_torch(host).to(torch.bfloat16)
    raise ShadowError(f"dtype {dtype.name} has no shadow.")


def _whole(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Integers as int64. Sums and products of 32 bits wrap around; of what else does not fit nobody knows."""
    whole, (low, high) = value.to(torch.int64), RANGES[dtype]
    if whole.numel() == 0 or (int(whole.min()) >= low and int(whole.max()) <= high):
        return whole
    if value.is_floating_point() or dtype not in (ttnn.int32, ttnn.uint32):
        raise ShadowError(f"values from {whole.min()} to {whole.max()} do not fit {dtype.name}; clamp them before.")
    return torch.remainder(whole - low, 2**32) + low


class Shards(Sequence):
    """One tensor's values, by device in row-major order; ``shards[i]`` is float32 (int64 for integers).

    Devices that share one stored tensor get one object, as long as somebody holds it.
    """

    def __init__(self, stored: Sequence[torch.Tensor], shape: Sequence[int], mesh_shape: tuple[int, int]) -> None:
        self.stored = list(stored)
        self.shape = tuple(shape)
        self.mesh_shape = mesh_shape
        self._widened: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, device: int) -> torch.Tensor:  # type: ignore[override]  # devices are not sliced
        stored = self.stored[device]
        value = self._widened.get(id(stored))
        if value is None:
            value = stored.reshape(self.shape)
            value = value.float() if value.is_floating_point() else value
            self._widened[id(stored)] = value
        return value

    def key(self, device: int) -> int:
        """Equal for two devices that share one torch tensor."""
        return id(self.stored[device])

    def groups(self, cluster_axis: int | None) -> list[list[int]]:
        """Devices that communicate along a mesh axis, in ring order; all of them if no axis is given."""
        rows, columns = self.mesh_shape
        if cluster_axis is None:
            return [list(range(rows * columns))]
        if cluster_axis == 1:
            return [[row * columns + column for column in range(columns)] for row in range(rows)]
        return [[row * columns + column for row in range(rows)] for column in range(columns)]


@dataclass
class Store:
    """Values by buffer; a buffer allocated where another one was tells that the other is gone."""

    values: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    at_address: dict[tuple, int] = field(default_factory=dict)

    def read(self, tensor: ttnn.Tensor, reader: str) -> Shards:
        values = self.values.get(tensor.buffer_unique_id())
        if values is None:
            raise UnseenValue(reader, _describe(tensor))
        stored = [values[rank] for rank in ranks_of(tensor)]
        if stored[0].numel() != math.prod(tensor.shape):
            raise ShadowError(f"{reader} reads a {_describe(tensor)}, but its buffer holds {tuple(stored[0].shape)}.")
        return Shards(stored, tuple(tensor.shape), tuple(tensor.device().shape))

    def write(self, tensor: ttnn.Tensor, shards: Sequence[torch.Tensor], writer: str) -> None:
        """Store ``shards``, rounded to the dtype of ``tensor``; they must have its shape."""
        ranks = ranks_of(tensor)
        if len(shards) != len(ranks):
            raise ShadowError(f"{writer}: {len(shards)} golden values for the {len(ranks)} devices of its output.")
        rounded: dict[int, torch.Tensor] = {}
        values = {}
        for rank, shard in zip(ranks, shards, strict=True):
            if tuple(shard.shape) != tuple(tensor.shape):
                raise ShadowError(f"{writer} gives a {_describe(tensor)}, but its shadow rule {tuple(shard.shape)}.")
            if id(shard) not in rounded:
                rounded[id(shard)] = round_to(shard, tensor.dtype)
            values[rank] = rounded[id(shard)]
        self.put(tensor, values)

    def put(self, tensor: ttnn.Tensor, values: dict[int, torch.Tensor]) -> None:
        buffer = tensor.buffer_unique_id()
        place = (tensor.device().id(), str(tensor.memory_config().buffer_type), tensor.buffer_address())
        if math.prod(tensor.shape):  # two empty tensors may have one address
            former = self.at_address.get(place)
            if former is not None and former != buffer:
                self.values.pop(former, None)
            self.at_address[place] = buffer
        self.values[buffer] = values


def ranks_of(tensor: ttnn.Tensor) -> list[int]:
    """Row-major numbers of the devices that hold a part of ``tensor``."""
    columns = tensor.device().shape[1]
    return [coord[0] * columns + coord[1] for coord in tensor.device_coords()]


def _describe(tensor: ttnn.Tensor) -> str:
    return f"{tensor.dtype.name} tensor of shape {tuple(tensor.shape)}"


def host_tensor(tensor: ttnn.Tensor, shards: Shards) -> ttnn.Tensor:
    """What copying ``tensor`` to the host gives: a host tensor of its dtype, layout and distribution."""
    with uncaught():
        parts = [
            ttnn.from_torch(_for_ttnn(shards[i], tensor.dtype), dtype=tensor.dtype, layout=tensor.layout)
            for i in range(len(shards))
        ]
        if len(parts) == 1:
            return parts[0]
        host = ttnn.from_host_shards(parts, ttnn.MeshShape(*shards.mesh_shape))
        host.update_tensor_topology(tensor.tensor_topology())
        return host


def _for_ttnn(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    if dtype in INTEGERS:
        return value.to(torch.int32)
    return value.to(torch.bfloat16) if dtype == ttnn.bfloat16 else value


def host_shards(host: ttnn.Tensor, devices: int) -> list[torch.Tensor]:
    """Torch values of a host tensor, one per device; replicas share one torch tensor.

    ttnn keeps one host buffer for all replicas, so the address of the buffer tells them. An undistributed tensor is
    the same on all devices.
    """
    values: list[torch.Tensor] = []
    converted: dict[int, torch.Tensor] = {}
    with uncaught():
        for part in ttnn.get_device_tensors(host):
            address = _host_address(part)
            if address not in converted:
                converted[address] = ttnn.to_torch(part)
            values.append(converted[address])
    return values * devices if len(values) == 1 else values


def _host_address(part: ttnn.Tensor) -> int:
    """Where the bytes of one device's part of a host tensor lie."""
    (coordinate,) = part.tensor_topology().mesh_coords()
    return torch.from_dlpack(part.host_buffer().get_shard(coordinate)).data_ptr()
