"""What it would take to run a transformer of diffusers that refsim has no model of.

config.json --diffusers' class on meta tensors--> its lists of blocks: names of their weights
                                                  beside those of every transformer that refsim runs --> the nearest
            --keys--> those that the nearest one's configuration does not know
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from refsim.files.folder import class_name_of, read_config
from refsim.models.registry import by_class_name, models
from refsim.models.spec import ModelSpec

_MOST_NAMED = 6
_MOST_KEYS = 30
_MOST_LAYERS = 1000
"""A folder's class is built with all of its layers, which takes time even on meta tensors."""


@dataclass(frozen=True)
class Blocks:
    """A list of blocks in a class of diffusers.

    Attributes:
        name: of the attribute.
        kind: class of its blocks, of most of them.
        weights: names of one such block's, see :func:`_unwrapped`.
    """

    name: str
    kind: str
    count: int
    weights: frozenset[str]

    def likeness(self, other: Blocks) -> float:
        """Return which part of all names both have, 0 to 1."""
        return len(self.weights & other.weights) / len(self.weights | other.weights)


def what_it_takes(folder: Path) -> str:
    """Return lines about a folder whose class refsim has no model of; none where diffusers cannot say more."""
    config = read_config(folder)
    class_name = class_name_of(config)
    if by_class_name(class_name) is not None or importlib.util.find_spec("diffusers") is None:
        return ""
    lists = _lists_of(class_name, config)
    if not lists:
        return ""
    known = [(spec, blocks) for spec in _runnable() for blocks in _lists_of(spec.class_names[0], _smallest(spec))]
    nearest = [max(known, key=lambda one: blocks.likeness(one[1])) for blocks in lists]
    best = max(range(len(lists)), key=lambda i: lists[i].likeness(nearest[i][1]))
    lines = [f"{class_name} in refsim would be a folder of its own (docs/add_a_model.md):"]
    lines += [_compared(blocks, *like) for blocks, like in zip(lists, nearest, strict=True)]
    if lists[best].likeness(nearest[best][1]):
        lines.append(_keys(config, nearest[best][0]))
    return "\n".join(f"  {line}" if i else line for i, line in enumerate(lines))


def _compared(blocks: Blocks, spec: ModelSpec, like: Blocks) -> str:
    shared = len(blocks.weights & like.weights)
    if not shared:
        return (
            f"{blocks.count} {blocks.kind} ({blocks.name}): no block here has one of its {len(blocks.weights)} weights."
        )
    more = _named(sorted(blocks.weights - like.weights))
    return (
        f"{blocks.count} {blocks.kind} ({blocks.name}): nearest is {like.kind} ({like.name}) of {spec.class_names[0]}, "
        f"refsim/models/{spec.name}, with {shared} of its {len(blocks.weights)} weights by name"
        + (f"; not there: {more}." if more else ".")
    )


def _keys(config: dict[str, Any], spec: ModelSpec) -> str:
    known = {field.name for field in fields(spec.config_class)}
    unknown = [f"{key} = {value!r}" for key, value in config.items() if key not in known and not key.startswith("_")]
    listed = _named(unknown, most=_MOST_KEYS)
    return f"config.json: {listed or 'nothing'} that the configuration of {spec.name} does not know."


def _named(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _runnable() -> Iterator[ModelSpec]:
    return (spec for spec in models().all if spec.kind == "transformer" and spec.published and not spec.timing_only)


def _smallest(spec: ModelSpec) -> dict[str, Any]:
    """Return a published configuration with one block of each kind."""
    config = spec.published[0].config
    return spec.with_block_counts(config, dict.fromkeys(spec.block_counts(config), 1))


def _lists_of(class_name: str, config: dict[str, Any]) -> list[Blocks]:
    """Return the lists of blocks of a class of diffusers; none if it has no such class, or not so configured."""
    import diffusers
    import torch

    from parity.cases.oracles.meta import on_meta
    from parity.cases.pipelines import quietly

    if any(isinstance(x, int) and x > _MOST_LAYERS for key, x in config.items() if "layers" in key):
        return []
    try:
        kind: Any = getattr(diffusers, class_name, None)
        if not _is_model(kind):
            return []
        with quietly(), on_meta():
            model = kind.from_config({name: x for name, x in config.items() if name != "_class_name"})
    except Exception:  # whatever a constructor raises of values that it does not expect
        return []
    lists = []
    for name, part in model.named_children():
        blocks = list(part) if isinstance(part, torch.nn.ModuleList) else []
        if not any(True for block in blocks for _ in block.parameters()):
            continue
        most = Counter(type(block).__name__ for block in blocks).most_common(1)[0][0]
        one = next(block for block in blocks if type(block).__name__ == most)
        lists.append(Blocks(name, most, len(blocks), _unwrapped(one.state_dict())))
    return lists


def _unwrapped(names: Iterable[str]) -> frozenset[str]:
    """Return names of weights without what all of them begin with: a block may be a shell of another module."""
    parts = [name.split(".") for name in names]
    while len({part[0] for part in parts}) == 1 and all(len(part) > 1 for part in parts):
        parts = [part[1:] for part in parts]
    return frozenset(map(".".join, parts))


def _is_model(kind: Any) -> bool:
    import diffusers

    return isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)
