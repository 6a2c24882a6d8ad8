"""The golden values of device tensors: one torch tensor per device, kept by buffer.

A buffer has an id that views share and that is never given twice, so a view sees what was written in place through
another one, and a preallocated output overwrites what was there; :mod:`tt_impl.mock.storage.memory` says how a view of
another shape reads it. Devices that hold the same value may share one torch tensor; nothing is ever changed in
place, only replaced. How numbers are kept and rounded: :mod:`tt_impl.mock.storage.dtypes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import ref

import torch
import ttnn

from tt_impl.mock.storage.dtypes import RANGES, round_to
from tt_impl.mock.storage.errors import ShadowError, UnknownPadding, UnseenValue
from tt_impl.mock.storage.held import Held, Window
from tt_impl.mock.storage.lazy import Deferred
from tt_impl.mock.storage.memory import View


class Shards(Sequence):
    """One tensor's values, by device in row-major order; ``shards[i]`` is float32 (int64 for integers).

    Devices that share one stored tensor get one object, as long as somebody holds it. ``dtype`` is that of the
    tensor on the devices, where there is one.
    """

    def __init__(
        self,
        stored: Sequence[torch.Tensor] | Callable[[], Sequence[torch.Tensor]],
        shape: Sequence[int],
        mesh_shape: tuple[int, int],
        dtype: ttnn.DataType | None = None,
        source: Deferred | None = None,
        devices: int = 0,
    ) -> None:
        """``stored`` may be a function that gives the values; ``source`` and the number of devices come with it."""
        self._stored = stored if callable(stored) else list(stored)
        self.shape = tuple(shape)
        self.mesh_shape = mesh_shape
        self.dtype = dtype
        self.source = source
        self._devices = len(self._stored) if isinstance(self._stored, list) else devices
        self._widened: dict[int, ref[torch.Tensor]] = {}

    @property
    def stored(self) -> list[torch.Tensor]:
        """The values as they are kept: bfloat16, float32 or int64."""
        if not isinstance(self._stored, list):
            self._stored = list(self._stored())
        return self._stored

    def __len__(self) -> int:
        return self._devices

    def __getitem__(self, device: int) -> torch.Tensor:  # type: ignore[override]  # devices are not sliced
        stored = self.stored[device]
        known = self._widened.get(id(stored))
        value = None if known is None else known()
        if value is None:
            value = stored if stored.dtype == torch.int64 else stored.float()
            value = value if value.shape == self.shape else value.reshape(self.shape)
            self._widened[id(stored)] = ref(value)
        return value

    def as_stored(self, device: int) -> torch.Tensor:
        """The values of one device in the dtype they are kept in: bfloat16, float32 or int64."""
        stored = self.stored[device]
        return stored if stored.shape == self.shape else stored.reshape(self.shape)

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


@dataclass(frozen=True)
class _Written:
    """A tensor that an operation writes: all that its values need to know."""

    view: View
    ranks: list[int]
    dtype: ttnn.DataType
    what: str
    writer: str

    def rounded(self, shards: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """One value per device, rounded once for devices that share it."""
        if len(shards) != len(self.ranks):
            count = len(self.ranks)
            raise ShadowError(f"{self.writer}: {len(shards)} golden values for the {count} devices of its output.")
        rounded: dict[int, torch.Tensor] = {}
        for shard in shards:
            if id(shard) not in rounded:
                if tuple(shard.shape) != self.view.shape:
                    raise ShadowError(f"{self.writer} gives a {self.what}, but its rule {tuple(shard.shape)}.")
                rounded[id(shard)] = round_to(shard, self.dtype)
        return {rank: rounded[id(shard)] for rank, shard in zip(self.ranks, shards, strict=True)}


@dataclass
class Store:
    """Values by buffer; a buffer allocated where another one was tells that the other is gone."""

    values: dict[int, Held] = field(default_factory=dict)
    at_address: dict[tuple, int] = field(default_factory=dict)
    windows: dict[tuple, Window] = field(default_factory=dict)

    def read(self, tensor: ttnn.Tensor, reader: str) -> Shards:
        held, mesh_shape, ranks = self._found(tensor, reader)
        view, what = view_of(tensor), describe(tensor)
        window = self.windows.get(_place(tensor)) if self.windows else None

        def seen() -> list[torch.Tensor]:
            stored = held.seen_by(view if window is None else window.whole, ranks)
            if stored is None:
                raise UnknownPadding(reader, what)
            return stored if window is None else window.cut(stored)

        stored = seen if held.source is not None else seen()
        return Shards(stored, view.shape, mesh_shape, tensor.dtype, held.source, len(ranks))

    def held(self, tensor: ttnn.Tensor, reader: str) -> Held:
        """What the buffer of ``tensor`` holds; ``reader`` is the operation that asks."""
        return self._found(tensor, reader)[0]

    def _found(self, tensor: ttnn.Tensor, reader: str) -> tuple[Held, tuple[int, int], list[int]]:
        """What the buffer holds, the shape of the mesh, and the devices that ``tensor`` is on."""
        mesh_shape = mesh_shape_of(tensor)
        held, ranks = self.values.get(tensor.buffer_unique_id()), _ranks(tensor, mesh_shape)
        if held is None or not held.ranks.issuperset(ranks):
            raise UnseenValue(reader, describe(tensor))
        return held, mesh_shape, ranks

    def add_window(self, tensor: ttnn.Tensor, window: Window) -> None:
        """``tensor`` shares the buffer of another one, as a part of it."""
        self.windows[_place(tensor)] = window

    def write(
        self, tensor: ttnn.Tensor, shards: Sequence[torch.Tensor], writer: str, padding: float | None = None
    ) -> None:
        """Store ``shards``, rounded to the dtype of ``tensor``; they must have its shape.

        ``padding`` is what fills the tiles beyond the shape, if that is known.
        """
        written = _Written(view_of(tensor), ranks_of(tensor), tensor.dtype, describe(tensor), writer)
        self.put(tensor, Held(written.view, written.rounded(shards), padding))

    def fill(self, tensor: ttnn.Tensor, value: torch.Tensor, writer: str) -> None:
        """Store ``value`` for all devices of ``tensor``."""
        self.write(tensor, [value] * len(ranks_of(tensor)), writer)

    def defer(self, tensor: ttnn.Tensor, operation: Deferred, output: int, writer: str) -> None:
        """The same for an output of an operation that is computed when somebody reads it."""
        written = _Written(view_of(tensor), ranks_of(tensor), tensor.dtype, describe(tensor), writer)

        def values() -> dict[int, torch.Tensor]:
            shards = operation.values()[output]
            with operation.named():
                return written.rounded(shards)

        self.put(tensor, Held(written.view, values, None, operation, written.ranks))

    def put(self, tensor: ttnn.Tensor, held: Held) -> None:
        """``tensor`` holds this now; devices of its buffer that are no part of it keep what they have."""
        buffer = tensor.buffer_unique_id()
        former = self.values.get(buffer)
        window = self.windows.get(_place(tensor)) if self.windows else None
        if window is not None and former is not None:
            held = window.pasted(former, held)
        if former is None:
            self._forget_former(tensor, buffer)
        else:
            self._keep_others(former, held)
        self.values[buffer] = held

    def _forget_former(self, tensor: ttnn.Tensor, buffer: int) -> None:
        """The buffer that had this address before is gone."""
        if 0 in tuple(tensor.shape) or tensor.buffer_address() == 0:
            return  # empty tensors share an address, as do all that are made while a graph is captured without dispatch
        place = (tensor.device().id(), tensor.memory_config().buffer_type, tensor.buffer_address())
        other = self.at_address.get(place)
        if other is not None:
            self.values.pop(other, None)
        self.at_address[place] = buffer

    @staticmethod
    def _keep_others(former: Held, held: Held) -> None:
        others = list(former.ranks - held.ranks)
        seen = former.seen_by(held.view, others) if others else None
        if seen is not None:
            held.values.update(zip(others, seen, strict=True))
            held.ranks.update(others)


class Golden:
    """The golden values of one program.

    ``emulated`` counts by operation what only resembles the device: random numbers, for one.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.emulated: Counter[str] = Counter()

    def emulate(self, tensor: ttnn.Tensor, values: Sequence[torch.Tensor], writer: str) -> ttnn.Tensor:
        """Store values that only resemble the device's; gives the tensor."""
        self.emulated[writer] += 1
        self.store.write(tensor, values, writer)
        return tensor


def filled(tensor: ttnn.Tensor, number: float) -> torch.Tensor:
    """``number`` in the shape of ``tensor``; NaN stands for memory that nobody has written, also of integers."""
    integer = tensor.dtype in RANGES
    if integer and number != number:
        low, high = RANGES[tensor.dtype]
        number = -1 if low < 0 else high
    return torch.full(tuple(tensor.shape), number, dtype=torch.int64 if integer else torch.float32)


def view_of(tensor: ttnn.Tensor) -> View:
    """How ``tensor`` lies in memory."""
    tile = None if tensor.layout == ttnn.ROW_MAJOR_LAYOUT else tuple(tensor.tile.tile_shape)
    return View(tuple(tensor.shape), tuple(tensor.padded_shape), tile)


def mesh_shape_of(tensor: ttnn.Tensor) -> tuple[int, int]:
    """Shape of the mesh that ``tensor`` is on."""
    rows, columns = tensor.device().shape
    return rows, columns


def ranks_of(tensor: ttnn.Tensor) -> list[int]:
    """Row-major numbers of the devices that hold a part of ``tensor``."""
    return _ranks(tensor, mesh_shape_of(tensor))


def _ranks(tensor: ttnn.Tensor, mesh_shape: tuple[int, int]) -> list[int]:
    rows, columns = mesh_shape
    coords = tensor.device_coords()
    if len(coords) == rows * columns:
        return list(range(rows * columns))
    return [coord[0] * columns + coord[1] for coord in coords]


def _place(tensor: ttnn.Tensor) -> tuple:
    """What tells a window from the rest of its buffer."""
    return tensor.buffer_unique_id(), tensor.buffer_address(), tuple(tensor.shape)


def describe(tensor: ttnn.Tensor) -> str:
    """Its dtype and shape, for messages."""
    return f"{tensor.dtype.name} tensor of shape {tuple(tensor.shape)}"
