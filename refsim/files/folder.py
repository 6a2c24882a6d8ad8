"""What a model's folder holds, told from its names and its JSON alone: no torch is loaded and no weights are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from refsim.base.schema import read_object

_STEMS = ("diffusion_pytorch_model", "model")
"""What diffusers and transformers call the file of weights."""
_VARIANT = re.compile(rf"(?:{'|'.join(_STEMS)})(?:\.safetensors\.index\.([^.]+)\.json|\.([^.-]+)\.safetensors)")
_PICKLES = (".bin", ".ckpt", ".pt", ".pth")
_OTHER = {
    "model_index.json": "a whole pipeline",
    "scheduler_config.json": "a scheduler",
    "tokenizer_config.json": "a tokenizer",
    "adapter_config.json": "an adapter",
}
"""What a folder is that has this file and no config.json."""


@dataclass(frozen=True)
class ModelFolder:
    """What a model's folder was found to hold; handed on in place of its path, so that a run looks at it once.

    Attributes:
        path: the folder, or a single file.
        config: its ``config.json``.
        weights: the name of the file of weights, or of the index of several.
        opened: of a single file, the file and what its layout is; None of a folder.
    """

    path: Path
    config: dict[str, Any] = field(repr=False)
    weights: str
    opened: Any = field(default=None, repr=False)

    @property
    def class_name(self) -> str:
        return class_name_of(self.config)


def read_config(folder: Path) -> dict[str, Any]:
    """Read a model's ``config.json``; ``UserError`` says what the folder is if it is no model."""
    refuse_unreadable(folder, "checkpoint")
    if not _is(Path.is_dir, folder):
        what = "is not a folder" if _is(Path.exists, folder) else "does not exist"
        raise UserError(f"checkpoint '{folder}' {what}; give a folder saved by diffusers.")
    if not (folder / "config.json").exists():
        for name, what in _OTHER.items():
            if (folder / name).is_file():
                raise UserError(f"'{folder}' is {what}; this needs one model, a folder with config.json.")
        if snapshots := sorted(path.parent for path in folder.glob("snapshots/*/*.json")):
            raise UserError(f"'{folder}' is the cache of a repository; give its folder '{snapshots[0]}'.")
    return read_object(file_of(folder, "config.json"))


def file_of(folder: Path, file: str) -> Path:
    """Return the path of a file that a folder is to hold.

    Raises:
        UserError: it is not there, or leads out of the folder. A link of a snapshot in Hugging Face's cache may lead
            to the blobs of the same repository.
    """
    path = folder / file
    if Path(file).name == file:
        refuse_unreadable(path, "the checkpoint's file")
    try:
        whole = folder.resolve()
        real = path.resolve()
        inside = Path(file).name == file and (real.is_relative_to(whole) or _is_blob(whole, real))
    except (OSError, ValueError, RuntimeError):  # no name of a file, or links in a circle
        inside = False
    if not inside and Path(file).name == file and path.is_symlink():
        raise UserError(
            f"'{path}' is a link to a file outside of the folder, which is not opened; put the file itself there."
        )
    if not inside:
        raise UserError(f"checkpoint '{folder}' names '{file}', which is not a file inside the folder.")
    if not _is(Path.is_file, path):
        raise UserError(f"checkpoint '{folder}' lacks the file '{file}'.")
    return path


def _is_blob(folder: Path, file: Path) -> bool:
    """Whether ``models--X/snapshots/REVISION/...`` is the folder, and the file one of ``models--X/blobs``."""
    repositories = (p.parent for p in folder.parents if p.name == "snapshots" and p.parent.name.startswith("models--"))
    return any(file.is_relative_to(repository / "blobs") for repository in repositories)


def find_weights(folder: Path, variant: str | None = None, *, or_plain: bool = False) -> str:
    """Return the name of the file of weights, or of the index of several.

    Args:
        variant: as diffusers knows it: ``fp16`` for ``diffusion_pytorch_model.fp16.safetensors``.
        or_plain: where there is no such variant, take the weights that are none, as diffusers does with a pipeline.

    Raises:
        UserError: there is none; the sentence says what there is instead.
    """
    names = [*_names(variant), *(_names(None) if or_plain else ())]
    weights = next((name for name in names if (folder / name).exists() or (folder / name).is_symlink()), None)
    if weights is not None:
        return weights
    there = sorted(path.name for path in folder.iterdir())
    has = [f"--variant {next(filter(None, match.groups()))}" for match in map(_VARIANT.fullmatch, there) if match]
    plain = any(name in there for name in _names(None))
    if variant and (has or plain):
        would = " or ".join(filter(None, [", ".join(dict.fromkeys(has)), plain and "no variant at all"]))
        raise UserError(f"checkpoint '{folder}' has no weights of --variant {variant}; it has those of {would}.")
    if has:
        raise UserError(f"checkpoint '{folder}' has weights of a variant only; give {' or '.join(dict.fromkeys(has))}.")
    for name in there:
        if name.endswith(_PICKLES):
            raise UserError(
                f"checkpoint '{folder}' has its weights in {name}, a pickle, which is never opened because it can run "
                "code; save the model again with save_pretrained(..., safe_serialization=True)."
            )
    raise UserError(f"checkpoint '{folder}' lacks the file '{names[1]}'.")


def _names(variant: str | None) -> list[str]:
    """Return what the weights of a variant may be called, or their index."""
    tag = f".{variant}" if variant else ""
    return [name for stem in _STEMS for name in (f"{stem}.safetensors.index{tag}.json", f"{stem}{tag}.safetensors")]


def class_name_of(config: dict[str, Any]) -> str:
    """Return the model's class as diffusers writes it, or the first of transformers' architectures."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return str(config.get("_class_name", first))


def is_file(path: Path) -> bool:
    """Whether a checkpoint is one file and no folder."""
    return _is(Path.is_file, path)


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    """Return ``kind(path)``, or False for a name that no file can have."""
    try:
        return kind(path)
    except (OSError, ValueError):
        return False
