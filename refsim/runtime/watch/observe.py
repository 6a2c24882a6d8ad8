"""What a run computed on the way: the local part of named tensors on every rank, for whoever judges layer by layer.

A layer observes its tensors under the name its weights have in the checkpoint (``device.observe``), which is also the
name of the module that computes the same in diffusers or transformers. Nothing is kept unless ``RunOptions.observe``
names a folder; then every rank leaves one safetensors file there, ``rank3.safetensors``.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from refsim.files.tensor_file import TensorFile
from refsim.runtime.tensor import MeshTensor, Partial, Placement, Shard

Streams = Sequence[MeshTensor | None]
_SMALL_BYTES = 1 << 16


@dataclass(frozen=True)
class Observed:
    """One observed tensor of one rank.

    Attributes:
        name: of the layer, as its weights are called: what it gave. ``NAME.in`` is what it took, ``NAME.term`` this
            rank's term of the sum it gave, ``NAME+0`` and ``NAME+1`` what a block added to image and prompt, and
            ``...@8:16`` stands for these features of it alone.
        call: how often this rank had called the layer before (a layer may serve image and prompt in turn).
        local: the rank's part.
        cut: dim that a group cuts, by group; a group that is not named cuts nothing.
        partial: the tensor is one term of a sum over tp.
    """

    name: str
    call: int
    local: Tensor
    cut: dict[str, int]
    partial: bool


class Observations:
    """What one rank has observed; kept in memory until :meth:`write`."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._tensors: dict[str, Tensor] = {}
        self._placements: dict[str, dict[str, Placement]] = {}

    def add(self, name: str, x: MeshTensor) -> None:
        """Keep a copy of the local part, as it is now."""
        key = f"{name}#{self._calls[name]}"
        self._calls[name] += 1
        self._tensors[key] = x.local.detach().to(copy=True, memory_format=torch.contiguous_format)
        self._placements[key] = {group: x.placement(group) for group in ("sp", "tp")}

    def write(self, folder: str, rank: int) -> None:
        """Leave everything in the folder's file of this rank: what is small one after the other, in one tensor for
        each dtype, since the library takes its time for every tensor.
        """
        tensors: dict[str, Tensor] = {}
        small: dict[str, list[Tensor]] = defaultdict(list)
        sizes = Counter[str]()
        placed = {}
        for key, x in self._tensors.items():
            dtype = str(x.dtype)
            places = self._placements[key]
            at = dtype if x.nbytes <= _SMALL_BYTES else key
            placed[key] = {
                "cut": {group: place.dim for group, place in places.items() if isinstance(place, Shard)},
                "partial": any(isinstance(place, Partial) for place in places.values()),
                "at": [at, sizes[at], list(x.shape)],
            }
            sizes[at] += x.numel()
            if at == key:
                tensors[key] = x
            else:
                small[dtype].append(x.view(-1))
        tensors |= {dtype: torch.cat(values) for dtype, values in small.items()}
        metadata = {"placements": json.dumps(placed)}
        safetensors.torch.save_file(tensors, Path(folder, f"rank{rank}.safetensors"), metadata)


def read(folder: str | Path, ranks: int) -> list[list[Observed]]:
    """Return what every rank of a run left in the folder, in rank order.

    Raises:
        FileNotFoundError: a rank left nothing.
    """
    return [_read(Path(folder, f"rank{rank}.safetensors")) for rank in range(ranks)]


def _read(path: Path) -> list[Observed]:
    file = TensorFile(path)
    observed = []
    values = file.all()
    for key, placed in json.loads(file.metadata["placements"]).items():
        at, start, shape = placed["at"]
        name, _, call = key.rpartition("#")
        local = values[at].view(-1)[start : start + math.prod(shape)].view(shape)
        observed.append(Observed(name, int(call), local, placed["cut"], placed["partial"]))
    return observed
