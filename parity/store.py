"""Checkpoint and pipeline folders in a temporary directory: built on first use, removed when nobody needs them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from parity import checkpoints, folders, pipelines
from refsim import scratch

Key = tuple[str, int, bool]
"""Model, seed, and whether weights are stored in bf16."""


@dataclass
class CheckpointStore:
    """Folders by model and seed; a context manager."""

    _held: scratch.Folder | None = None
    _root: Path | None = None
    _known: dict[Key, Path] = field(default_factory=dict)

    def __enter__(self) -> CheckpointStore:
        self._held = scratch.Folder("parity")
        self._root = Path(self._held.name)
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.cleanup()
        self._known.clear()

    def folder(self, model: str, seed: int, *, in_bf16: bool = False) -> Path:
        """The folder of a model or of a pipeline, built on first use; KeyError if there is none of that name.

        Args:
            in_bf16: with the weights of a transformer of diffusers stored in bf16, as published folders of large models
                are. Every rank that computes in bf16 then maps them where it would convert all that it takes.
        """
        key = (model, seed, in_bf16)
        if key not in self._known:
            path = self._root / f"{model}-{seed}{'-bf16' if in_bf16 else ''}"
            if in_bf16:
                convert(self.folder(model, seed), path)
            elif model in pipelines.PIPELINES:
                pipelines.build(model, seed, path)
            else:
                folders.build(checkpoints.MODELS[model], seed, path)
            self._known[key] = path
        return self._known[key]

    def drop(self, model: str, seed: int) -> None:
        """Remove folders that no later case needs."""
        for in_bf16 in (False, True):
            path = self._known.pop((model, seed, in_bf16), None)
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)


def convert(folder: Path, into: Path) -> None:
    """Write a folder of a diffusers model anew with its weights in bf16, but for what diffusers keeps in fp32."""
    from safetensors.torch import load_file, save_file

    into.mkdir(parents=True)
    for path in sorted(folder.glob("*.json")):
        (into / path.name).write_bytes(path.read_bytes())
    model_class = folders.diffusers_class(json.loads((folder / "config.json").read_text())["_class_name"])
    for path in sorted(folder.glob("*.safetensors")):
        state = {
            name: x if folders.stays_fp32(model_class, name) or not x.is_floating_point() else x.bfloat16()
            for name, x in load_file(path).items()
        }
        save_file(state, into / path.name)
