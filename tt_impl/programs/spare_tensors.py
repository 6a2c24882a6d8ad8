"""Models built on a mesh from checkpoints that hold more than the model computes with. Nothing is computed.

Counterpart of nothing in ``refsim``, whose models read whole folders.
"""

from __future__ import annotations

from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from tt_impl.parallel.context import Context
from tt_impl.pipelines.allocation import Subject


def program(
    device: ttnn.MeshDevice, options: RunOptions, *, models: list[tuple[dict[str, Any], list[str]]], **_: Any
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Build every model; the report tells which ``accepted`` a tensor of nothing's, and which ``refused`` another one.

    Args:
        models: a config.json, and what its checkpoint may hold besides.
    """
    report: dict[str, Any] = {"accepted": [], "refused": [], "calls": len(models)}
    for config, left in models:
        error = str(_error(config, Holding([*left, _OF_NOTHING]), Context(device, options)))
        if _OF_NOTHING not in error:
            report["accepted"].append(f"{config['_class_name']}: {error}")
        elif any(name in error for name in left):
            report["refused"].append(f"{config['_class_name']}: {error}")
    return report, {}


_OF_NOTHING = "of_nothing.weight"


def _error(config: dict[str, Any], weights: ShapeWeights, ctx: Context) -> Exception | None:
    try:
        Subject.of(config, {}).build(ctx, weights)
    except Exception as error:
        return error
    return None


class Holding(ShapeWeights):
    """Whatever a model asks for, and the ``spare`` tensors, which it takes or leaves, or is refused."""

    def __init__(self, spare: list[str]) -> None:
        super().__init__(torch.bfloat16)
        self._spare = spare
        self._left = set[str]()

    @property
    def names(self) -> set[str]:
        return super().names | {*self._spare}

    def leave(self, *prefixes: str) -> None:
        self._left |= {name for name in self._spare if name.startswith(prefixes)}

    def finish(self, model: str) -> None:
        if unused := {*self._spare} - self._left - {*self.shapes}:
            raise UserError(f"the checkpoint holds {', '.join(sorted(unused))}, which {model} does not use.")
