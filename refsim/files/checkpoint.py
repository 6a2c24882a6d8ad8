"""A diffusers checkpoint folder, read lazily and strictly.

The folder holds ``config.json`` and safetensors, in one file or many with an index. Files are memory-mapped and only
the asked-for slice is touched, so ranks on one host share one copy in the page cache. Nothing is unpickled, and no
file outside the folder is opened, but for the blobs that a snapshot in Hugging Face's cache consists of.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, KeysView, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.finite import first_not_finite
from refsim.base.schema import read_object
from refsim.files.folder import ModelFolder, class_name_of, file_of, find_weights, read_config
from refsim.files.lora import Change, merged, read_loras
from refsim.files.tensor_file import TensorFile

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
Range = tuple[int, int]


class Checkpoint:
    """The config, names, shapes and lazily opened files of one folder.

    Args:
        folder: its path, or what was found there, which is not looked at again.
        variant: which of several sets of weights is meant, see :func:`refsim.files.folder.find_weights`.
        part: it is a part of a pipeline, whose parts need not all have the variant.
        lora: files that change its weights, see :mod:`refsim.files.lora`.

    Raises:
        UserError: the folder or its config is missing or malformed; an index or a file of weights, on first use.
    """

    def __init__(
        self,
        folder: str | Path | ModelFolder,
        variant: str | None = None,
        *,
        part: bool = False,
        lora: tuple[str, ...] = (),
    ) -> None:
        self.config: dict[str, Any]
        if isinstance(folder, ModelFolder):
            self.folder = folder.path
            self.config = folder.config
            self._weights = folder.weights
        else:
            self.folder = Path(folder)
            self._weights = ""
            self.config = read_config(self.folder)
        self._variant = variant
        self._part = part
        self._lora = lora
        self._files: dict[str, TensorFile] = {}

    @property
    def class_name(self) -> str:
        return class_name_of(self.config)

    def as_config(self, kind: Any) -> Any:
        """Return ``kind.from_dict(config)``; where it refuses a value, the sentence says in which folder."""
        try:
            return kind.from_dict(self.config)
        except UserError as e:
            raise UserError(f"checkpoint '{self.folder}': {e.with_flags}") from e

    @property
    def names(self) -> KeysView[str]:
        return self._where.keys()

    def file(self, name: str) -> TensorFile:
        """Return the file that holds a tensor."""
        return self._files[self._where[name]]

    @cached_property
    def changes(self) -> dict[str, list[Change]]:
        """Return what LoRA files change, by the name of the weight."""
        if not self._lora:
            return {}
        shapes = {name: self.file(name).shape(name) for name in self.names}
        return read_loras(self._lora, shapes, f"checkpoint '{self.folder}'")

    @cached_property
    def _where(self) -> dict[str, str]:
        """Open the files of weights; return in which of them each tensor is."""
        weights = self._weights or find_weights(self.folder, self._variant, or_plain=self._part)
        if not weights.endswith(".json"):
            self._open(weights)
            return dict.fromkeys(self._files[weights].names, weights)
        index = file_of(self.folder, weights)
        weight_map = read_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise UserError(f"'{index}' has no weight_map from tensor names to file names.")
        for file in sorted(set(weight_map.values())):
            self._open(file)
        for name, file in weight_map.items():
            if name not in self._files[file].names:
                raise UserError(f"'{index}' says that {file} holds '{name}', but it does not.")
        return weight_map

    def _open(self, file: str) -> None:
        path = file_of(self.folder, file)
        try:
            self._files[file] = TensorFile(path, again=True)
        except (OSError, ValueError) as e:
            raise UserError(f"'{path}' is not a readable safetensors file ({e}).") from e


@dataclass
class _Taken:
    """What was taken of a checkpoint so far, in all dtypes."""

    names: set[str] = field(default_factory=set)
    copied_bytes: int = 0


class Weights:
    """A checkpoint as a model consumes it: by name, by shape, by slice; what is left over is an error.

    Args:
        dtype: floating-point tensors are converted to it.
        meta: hand out meta tensors of the right shape and read nothing; used to validate a folder.
        replica: this rank's number among those that take the same slices, and how many they are. Each of them looks
            for NaN and infinity in its own part of a slice, which reads every weight once instead of once a rank.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, *, meta: bool = False, replica: tuple[int, int] = (0, 1)
    ) -> None:
        self.checkpoint = checkpoint
        self._dtype = dtype
        self._meta = meta
        self._replica = replica
        self._taken = _Taken()

    @property
    def copied_bytes(self) -> int:
        """Return the bytes of what was taken so far that is no view of the file, being converted or padded."""
        return self._taken.copied_bytes

    @property
    def names(self) -> Set[str]:
        """Return the names of all tensors in the folder."""
        return self.checkpoint.names

    def to(self, dtype: torch.dtype) -> Weights:
        """Hand out the same tensors in another dtype (what a model keeps in fp32); what is used counts for both."""
        other = Weights(self.checkpoint, dtype, meta=self._meta, replica=self._replica)
        other._taken = self._taken
        return other

    def alone(self) -> Weights:
        """Hand out the same tensors to one that takes rows of its own, as of a table of positions: it looks at all
        of them itself; what is used counts for both.
        """
        other = Weights(self.checkpoint, self._dtype, meta=self._meta)
        other._taken = self._taken
        return other

    def take(self, name: str, shape: tuple[int, ...], *ranges: Range | None) -> Tensor:
        """Return a slice of the tensor ``name``, which must have ``shape``.

        Args:
            ranges: (start, stop) per leading dim, None for all of it; features beyond the shape are zeros (padding).

        Raises:
            UserError: the tensor is missing, has another shape, is not of floating point (8 bits are quantised), or
                holds NaN or infinity once converted.
        """
        if name not in self.checkpoint.names:
            raise UserError(f"checkpoint '{self.checkpoint.folder}' lacks '{name}', which its config asks for.")
        file = self.checkpoint.file(name)
        actual = file.shape(name)
        dtype = file.dtype(name)
        if actual != shape:
            raise UserError(f"'{name}' in checkpoint '{self.checkpoint.folder}' has shape {actual}, not {shape}.")
        if dtype not in _DTYPES.values():
            raise UserError(
                f"'{name}' in checkpoint '{self.checkpoint.folder}' is {dtype}; weights are one of "
                f"{', '.join(_DTYPES.values())}."
            )
        self._taken.names.add(name)
        wanted = _wanted(shape, ranges)
        real = [(min(a, size), min(b, size)) for (a, b), size in zip(wanted, shape, strict=True)]
        changes = self.checkpoint.changes.get(name)
        if real != wanted or dtype != _DTYPES.get(self._dtype) or changes:
            self._taken.copied_bytes += math.prod(b - a for a, b in wanted) * self._dtype.itemsize
        if self._meta:
            return torch.empty([b - a for a, b in wanted], dtype=self._dtype, device="meta")
        tensor = file[name][tuple(slice(a, b) for a, b in real)]
        tensor = (merged(tensor, changes, real) if changes else tensor).to(self._dtype)
        self._check_finite(file, name, tensor, real, changed=bool(changes))
        missing = [(b - a) - (rb - ra) for (a, b), (ra, rb) in zip(wanted, real, strict=True)]
        if any(missing):
            tensor = F.pad(tensor, [n for count in reversed(missing) for n in (0, count)])
        return tensor

    def _check_finite(self, file: TensorFile, name: str, tensor: Tensor, ranges: list[Range], *, changed: bool) -> None:
        """Raise ``UserError`` if a slice, the ``ranges`` of a tensor, holds NaN or infinity in the storage dtype.

        The parts of all replicas are the whole slice: part i ends where part i + 1 begins. What an earlier job has
        found finite is not looked at again, unless the slice has ``changed`` on its way here from the file.
        """
        number, count = self._replica
        rows = len(tensor)
        first = rows * number // count
        last = rows * (number + 1) // count
        looked_at = name, self._dtype, first, last, *ranges
        if not changed and looked_at in file.finite:
            return
        index = first_not_finite(tensor[first:last])
        if index is not None:
            starts = [start for start, _ in ranges]
            starts[0] += first
            place = tuple(start + i for start, i in zip(starts, index, strict=True))
            raise UserError(
                f"'{name}' in checkpoint '{self.checkpoint.folder}' is not finite at {place} as "
                f"{str(self._dtype).removeprefix('torch.')}; weights must be finite numbers of that dtype."
            )
        if not changed:
            file.finite.add(looked_at)

    def leave(self, *prefixes: str) -> None:
        """Say that tensors with these prefixes are not needed here (an autoencoder's encoder when decoding)."""
        self._taken.names |= {name for name in self.checkpoint.names if name.startswith(prefixes)}

    def finish(self, model: str) -> None:
        """Raise ``UserError`` if the checkpoint holds tensors that the model did not consume."""
        unused = sorted(self.checkpoint.names - self._taken.names)
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise UserError(
                f"checkpoint '{self.checkpoint.folder}' holds '{unused[0]}'{more}, which {model} with this "
                "config.json does not use."
            )


class ShapeWeights(Weights):
    """Weights without a checkpoint: whatever a model asks for is there, in the shape it asks for.

    For predictions, for memory, for a benchmark of a model that was never saved. A folder that does exist is checked
    with ``Weights(meta=True)``, which is strict about names and shapes.

    Args:
        make: makes a tensor of a size; by default it is a meta tensor, which holds nothing.

    Attributes:
        shapes: the whole shape of every tensor that was asked for, by name.
        bytes_of: bytes handed out of each of them, all slices and dtypes together, in the order they were asked for.
    """

    def __init__(self, dtype: torch.dtype, make: Callable[[list[int]], Tensor] | None = None) -> None:
        self._dtype = dtype
        self._make = make or (lambda size: torch.empty(size, dtype=dtype, device="meta"))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.bytes_of: Counter[str] = Counter()

    @property
    def names(self) -> Set[str]:
        """Return the names that were asked for so far."""
        return set(self.shapes)

    @property
    def parameters(self) -> int:
        """Return how many numbers the tensors that were asked for have, whole."""
        return sum(map(math.prod, self.shapes.values()))

    def to(self, dtype: torch.dtype) -> ShapeWeights:
        """Hand out tensors in another dtype; they are counted together."""
        other = copy.copy(self)
        other._dtype = dtype
        return other

    def alone(self) -> ShapeWeights:
        """Hand out the same tensors: no values are looked at."""
        return self

    def take(self, name: str, shape: tuple[int, ...], *ranges: Range | None) -> Tensor:
        """Return a tensor of the size of this slice; features beyond the shape are there as well (padding)."""
        self.shapes[name] = tuple(shape)
        tensor = self._make([stop - start for start, stop in _wanted(shape, ranges)]).to(self._dtype)
        self.bytes_of[name] += tensor.numel() * tensor.element_size()
        return tensor

    def leave(self, *prefixes: str) -> None:
        """Leave nothing, since nothing is there until it is asked for."""

    def finish(self, model: str) -> None:
        """Accept everything, since nothing can be left over."""


def _wanted(shape: tuple[int, ...], ranges: tuple[Range | None, ...]) -> list[Range]:
    """Return (start, stop) of every dim, from those given for the leading ones."""
    whole = [(0, size) for size in shape]
    return [asked or all_ for asked, all_ in zip((*ranges, *[None] * len(shape)), whole, strict=False)]
