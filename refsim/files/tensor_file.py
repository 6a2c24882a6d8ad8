"""A safetensors file whose tensors are views of the mapped file: what is not touched is not read. And its writer.

The library checks the header. The bytes are mapped here, because every tensor that ``safe_open(path, "pt")`` hands out
leaves two Python objects behind for good (safetensors 0.6 to 0.8), and a rank may read thousands of files in its life.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Hashable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_PIECE_BYTES = 1 << 16
_COARSE_NS = 50_000_000
"""A file's time is that of the last tick of Linux's clock, of which there are 100 a second or more."""


@dataclass(frozen=True)
class _Header:
    """What a file says of itself: texts, and of each tensor what the format says; where its bytes begin and end.

    Attributes:
        finite: what has been looked through and holds neither NaN nor infinity, as whoever looked calls it.
    """

    metadata: dict[str, str]
    tensors: dict[str, dict[str, Any]]
    data_at: int
    size: int
    finite: set[Hashable] = field(default_factory=set)

    @classmethod
    def of(cls, path: str | Path) -> _Header:
        """Read it; the library checks it."""
        with safe_open(path, "numpy") as checked, open(path, "rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(file.read(length))
            tensors: dict[str, dict[str, Any]] = {name: header[name] for name in checked.keys()}
            size = max((one["data_offsets"][1] for one in tensors.values()), default=0)
            return cls(checked.metadata() or {}, tensors, _LENGTH_BYTES + length, _LENGTH_BYTES + length + size)


def _cached_header(path: str | Path) -> _Header:
    """Return the header that was kept, unless the file has changed since, or so lately that its time may not tell."""
    now = os.stat(path)
    if abs(time.time_ns() - max(now.st_mtime_ns, now.st_ctime_ns)) < _COARSE_NS:
        return _Header.of(path)
    return _known(str(path), now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@lru_cache(maxsize=8)
def _known(path: str, *_: int) -> _Header:
    return _Header.of(path)


class TensorFile:
    """The tensors of one file by name; the file stays mapped while it, or one of them, is in use.

    A tensor is a view on private memory: who writes into it changes neither the file nor what others read.

    Args:
        again: it is one that a rank asks for in job after job, as weights are: its header is kept, and read anew once
            somebody has written to the file.

    Attributes:
        metadata: the texts that the file carries beside its tensors.
        finite: what has been found to hold neither NaN nor infinity, by whatever name; kept with the header.

    Raises:
        ValueError: it is no safetensors file, or cannot be mapped.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | Path, *, again: bool = False) -> None:
        try:
            header = _cached_header(path) if again else _Header.of(path)
            self.metadata = header.metadata
            self.finite = header.finite
            self._tensors = header.tensors
            self._data_at = header.data_at
            self._bytes = torch.from_file(str(path), shared=False, size=header.size, dtype=torch.uint8).numpy()
        except (SafetensorError, RuntimeError) as e:  # torch's, of mapping
            raise ValueError(str(e)) from e

    @property
    def names(self) -> KeysView[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name]["shape"])

    def dtype(self, name: str) -> str:
        """Return the dtype as the file calls it, such as ``BF16``."""
        return self._tensors[name]["dtype"]

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor with a storage of its own; ``ValueError`` for a dtype that torch does not have.

        A storage is what a device buffer is known by, and torch's ``Generator.set_state`` reads from its beginning.
        """
        if self.dtype(name) not in _DTYPES:
            raise ValueError(f"'{name}' is {self.dtype(name)}")
        dtype = _DTYPES[self.dtype(name)]
        start, stop = (self._data_at + offset for offset in self._tensors[name]["data_offsets"])
        if start == stop:
            return torch.empty(self.shape(name), dtype=dtype)
        data = torch.frombuffer(self._bytes, dtype=torch.uint8, count=stop - start, offset=start)
        if start % dtype.itemsize:  # the format allows a header of any length, torch does not view across
            data = data.clone()
        return data.view(dtype).view(self.shape(name))

    def all(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return {name: self[name] for name in self.names}


def write(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors into a binary file as safetensors does, straight from where they lie.

    The library copies each into bytes first, wants it contiguous, and refuses those that share memory.

    Raises:
        ValueError: a dtype that the format does not have.
    """
    header: dict[str, dict[str, Any]] = {}
    end = 0
    # the largest elements first, as the library does: then all of them are aligned
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))
    for name, tensor in ordered.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"'{name}' is {tensor.dtype}")
        offsets = [end, end + tensor.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for tensor in ordered.values():
        for piece in _pieces(tensor.detach()):
            file.write(piece.reshape(-1).view(torch.uint8).numpy())


def _pieces(x: Tensor) -> Iterator[Tensor]:
    """Yield what lies in one piece of memory, in order; small tensors are copied where they do not."""
    if x.is_contiguous() or x.nbytes <= _PIECE_BYTES:
        yield x.contiguous()
    else:
        for part in x:
            yield from _pieces(part)
