"""What refsim knows of a model without its weights, judged by the library's own class built on meta tensors.

    config.json as published   --> weights that refsim's model asks for    by name and shape those of the class
    ... without one of its keys --> what is read instead                   the class's own default, or a refusal
    ... key by key                                                         the class's default, but for those listed
    parameters of the spec                                                 counted on the class
    blocks of each kind, as the spec counts them                           alike in the class, and other than the rest
    sizes of the spec          --> inputs of refsim's model                the class takes them,
    :mod:`parity.cases.oracles.forward_shapes`
    its request and its parts                                              those of diffusers' pipeline
    its name, or its folder    --> what the registry finds                 makes the same model of the class

Nothing is computed and there are no ranks. Of a model that predictions alone know (``timing_only``) the weights have
names of their own; all of them together, and those of one block more of each kind, are as many as the class has. The
case's ``model`` is a name of :func:`parity.cases.published.published_models`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case
from parity.cases.oracles import oracle_of
from parity.cases.oracles.forward_shapes import wrong_shapes
from parity.cases.oracles.library import (
    as_tuple,
    blocks_of,
    defaults_of,
    library_class,
    library_defaults,
    library_model,
    signature_of,
)
from parity.cases.oracles.requests import unlike_pipeline
from parity.cases.published import published_models
from parity.kinds.base import HostKind, Metrics, is_refused
from parity.measure.thresholds import Threshold
from refsim.base import scratch
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.models import registry
from refsim.models.figures import Figure
from refsim.models.spec import ModelSpec, Published
from refsim.runtime.device import Device
from refsim.runtime.launch import Result
from refsim.timing.read.meta import on_meta

_EXPERT = re.compile(r"(.*\.experts)\.(\d+\..+)")
Shapes = dict[str, tuple[int, ...]]


class PublishedModel(HostKind):
    """A configuration in, names and shapes of weights out."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold("wrong_weights", 0, "names and shapes are those of a saved checkpoint or not", optional=True),
            Threshold("wrong_defaults", 0, "a key that config.json lacks means what the library takes it for"),
            Threshold("wrong_keys", 0, "a key has the default of the class, or is one of those known to differ"),
            Threshold("wrong_parameters", 0, "parameters are counted"),
            Threshold("wrong_blocks", 0, "blocks of a kind are alike, and as many as the class has"),
            Threshold("wrong_shapes", 0, "what the class takes and gives has one shape"),
            Threshold("unlike_pipeline", 0, "what a pipeline takes for given, or is known to differ from it"),
            Threshold("not_found", 0, "what is found by its name or in its folder is the model, or it is not"),
            Threshold(
                "parameters_off",
                0.01,
                "what predictions read leaves out what takes no time",
                optional=True,
            ),
            Threshold(
                "block_parameters_off",
                1e-3,
                "norms and biases that it has or lacks are a thousandth",
                optional=True,
            ),
        )
    }

    def look(self, case: Case, seed: int) -> dict[str, Any]:
        spec, published = published_models()[case.model]
        asked = asked_for(spec, published.config)
        return {"shapes": asked.shapes, "left": asked.left, "defaults": defaults(spec, published)}

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        spec, published = published_models()[case.model]
        known = library_defaults(published.class_name)
        model = library_model(published, published.config)
        theirs = shapes_of(model.state_dict())
        total = count(shapes_of(dict(model.named_parameters())))
        oracle = oracle_of(published.class_name)
        differ = {name for name, x in published.config.items() if name in known and known[name] != as_tuple(x)}
        complaints = {
            "wrong_keys": sorted(differ ^ {*oracle.other_than_class.get(published.name, ())}),
            "wrong_blocks": [*wrong_blocks(spec, published, model), *wrong_of_one_kind(spec, published)],
            "wrong_shapes": [*wrong_shapes(spec, published), *wrong_passes(spec, model)],
            "unlike_pipeline": unlike_pipeline(spec, published),
            "not_found": not_found(spec, published),
        }
        result.value["complaints"] = complaints
        metrics: Metrics = {
            "wrong_defaults": sum(known[name] != value for name, value in result.value["defaults"].items())
            + len(unsaid_that_count(spec, published) + other_weights_unsaid(spec, published, known)),
            "wrong_parameters": abs((published.parameters or 0) - total),
            **{name: len(listed) for name, listed in complaints.items()},
        }
        if spec.timing_only:
            off = abs(count(result.value["shapes"]) / total - 1)
            return metrics | {"parameters_off": off, "block_parameters_off": block_parameters_off(spec, published)}
        ours = stacked(result.value["shapes"])
        left = tuple(result.value["left"])
        wanted = {name: x for name, x in theirs.items() if name in ours or not name.startswith(left)}
        return metrics | {"wrong_weights": len(wanted.items() ^ ours.items())}

    @classmethod
    def tables(cls, case: Case) -> tuple[str, ...]:
        spec = published_models()[case.model][0]
        return f"refsim.models.{spec.name}.spec", spec.config.partition(":")[0]


class _Asked(ShapeWeights):
    """Weights that also know what a model leaves aside."""

    def __init__(self) -> None:
        super().__init__(torch.float32)
        self.left: list[str] = []

    def leave(self, *prefixes: str) -> None:
        self.left += prefixes


def asked_for(spec: ModelSpec, config: dict[str, Any]) -> _Asked:
    """Return what refsim's model asks a checkpoint for."""
    asked = _Asked()
    with on_meta():
        spec.model_class(asked, Device(RunOptions.of(mesh="n150")), spec.config_class.from_dict(config))
    return asked


def defaults(spec: ModelSpec, published: Published) -> dict[str, Any]:
    """Return what refsim reads for each key that config.json lacks, without those that have to be there: all, of a
    model that predictions alone know.
    """
    if spec.timing_only:
        return {}
    values: dict[str, Any] = {}
    known = library_defaults(published.class_name)
    unsaid = {field.name: field.default for field in dataclasses.fields(spec.config_class)}
    for name in known.keys() & unsaid.keys():
        lacking = {key: value for key, value in published.config.items() if key != name}
        try:
            values[name] = getattr(spec.config_class.from_dict(lacking), name)
        except (
            UserError
        ):  # other keys have to agree with it, or it has to be said; a number's own default is left, and a list's
            if isinstance(unsaid[name], int | float) or (isinstance(unsaid[name], tuple) and unsaid[name]):
                values[name] = unsaid[name]
    return values


def unsaid_that_count(spec: ModelSpec, published: Published) -> list[str]:
    """List numbers that the class lacks unless config.json says one, where what is read instead is not 0."""
    if spec.timing_only:
        return []
    kind = library_class(published.class_name)
    none = {} if hasattr(kind, "config_class") else {n for n, x in defaults_of(kind.__init__).items() if x is None}
    real = {field.name: field.default for field in dataclasses.fields(spec.config_class)}
    return [name for name in none if isinstance(real.get(name), float) and real[name] != 0.0]


def other_weights_unsaid(spec: ModelSpec, published: Published, known: dict[str, Any]) -> list[str]:
    """List keys without a default in the class, lacking which it has other weights than are asked for."""
    if spec.timing_only:
        return []
    read = {field.name for field in dataclasses.fields(spec.config_class)}
    wrong = []
    for name in published.config.keys() & read - known.keys():
        lacking = {key: value for key, value in published.config.items() if key != name}
        try:
            asked = asked_for(spec, lacking)
        except UserError:
            continue
        theirs = shapes_of(library_model(published, lacking).state_dict())
        ours = stacked(asked.shapes)
        wrong += [] if all(theirs.get(key) == shape for key, shape in ours.items()) else [name]
    return wrong


def shapes_of(tensors: dict[str, Tensor]) -> Shapes:
    """Return shapes by name."""
    return {name: tuple(x.shape) for name, x in tensors.items()}


def count(shapes: Shapes) -> int:
    """Count the numbers that tensors have."""
    return sum(map(math.prod, shapes.values()))


def stacked(shapes: Shapes) -> Shapes:
    """Stack weights of experts as transformers holds them: all of a layer in one tensor, gate and up in one."""
    result: Shapes = {}
    experts: dict[str, Shapes] = {}
    for name, shape in shapes.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[match[2]] = shape
        else:
            result[name] = shape
    for layer, each in experts.items():
        number = sum(name.endswith(".down_proj.weight") for name in each)
        up = each["0.up_proj.weight"]
        down = each["0.down_proj.weight"]
        alike = each == {
            f"{i}.{kind}_proj.weight": shape
            for i in range(number)
            for kind, shape in (("gate", up), ("up", up), ("down", down))
        }
        result[f"{layer}.gate_up_proj"] = (number, 2 * up[0], up[1]) if alike else ()
        result[f"{layer}.down_proj"] = (number, *down)
    return result


def wrong_passes(spec: ModelSpec, model: torch.nn.Module) -> list[str]:
    """Whether a video's latent is decoded in pieces of other frames than the class has; of Wan's it has no name."""
    return [] if spec.frames_per_pass == getattr(model, "num_latent_frames_batch_size", 1) else ["frames per pass"]


def wrong_blocks(
    spec: ModelSpec, published: Published, model: torch.nn.Module, config: dict[str, Any] | None = None
) -> list[str]:
    """Say where the spec's blocks of a transformer are not those of the library, a clause each.

    Args:
        config: of ``model``; by default the published one.
    """
    if spec.kind != "transformer":
        return []
    config = config or published.config
    counts = spec.block_counts(config)
    labels = [kind for kind, n in counts.items() for _ in range(n)]
    blocks = blocks_of(model)
    if len(labels) != len(blocks):
        return [f"{len(blocks)} blocks, {len(labels)} by the spec"]
    if min(counts.values()) < 1:
        return [f"a kind without a block: {counts}"]
    kinds: dict[str, set[tuple]] = {}
    for label, block in zip(labels, blocks, strict=True):
        kinds.setdefault(label, set()).add(signature_of(block))
    wrong = [f"not every {label} is alike" for label, signatures in kinds.items() if len(signatures) > 1]
    several = [signatures for label, signatures in kinds.items() if label != "last"]
    if len({frozenset(signatures) for signatures in several}) < len(several):
        wrong.append("two kinds of blocks are one")
    others = [{kind: 1 if kind == "last" else 2 + (kind == each) for kind in counts} for each in counts]
    others += [{kind: n for kind, n in others[0].items() if kind != each} for each in counts if each != "last"]
    for other in others:
        asked = spec.with_block_counts(config, other)
        few = blocks_of(library_model(published, asked))
        want = [min(kinds[kind]) for kind, n in other.items() for _ in range(n)]
        if [signature_of(block) for block in few] != want or spec.block_counts(asked) != other:
            wrong.append(f"other blocks where {other} are asked for")
    return wrong


def wrong_of_one_kind(spec: ModelSpec, published: Published) -> list[str]:
    """Do the same for a model without single blocks, where there is such a key."""
    if "num_single_layers" not in published.config or spec.timing_only:
        return []
    config = published.config | {"num_single_layers": 0}
    clauses = wrong_blocks(spec, published, library_model(published, config), config)
    return [f"{wrong} without single blocks" for wrong in clauses]


def block_parameters_off(spec: ModelSpec, published: Published) -> float:
    """Return how far the parameters of one more block are from the library's, for the worst kind of block."""
    kinds = spec.block_counts(published.config)
    worst = 0.0
    few = {kind: 1 if kind == "last" else 2 for kind in kinds}
    for kind in few.keys() - {"last"}:
        less, more = (spec.with_block_counts(published.config, few | {kind: n}) for n in (2, 3))
        ours = count(asked_for(spec, more).shapes) - count(asked_for(spec, less).shapes)
        worst = max(worst, abs(ours / (_parameters(published, more) - _parameters(published, less)) - 1))
    return worst


def _parameters(published: Published, config: dict[str, Any]) -> int:
    return sum(p.numel() for p in library_model(published, config).parameters())


def not_found(spec: ModelSpec, published: Published) -> list[str]:
    """Say by which of its names a model is not found, and what a folder of it is taken for, a clause each."""
    wrong = [name for name in (spec.name, published.name, *spec.class_names) if registry.get(name) != spec]
    if registry.get_published(published.name) != (spec, published):
        wrong.append(f"{published.name} as a published model")
    if registry.by_class_name(published.class_name) != spec or registry.by_class_name(spec.name) is not None:
        wrong.append(published.class_name)
    if any(registry.by_pipeline(name) != spec for name in spec.pipeline_classes):
        wrong.append("its pipeline")
    figures = [figure for figure in registry.figures().values() if figure.model == published.name]
    if figures != [f for f in registry.measured() if isinstance(f, Figure) and f.judged and f.model == published.name]:
        wrong.append("what others measured of it")
    if is_refused(partial(registry.refuse_timing_only, published.name)) != spec.timing_only:
        wrong.append("what it is refused for")
    if spec.timing_only and not is_refused(partial(registry.look_at, Path(published.name), None), "timing only"):
        wrong.append("why there is no folder of it")
    return wrong + (_not_in_a_folder(spec, published) if spec.kind == "transformer" else [])


def _not_in_a_folder(spec: ModelSpec, published: Published) -> list[str]:
    """Look at folders of the model with fewer blocks, inside of a pipeline or not, and at one of a bare class name."""
    wrong = [] if registry.find(published.name) == (published.name, published) else [published.name]
    with scratch.Folder("published") as folder:
        (Path(folder) / "config.json").symlink_to("config.json")
        if not is_refused(partial(registry.find, folder), "cannot be read"):
            wrong.append("a config.json that leads to itself")
    few = spec.with_block_counts(published.config, dict.fromkeys(spec.block_counts(published.config), 1))
    by_default = {"_class_name": published.class_name}
    spoiled = few | {"num_attention_heads": "two"}
    for config, inside in ((few, "."), (few, "transformer"), (by_default, "."), (spoiled, ".")):
        with scratch.Folder("published") as folder:
            (Path(folder) / inside).mkdir(exist_ok=True)
            (Path(folder) / inside / "config.json").write_text(json.dumps(config))
            (Path(folder) / inside / "model.safetensors").touch()
            look_at = partial(registry.look_at, Path(folder) / inside)
            if is_refused(partial(look_at, None)) != spec.timing_only:
                wrong.append("whether it can be run")
            if not is_refused(partial(look_at, None, "text_encoder")):
                wrong.append("a transformer as a text encoder")
            if not is_refused(partial(look_at, "fp16")):
                wrong.append("weights of a variant that are not there")
            try:
                _, model = registry.find(folder)
            except UserError:
                if config is few:
                    raise
                continue  # of a model that predictions alone know every key has to be said
            if config is spoiled:
                wrong.append("a text where a number belongs")
                continue
        total = _parameters(model, model.config) * model.experts
        if total != _parameters(published, config) or model.class_name != published.class_name or model.parameters:
            wrong.append(f"a folder with {sorted(config)} in {inside}/config.json")
    return wrong
