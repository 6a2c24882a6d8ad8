"""Checkpoints in one safetensors file with the names of a model's own authors, read under diffusers' names.

Which files a model's folder can read, and how, says the function that its spec names as ``single_file``.
"""

from __future__ import annotations

from collections.abc import KeysView
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from refsim.files.checkpoint import Checkpoint
from refsim.files.folder import ModelFolder
from refsim.files.tensor_file import TensorFile


@dataclass(frozen=True)
class Piece:
    """Where a weight stands: in tensor ``name``, of ``parts`` with equally many rows the one numbered ``part``.

    ``swapped``: its second half of rows comes first.
    """

    name: str
    part: int = 0
    parts: int = 1
    swapped: bool = False


@dataclass(frozen=True)
class Layout:
    """What a file is: the ``config.json`` of a folder, and where each weight stands, by diffusers' names."""

    config: dict[str, Any]
    pieces: dict[str, Piece]


class RenamedFile(TensorFile):
    """A file's tensors under other names."""

    def __init__(self, file: TensorFile, pieces: dict[str, Piece]) -> None:
        self._file = file
        self._pieces = pieces
        self.metadata = file.metadata
        self.finite = set()

    @property
    def names(self) -> KeysView[str]:
        return self._pieces.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        piece = self._pieces[name]
        shape = self._file.shape(piece.name)
        return shape if piece.parts == 1 else (shape[0] // piece.parts, *shape[1:])

    def dtype(self, name: str) -> str:
        return self._file.dtype(self._pieces[name].name)

    def __getitem__(self, name: str) -> Tensor:
        piece = self._pieces[name]
        rows = self.shape(name)[0]
        whole = self._file[piece.name]
        if piece.swapped:
            return torch.cat(whole.chunk(2)[::-1])
        return whole if piece.parts == 1 else whole[piece.part * rows : (piece.part + 1) * rows]


class SingleFile(Checkpoint):
    """A checkpoint that is one file of another layout."""

    def __init__(self, folder: ModelFolder, lora: tuple[str, ...] = ()) -> None:
        self.folder = folder.path
        self.config = folder.config
        self._lora = lora
        file, layout = folder.opened
        self._renamed = RenamedFile(file, layout.pieces)

    def file(self, name: str) -> RenamedFile:
        return self._renamed

    @cached_property
    def _where(self) -> dict[str, str]:
        return dict.fromkeys(self._renamed.names, self.folder.name)


def open_file(path: Path) -> TensorFile:
    """Return a file of tensors; ``UserError`` if it is none."""
    refuse_unreadable(path, "checkpoint")
    try:
        return TensorFile(path)
    except (OSError, ValueError) as e:
        raise UserError(
            f"checkpoint '{path}' is not a readable safetensors file ({e}); give one, or a folder saved by diffusers."
        ) from e
