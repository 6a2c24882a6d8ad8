"""Checkpoint and pipeline folders in a temporary directory: built on first use, removed when nobody needs them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from parity.cases import checkpoints, model_folders, pipelines
from refsim.base import scratch


@dataclass
class CheckpointStore:
    """Folders by model and seed; a context manager."""

    _scratch: scratch.Folder | None = None
    _known: dict[tuple[str | None, int, bool], Path] = field(default_factory=dict)

    def __enter__(self) -> CheckpointStore:
        self._scratch = scratch.Folder("parity")
        return self

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
        self._known.clear()

    def folder(self, model: str, seed: int, *, in_bf16: bool = False) -> Path:
        """Return the folder of a model or a pipeline, built on first use; KeyError if there is none of that name.

        Args:
            in_bf16: with the weights of a transformer of diffusers stored in bf16, as published folders of large models
                are. A rank maps what is stored in its own dtype and shares it with the others; it converts the rest.
        """
        key = (model, seed, in_bf16)
        if key not in self._known:
            path = Path(self._scratch.name, f"{model}-{seed}{'-bf16' if in_bf16 else ''}")
            if model in pipelines.PIPELINES:
                pipelines.build(model, seed, path)
            else:
                model_folders.build(replace(checkpoints.MODELS[model], in_bf16=in_bf16), seed, path)
            self._known[key] = path
        return self._known[key]

    def drop(self, model: str, seed: int) -> None:
        """Remove folders that no later case needs, with a drafter's that of its target."""
        known = checkpoints.MODELS.get(model)
        for name in (model, known and known.target):
            for in_bf16 in (False, True):
                path = self._known.pop((name, seed, in_bf16), None)
                if path is not None:
                    shutil.rmtree(path, ignore_errors=True)
