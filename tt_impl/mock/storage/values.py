"""The values of device tensors: one torch tensor per device, by buffer.

A buffer has an id that views share and that is never given twice, so a view sees what was written in place through
another one, and a preallocated output overwrites what was there; :mod:`tt_impl.mock.storage.views` says how a view of
another shape reads it. Devices that hold the same value may share one torch tensor; nothing is ever changed in
place, only replaced. How numbers are kept and rounded: :mod:`tt_impl.mock.storage.dtypes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import ref

import torch
import ttnn

from tt_impl.mock.storage.buffers import BufferValues, Window
from tt_impl.mock.storage.constants import as_in_c, constant, elementwise
from tt_impl.mock.storage.dtypes import BLOCK_FLOATS, RANGES, round_to
from tt_impl.mock.storage.errors import ShadowError, UnknownPadding, UnseenValue
from tt_impl.mock.storage.not_finite import INFINITY, NAN, not_finite
from tt_impl.mock.storage.padding import Padding, PaddingRead
from tt_impl.mock.storage.views import View, shared
from tt_impl.trace.buffers import address_of, buffer_of, per_core


class Shards(Sequence):
    """One tensor's values, by device in row-major order; ``shards[i]`` is float32 (int64 for integers).

    Devices that share one stored tensor get one object, as long as somebody holds it. ``dtype`` is that of the
    tensor on the devices, where there is one.
    """

    def __init__(
        self,
        stored: Sequence[torch.Tensor],
        shape: Sequence[int],
        mesh_shape: tuple[int, int],
        dtype: ttnn.DataType | None = None,
    ) -> None:
        self.stored = list(stored)
        """The values as they are kept: bfloat16, float32 or int64."""
        self.shape = tuple(shape)
        self.mesh_shape = mesh_shape
        self.dtype = dtype
        self._widened: dict[int, ref[torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, device: int) -> torch.Tensor:  # type: ignore[override]  # devices are not sliced
        stored = self.stored[device]
        known = self._widened.get(id(stored))
        value = None if known is None else known()
        if value is None:
            value = self.shaped(stored if stored.dtype == torch.int64 else elementwise(torch.Tensor.float, stored))
            self._widened[id(stored)] = ref(value)
        return value

    def as_stored(self, device: int) -> torch.Tensor:
        """Return the values of one device in the dtype they are kept in: bfloat16, float32 or int64."""
        return self.shaped(self.stored[device])

    def shaped(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` in the shape of the tensor: itself, if that is its own."""
        return value if value.shape == self.shape else value.reshape(self.shape)

    def groups(self, cluster_axis: int | None) -> list[list[int]]:
        """Return the devices that communicate along a mesh axis, in ring order; all of them if no axis is given."""
        rows, columns = self.mesh_shape
        if cluster_axis is None:
            return [list(range(rows * columns))]
        if cluster_axis == 1:
            return [[row * columns + column for column in range(columns)] for row in range(rows)]
        return [[row * columns + column for row in range(rows)] for column in range(columns)]

    def ring_size(self, cluster_axis: int | None) -> int:
        """Return how many devices each of these groups has."""
        return len(self) if cluster_axis is None else self.mesh_shape[cluster_axis]

    def places(self, cluster_axis: int | None) -> list[int]:
        """Return the place of every device in its group."""
        places = {device: place for group in self.groups(cluster_axis) for place, device in enumerate(group)}
        return [places[device] for device in range(len(self))]


@dataclass
class Store:
    """Values by buffer; a buffer allocated where another one was tells that the other is gone.

    Attributes:
        at_address: the buffer that was written last at a place.
        windows: tensors that are a part of their buffer.
        replaying: a trace is under way, which writes where it did when it was captured.
        lost: buffers that such a trace wrote over.
        waiting: operations are still to read buffers that may be gone by now.
    """

    values: dict[int, BufferValues] = field(default_factory=dict)
    at_address: dict[tuple, int] = field(default_factory=dict)
    windows: dict[tuple, Window] = field(default_factory=dict)
    replaying: bool = False
    lost: set[int] = field(default_factory=set)
    waiting: bool = False

    def read(self, tensor: ttnn.Tensor, reader: str) -> Shards:
        """Return the values of ``tensor`` for the operation ``reader``."""
        mesh_shape = mesh_shape_of(tensor)
        ranks = _ranks(tensor, mesh_shape)
        view = view_of(tensor)
        window = self._window(tensor)
        stored = self.buffer(tensor, reader, ranks).seen_by(view if window is None else window.whole, ranks)
        if stored is None:
            raise UnknownPadding(reader, describe(tensor))
        return Shards(stored if window is None else window.cut(stored), view.shape, mesh_shape, tensor.dtype)

    def buffer(self, tensor: ttnn.Tensor, reader: str, ranks: list[int] | None = None) -> BufferValues:
        """Return what the buffer of ``tensor``, which is on devices ``ranks``, holds for the operation ``reader``."""
        values = self.values.get(buffer_of(tensor))
        if values is None or not values.values.keys() >= set(ranks_of(tensor) if ranks is None else ranks):
            raise UnseenValue(reader, describe(tensor), buffer_of(tensor) in self.lost)
        return values

    def padding(self, tensor: ttnn.Tensor, reader: str) -> float | None:
        """Return the one number that fills up the tiles of ``tensor``, None if nobody knows, or if there are two."""
        values = self.buffer(tensor, reader)
        return values.padding.single(values.view)

    def fills(self, tensor: ttnn.Tensor) -> Padding:
        """Return what fills up the tiles of ``tensor``, below and on the right; unknown if it was written otherwise."""
        values = self.values.get(buffer_of(tensor))
        if values is None or (1, 1, *values.view.shape)[-2:] != (1, 1, *tensor.shape)[-2:]:
            return Padding()
        return values.padding

    def rows_within(self, tensor: ttnn.Tensor) -> int:
        """Return how many rows of ``tensor`` are data, where it is a view of whole tiles of a tensor with fewer."""
        view = view_of(tensor)
        values = self.values.get(buffer_of(tensor))
        rows = view.rows()[0][-2]
        if values is None or values.view.tile != view.tile or values.view.rows()[1] != view.rows()[1]:
            return rows
        shape = values.view.rows()[0]
        return min(rows, shape[-2]) if (*shape[:-2], shape[-1]) == (*view.shape[:-2], view.shape[-1]) else rows

    def add_window(self, tensor: ttnn.Tensor, window: Window) -> None:
        """Note that ``tensor`` shares the buffer of another one, as a part of it."""
        self.windows[_place(tensor)] = window

    def _window(self, tensor: ttnn.Tensor) -> Window | None:
        return self.windows.get(_place(tensor)) if self.windows else None

    def write(
        self,
        tensor: ttnn.Tensor,
        shards: Sequence[torch.Tensor],
        writer: str,
        padding: Padding | float | None = None,
    ) -> None:
        """Store ``shards``, rounded to the dtype of ``tensor``; they must have its shape.

        ``padding`` is what fills the tiles beyond the shape, if that is known.
        """
        ranks = ranks_of(tensor)
        if len(shards) != len(ranks):
            raise ShadowError(f"{writer}: {len(shards)} values for the {len(ranks)} devices of its output.")
        view = view_of(tensor)
        dtype = tensor.dtype
        # Numbers that share an exponent follow each other in memory: in a tile that lies transposed, down a column.
        by_columns = dtype in BLOCK_FLOATS and len(view.shape) > 1 and tensor.tile.transpose_within_face

        def rounded(shard: torch.Tensor) -> torch.Tensor:
            if shard.shape != view.shape:
                raise ShadowError(f"{writer} gives a {describe(tensor)}, but its rule {tuple(shard.shape)}.")
            return round_to(shard.mT.contiguous(), dtype).mT if by_columns else round_to(shard, dtype)

        values = dict(zip(ranks, shared(rounded, shards), strict=True))
        self._put(tensor, BufferValues(view, values, Padding.of(padding)))

    def fill(self, tensor: ttnn.Tensor, value: torch.Tensor, writer: str, padding: float | None = None) -> None:
        """Store ``value`` for all devices of ``tensor``."""
        self.write(tensor, [value] * len(ranks_of(tensor)), writer, padding)

    def _put(self, tensor: ttnn.Tensor, values: BufferValues) -> None:
        """Have ``tensor`` hold this now; devices of its buffer that are no part of it keep what they have."""
        buffer = buffer_of(tensor)
        former = self.values.get(buffer)
        if former is None:
            self._forget_former(tensor, buffer, values.view)
        else:
            if (window := self._window(tensor)) is not None:
                values = window.pasted(former, values)
            _keep_others(former, values)
        self.values[buffer] = values

    def heir(self, tensor: ttnn.Tensor) -> int | None:
        """Return the buffer that holds values like those of ``tensor`` where that was, if there is one."""
        buffer = self.at_address.get(_address(tensor))
        values = self.values.get(buffer) if buffer is not None else None
        return buffer if values is not None and values.view == view_of(tensor) else None

    def forget(self, meshes: set[int]) -> None:
        """Forget all that lies on meshes with these ids."""
        for place in [place for place in self.at_address if place[0] in meshes]:
            self.values.pop(self.at_address.pop(place), None)

    def _forget_former(self, tensor: ttnn.Tensor, buffer: int, view: View) -> None:
        """Forget the buffer that had this address before: it is gone."""
        if 0 in view.shape or not address_of(tensor) or per_core(tensor):
            return  # empty tensors share an address, as do all that are made while a graph is captured without dispatch
        place = _address(tensor)
        former = self.at_address.get(place)
        if former is not None and not self.waiting and self.values.pop(former, None) is not None and self.replaying:
            self.lost.add(former)
        self.at_address[place] = buffer


def _keep_others(former: BufferValues, values: BufferValues) -> None:
    others = list(former.values.keys() - values.values.keys())
    seen = former.seen_by(values.view, others) if others else None
    if seen is not None:
        values.values.update(zip(others, seen, strict=True))


class ProgramValues:
    """The values of one program.

    ``emulated`` counts by operation what only resembles the device: random numbers, for one. What operations make of
    NaN and infinity, and read of padding, is noted if ``takes_notes`` says that somebody asks for it.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.emulated: Counter[str] = Counter()
        self.takes_notes = False
        self._not_finite: set[str] = set()
        self._passes_nan_on = False
        self.padding_reads: list[PaddingRead] = []
        self.kernel_warnings: list[tuple[str, bool]] = []
        """What the simulator of TT-Lang warns of, and whether the mock chose the kernel's grid."""

    def look_at(self, made: Iterable[Sequence[torch.Tensor]], inputs: Iterable[Sequence[torch.Tensor]]) -> None:
        """Note if an operation made NaN of inputs without, or infinity of finite ones; each by device."""
        kinds = not_finite(made)
        if kinds:
            before = not_finite(inputs)
            self._not_finite |= kinds - (before | {INFINITY} if before else before)
            self._passes_nan_on |= NAN in kinds & before

    def take_not_finite(self) -> tuple[tuple[str, ...], bool]:
        """Return what was made of inputs without since this was asked for, and whether NaN of inputs was passed on."""
        noted = tuple(sorted(self._not_finite)), self._passes_nan_on
        self._not_finite = set()
        self._passes_nan_on = False
        return noted

    def take_padding_reads(self) -> tuple[PaddingRead, ...]:
        """Return what operations have read of tiles' padding since this was asked for."""
        noted = self.padding_reads
        self.padding_reads = []
        return tuple(noted)

    def take_kernel_warnings(self) -> tuple[tuple[str, bool], ...]:
        """Return what has been warned of since this was asked for, everything once."""
        noted = self.kernel_warnings
        self.kernel_warnings = []
        return tuple(dict.fromkeys(noted))

    def emulate(self, tensor: ttnn.Tensor, values: Sequence[torch.Tensor], writer: str) -> ttnn.Tensor:
        """Store values that only resemble the device's, and return the tensor."""
        self.emulated[writer] += 1
        self.store.write(tensor, values, writer)
        return tensor


def filled(tensor: ttnn.Tensor, number: float) -> torch.Tensor:
    """Return ``number`` in the shape of ``tensor``; NaN stands for memory that nobody has written, also of integers."""
    integer = tensor.dtype in RANGES
    if integer and number != number:
        low, high = RANGES[tensor.dtype]
        number = -1 if low < 0 else high
    return constant(as_in_c(number), shape_of(tensor), torch.int64 if integer else torch.float32)


def view_of(tensor: ttnn.Tensor) -> View:
    """Tell how ``tensor`` lies in memory."""
    tile = None if tensor.layout == ttnn.ROW_MAJOR_LAYOUT else tuple(tensor.tile.tile_shape)
    return View(shape_of(tensor), sizes(tensor.padded_shape), tile)


def shape_of(tensor: ttnn.Tensor) -> tuple[int, ...]:
    """Return the shape of ``tensor`` without its padding."""
    return sizes(tensor.shape)


def sizes(shape: ttnn.Shape) -> tuple[int, ...]:
    """Return the sizes of ``shape``; ttnn takes five times as long to iterate over it."""
    return tuple([shape[dim] for dim in range(shape.rank)])


def mesh_shape_of(tensor: ttnn.Tensor) -> tuple[int, int]:
    """Return the shape of the mesh that ``tensor`` is on."""
    shape = tensor.device().shape
    return shape[0], shape[1]


def ranks_of(tensor: ttnn.Tensor) -> list[int]:
    """Return the row-major numbers of the devices that hold a part of ``tensor``."""
    return _ranks(tensor, mesh_shape_of(tensor))


def _ranks(tensor: ttnn.Tensor, mesh_shape: tuple[int, int]) -> list[int]:
    rows, columns = mesh_shape
    coords = tensor.device_coords()
    if len(coords) == rows * columns:
        return list(range(rows * columns))
    return [coord[0] * columns + coord[1] for coord in coords]


def _address(tensor: ttnn.Tensor) -> tuple:
    return tensor.device().id(), tensor.memory_config().buffer_type, address_of(tensor)


def _place(tensor: ttnn.Tensor) -> tuple:
    """Return what tells a window from the rest of its buffer."""
    return buffer_of(tensor), address_of(tensor), shape_of(tensor)


def describe(tensor: ttnn.Tensor) -> str:
    """Name dtype and shape of a tensor, for messages."""
    return f"{tensor.dtype.name} tensor of shape {shape_of(tensor)}"
