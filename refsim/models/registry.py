"""The models there are: one line per folder, and those of installed packages (entry points ``refsim.models``)."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from refsim.base.extensions import Catalog, catalog
from refsim.base.schema import read_object
from refsim.files.folder import ModelFolder, class_name_of, find_weights, is_file, read_config
from refsim.models.figures import Figure, Pair
from refsim.models.spec import KINDS, Kind, ModelSpec, Published, resolve

if TYPE_CHECKING:
    from refsim.files.checkpoint import Checkpoint, Weights
    from refsim.runtime.device import Device

_PIXELS = re.compile(r"(?:(\d{1,5})x)?(\d{1,5})x(\d{1,5})")
_PATCH = 2  # rows and columns of a latent that make a token, in every transformer here
FOLDERS = (
    "sd35",
    "wan22",
    "cogvideox",
    "flux1",
    "vae",
    "vae_wan",
    "vae_cogvideox",
    "vae_flux2",
    "vae_mochi",
    "clip",
    "t5",
    "qwen3_moe",
    "dflash",
    "qwenimage",
    "flux2",
    "mochi",
    "motif",
    "ltx",
)


def builtin() -> tuple[ModelSpec, ...]:
    """Return the specs of the project's own folders."""
    return tuple(importlib.import_module(f"refsim.models.{folder}.spec").SPEC for folder in FOLDERS)


def models() -> Catalog[ModelSpec]:
    """Return the specs of all models."""
    return _models(tuple(sys.path))  # a rank is handed the launcher's path after this module was first imported


@cache
def _models(path: tuple[str, ...]) -> Catalog[ModelSpec]:
    return catalog(builtin(), "refsim.models", ModelSpec, lambda spec: spec.claims)


def get(name: str) -> ModelSpec:
    """Return the spec of a model by its folder's name, or any other name it claims."""
    spec = models().find(name)
    if spec is None:
        known = ", ".join(spec.name for spec in models().all)
        raise UserError(f"model '{name}' does not exist; choose one of {known}{models().notes}.")
    return spec


def by_class_name(class_name: str) -> ModelSpec | None:
    """Return the spec whose checkpoints say ``class_name``, or None."""
    spec = models().find(class_name)
    return spec if spec is not None and class_name in spec.class_names else None


def by_pipeline(class_name: str) -> ModelSpec | None:
    """Return the spec whose pipeline folders say ``class_name``, or None."""
    spec = models().find(class_name)
    return spec if spec is not None and class_name in spec.pipeline_classes else None


def published(kind: Kind = "transformer") -> dict[str, Published]:
    """Return the published models of one kind, by name."""
    return {p.name: p for spec in models().all if spec.kind == kind for p in spec.published}


def spec_of(model: Published) -> ModelSpec:
    """Return the spec of a published model, or of one whose configuration was changed."""
    return get(model.class_name)


def get_published(name: str) -> tuple[ModelSpec, Published]:
    """Return a published model of any kind, and its spec."""
    spec = get(name)
    for model in spec.published:
        if model.name == name:
            return spec, model
    raise UserError(f"'{name}' is not a published model; choose one of {', '.join(p.name for p in spec.published)}.")


def measured() -> list[Figure | Pair]:
    """Return what others measured of all models."""
    return [each for spec in models().all if spec.figures for each in resolve(spec.figures)]


def figures() -> dict[tuple[str, str, str, str], Figure]:
    """Return the figures that ranges are made of, by (published model, size, mesh, parallel)."""
    judged = (f for f in measured() if isinstance(f, Figure) and f.judged)
    return {(f.model, f.size, f.mesh, f.parallel): f for f in judged}


def find(model: str) -> tuple[str, Published]:
    """Return a published transformer by name, or the transformer of a checkpoint folder by its class."""
    known = published()
    if model in known:
        get(model)  # refuses a contested name
        return model, known[model]
    folder = Path(model)
    for path in (folder / "config.json", folder / "transformer" / "config.json"):
        refuse_unreadable(path, "configuration")
        if path.is_file():
            return model, _of_checkpoint(path)
    raise UserError(f"'{model}' is neither a folder with config.json nor one of {', '.join(known)}{models().notes}.")


def _of_checkpoint(path: Path) -> Published:
    """Return the first published model of the same class, with the folder's configuration and the class's defaults."""
    config = read_object(path)
    class_name = class_name_of(config)
    for model in published().values():
        if model.class_name == class_name:
            kind = spec_of(model).config_class
            kind.from_dict(config)
            unsaid = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
            return model.but(name=str(path.parent), config=unsaid | config, parameters=0, experts=1)
    names = ", ".join(sorted({m.class_name for m in published().values()}))
    raise UserError(f"{path} is a {class_name}; choose one of {names}{models().notes}.")


def latent(model: Published, size: str | None) -> tuple[str, tuple[int, ...]]:
    """Return what a size is called and the latent it comes to; None is the last published one.

    Args:
        size: a name such as ``480p``, or pixels such as ``1024x768`` (height first) or, with frames, ``81x480x832``.

    Raises:
        UserError: the model has no such size, or makes neither pictures nor videos.
    """
    if spec_of(model).latent is None or not (size or model.sizes):
        raise UserError(f"{model.name} has no size of a picture or video of its own; choose a transformer.")
    size = size or list(model.sizes)[-1]
    if pixels := _PIXELS.fullmatch(size):
        return size, _of_pixels(model, *(None if n is None else int(n) for n in pixels.groups()))
    if size not in model.sizes:
        known = f"choose one of {', '.join(model.sizes)}, or" if model.sizes else "give"
        raise UserError(
            f"size '{size}' is not known for this model; {known} pixels: HEIGHTxWIDTH, FRAMESxHEIGHTxWIDTH."
        )
    return size, model.sizes[size]


def _of_pixels(model: Published, frames: int | None, height: int | None, width: int | None) -> tuple[int, ...]:
    """Return the latent of a picture or of a video, whose frames are the published ones where none are given."""
    spec = spec_of(model)
    temporal, spatial = _ratios(model)
    step = spatial * (_PATCH if spec.kind == "transformer" else 1)
    if not (height and width) or height % step or width % step:
        raise UserError(f"--height and --width are multiples of {step} for {model.name}, not {height} and {width}.")
    picture = height // spatial, width // spatial
    if spec.latent == "image":
        if frames is not None:
            raise UserError(f"{model.name} makes pictures; leave out --frames.")
        return picture
    if frames is None:
        if not model.sizes:
            raise UserError(f"{model.name} makes videos; give --frames, or --size FRAMESxHEIGHTxWIDTH.")
        return list(model.sizes.values())[-1][0], *picture
    if frames < 1 or (frames - 1) % temporal:
        near = max(frames // temporal, 1) * temporal + 1
        raise UserError(f"--frames is one more than a multiple of {temporal} for {model.name}, such as {near}.")
    whole = (frames - 1) // temporal + 1
    return whole + -whole % (model.config.get("patch_size_t") or 1), *picture


def _ratios(model: Published) -> tuple[int, int]:
    """Return the frames and the pixels per latent frame and row."""
    if model.ratios is not None:
        return model.ratios
    spec = spec_of(model)
    if spec.kind == "vae_decoder":
        return spec.config_class.from_dict(model.config).ratios
    if not model.decoder:
        raise UserError(
            f"{model.name} has no autoencoder here that says how many pixels a latent has; "
            f"choose --size {' or '.join(model.sizes)}."
        )
    spec, decoder = get_published(model.decoder)
    return spec.config_class.from_dict(decoder.config).ratios


def find_model(checkpoint: Checkpoint, *kinds: Kind) -> tuple[Any, Any]:
    """Return (model class, its configuration) for the class that the folder's ``config.json`` names.

    Args:
        kinds: what it may be, see :func:`spec_of_checkpoint`.
    """
    spec = spec_of_checkpoint(checkpoint, *kinds)
    return spec.model_class, checkpoint.as_config(spec.config_class)


def spec_of_checkpoint(checkpoint: Checkpoint, *kinds: Kind) -> ModelSpec:
    """Return the spec of a folder's model; ``UserError`` if there is none.

    Args:
        kinds: what it may be; without any, all but a drafter, which runs beside its target only.
    """
    return _spec_in(checkpoint.folder, checkpoint.class_name, kinds)


def _spec_in(folder: Path, class_name: str, kinds: tuple[Kind, ...]) -> ModelSpec:
    wanted = kinds or tuple(kind for kind in KINDS if kind != "drafter")
    spec = by_class_name(class_name)
    if spec is None or spec.kind not in wanted:
        able = (spec for spec in models().all if spec.kind in wanted and not spec.timing_only)
        known = ", ".join(name for spec in able for name in spec.class_names)
        raise UserError(f"checkpoint '{folder}' is a {class_name}; supported: {known}{models().notes}.")
    return spec


def refuse_timing_only(name: str) -> None:
    """Raise ``UserError`` for the class or the published name of a model that there is no numeric model of."""
    spec = models().find(name)
    if spec is not None and spec.timing_only:
        raise UserError(
            f"{name} has no numeric model here: only `refsim time` and `refsim plan` know it (timing only)."
        )


def open_checkpoint(
    path: str | Path | ModelFolder, variant: str | None = None, lora: tuple[str, ...] = ()
) -> Checkpoint:
    """Return the checkpoint in a folder, or in a single file of a layout that a model's spec can read.

    Args:
        path: where it is, or what :func:`look_at` found there.
        variant, lora: see :class:`refsim.files.checkpoint.Checkpoint`.

    Raises:
        UserError: there is none.
    """
    from refsim.files.checkpoint import Checkpoint

    if not isinstance(path, ModelFolder) and is_file(Path(path)):
        path = _look_into(Path(path), variant)
    if not isinstance(path, ModelFolder) or path.opened is None:
        return Checkpoint(path, variant, lora=lora)
    from refsim.files.single_file import SingleFile

    return SingleFile(path, lora)


def _look_into(path: Path, variant: str | None) -> ModelFolder:
    """Return what a single file holds; ``UserError`` if no model's spec can read it."""
    from refsim.files.single_file import open_file

    if variant is not None:
        raise UserError(f"checkpoint '{path}' is a single file, which has no variants; leave out --variant.")
    file = open_file(path)
    readers = [spec for spec in models().all if spec.single_file is not None]
    for spec in readers:
        if (layout := resolve(spec.single_file or "")(file)) is not None:
            return ModelFolder(path, layout.config, path.name, (file, layout))
    known = ", ".join(name for spec in readers for name in spec.class_names)
    raise UserError(f"checkpoint '{path}' is a file of no known layout ({known}); give a folder saved by diffusers.")


def look_at(folder: str | Path | ModelFolder, variant: str | None, *kinds: Kind, part: bool = False) -> ModelFolder:
    """Return what a folder, or a single file, holds; what was found already is returned as it is.

    It reads names and JSON only, so that a user hears of a mistake before options are looked at and torch is loaded.

    Args:
        variant, part: see :class:`refsim.files.checkpoint.Checkpoint`.
        kinds: see :func:`spec_of_checkpoint`.

    Raises:
        UserError: no option could make it run: missing, of another class, without safetensors.
    """
    if isinstance(folder, ModelFolder):
        return folder
    folder = Path(folder)
    if is_file(folder):
        holds = _look_into(folder, variant)
        _spec_in(folder, holds.class_name, kinds)
        return holds
    if not folder.exists():
        refuse_timing_only(str(folder))
    config = read_config(folder)
    refuse_timing_only(class_name_of(config))
    _spec_in(folder, class_name_of(config), kinds)
    return ModelFolder(folder, config, find_weights(folder, variant, or_plain=part))


@dataclass(frozen=True)
class PipelineFolder:
    """A pipeline's folder, its ``model_index.json``, and the class that runs it (``"module:Name"``)."""

    root: Path
    index: dict[str, Any]
    pipeline: str


def pipeline_of(root: Path, index: dict[str, Any]) -> str:
    """Return the pipeline that a folder's ``model_index.json`` stands for; ``UserError`` if there is none."""
    name = index.get("_class_name")
    spec = by_pipeline(name) if isinstance(name, str) else None
    if spec is None or spec.pipeline is None:
        known = ", ".join(name for spec in models().all if spec.pipeline for name in spec.pipeline_classes)
        raise UserError(f"pipeline '{root}' is a {name}; supported: {known}{models().notes}.")
    return spec.pipeline


def look_at_pipeline(root: Path, index: dict[str, Any], variant: str | None) -> PipelineFolder:
    """Do for a pipeline with this ``model_index.json`` what :func:`look_at` does for a model."""
    pipeline = pipeline_of(root, index)
    classes = {name: part[1] for name, part in index.items() if isinstance(part, list) and len(part) == 2}
    parts = [name for name, kind in classes.items() if isinstance(kind, str) and by_class_name(kind)]
    weights = [find_weights(root / name, variant, or_plain=True) for name in parts if (root / name).is_dir()]
    if variant and not any(f".{variant}." in file for file in weights):
        raise UserError(f"pipeline '{root}' has no weights for --variant {variant}; leave it out.")
    return PipelineFolder(root, index, pipeline)


def load_model(checkpoint: Checkpoint, weights: Weights, device: Device) -> Any:
    """Return the model of a checkpoint folder with this device's weights; strict about every key."""
    refuse_timing_only(checkpoint.class_name)
    model, config = find_model(checkpoint)
    return model(weights, device, config)
