"""Checkpoint and pipeline folders in a temporary directory: built on first use, removed when nobody needs them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from parity import checkpoints, folders, pipelines
from refsim import scratch


@dataclass
class CheckpointStore:
    """Folders by model and seed; a context manager."""

    _held: scratch.Folder | None = None
    _root: Path | None = None
    _known: dict[tuple[str, int], Path] = field(default_factory=dict)

    def __enter__(self) -> CheckpointStore:
        self._held = scratch.Folder("parity")
        self._root = Path(self._held.name)
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.cleanup()
        self._known.clear()

    def folder(self, model: str, seed: int) -> Path:
        """The folder of a model or of a pipeline, built on first use; KeyError if there is none of that name."""
        key = (model, seed)
        if key not in self._known:
            path = self._root / f"{model}-{seed}"
            if model in pipelines.PIPELINES:
                pipelines.build(model, seed, path)
            else:
                folders.build(checkpoints.MODELS[model], seed, path)
            self._known[key] = path
        return self._known[key]

    def drop(self, model: str, seed: int) -> None:
        """Remove the folder, which no later case needs."""
        path = self._known.pop((model, seed), None)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
