"""Calls in TTNN judged by themselves, where no value tells them apart: what is refused, and what each was given.

A mesh that computes golden values gives the same answer whatever the fidelity, the blocks of a matmul or where a tensor
lies, and whether or not a mistake that this program does not make would have been noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from parity.call_rules import Where, wrong
from parity.cases import Case
from parity.checkpoints import MODELS
from parity.kinds.base import Metrics, TTNNKind
from parity.thresholds import Threshold
from refsim.mesh import get_mesh
from refsim.models.inputs import BATCH
from refsim.models.registry import get_published
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.launch import Outcome


class _Calls(TTNNKind):
    """Nothing goes in from refsim, and nothing is compared with it."""

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return {}

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return {}

    def reference(self, case: Case, seed: int, inputs: Path) -> Result:
        return Result([], {}, {}, [])

    def drop(self, case: Case, seed: int) -> None:
        pass


class RefusedCalls(_Calls):
    """Calls that a mesh cannot do are refused in a sentence, and those beside them that it can do are made."""

    program = "tt_impl.pipelines.refused_calls:program"
    thresholds: ClassVar = {
        "bf16": (
            Threshold("accepted", 0, "what cannot be right is refused in a sentence, before ttnn sees it"),
            Threshold("refused", 0, "what is right is not refused"),
        )
    }

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        report = outcome.report
        return {name: len(report[name]) for name in ("accepted", "refused")}, report


class GivenCalls(_Calls):
    """Every call of a model's forward is given what documents ask for.

    A case's model is ``given_`` and the name of a published one, or of an image's tiny decoder in ``MODELS``.
    """

    program, values = "tt_impl.pipelines.given_calls:program", False
    thresholds: ClassVar = {
        "bf16": (
            Threshold("wrong", 0, "every call is given what its document asks for, or the best of what it may be"),
            Threshold("idle_semaphores", 0, "every global semaphore that takes L1 of all cores is given to a call"),
        )
    }

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        from tt_impl import memory

        name, shape = case.model.removeprefix("given_"), case.shape
        if name.endswith("_tiny"):
            config = MODELS[name].config | {"_class_name": MODELS[name].class_name}
            return {"model": config, "shapes": {"z": [shape.batch, config["latent_channels"], *shape.latent]}}
        spec, model = get_published(name.replace("_", "-"))
        if spec.kind == "text_encoder":
            sizes = {BATCH: shape.batch, "tokens": shape.text}
            shapes = {name: tuple(sizes[dim] for dim in dims) for name, dims in spec.inputs(model.config).items()}
        else:
            shapes = memory.input_shapes(model, shape.latent, case.layout.options("bf16"), shape.batch)
        return {"model": model.name, "shapes": {name: list(sizes) for name, sizes in shapes.items()}}

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        report, config = outcome.report, case.layout.config()
        where = Where(get_mesh(case.mesh), tuple(report["grid"]), tuple(report["shape"]), config.sp, config.tp)
        found = [sentence for call in report["calls"] for sentence in wrong(call, where)]
        found += [f"a global semaphore begins with {n}, not with 0" for n in report["begins"] if n]
        metrics = {"wrong": len(found), "idle_semaphores": report["idle"], "calls": len(report["calls"])}
        return metrics, {"wrong": found}
