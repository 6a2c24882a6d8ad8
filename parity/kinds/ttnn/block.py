"""One block in TTNN against refsim: a whole transformer hides a wrong block behind its residual stream and its
output projection, so here a block is judged by what it adds, output minus input.

Metrics of a stream after the block are named as everywhere; those of what the block added to it begin with ``added_``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.kinds.base import Metrics, TTNNKind, token_shards
from parity.kinds.cpu.block import PROGRAM, compare, inputs_of
from parity.kinds.ttnn.transformer import WHOLE, compare_communication
from parity.measure.thresholds import Threshold, pcc
from refsim.runtime import launch
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome

_ADDED = "PCC 0.9995 of what the block itself adds, its residual taken away, between two bf16 programs"

_WEIGHTS_IN_BFP8 = (
    "bfp8_b gives 16 weights the step of their largest, 1/64 or 1/32 of their spread, which rounds off 0.7 %; five "
    "matmuls in a row make 1.6 %, which is 1 - PCC 1.2e-4, and bf16 adds 3e-5; two and a half times both"
)


class TTNNBlock(TTNNKind):
    """The image's and the prompt's stream in, both out."""

    program = "tt_impl.pipelines.block:program"
    thresholds: ClassVar = {
        "bf16": (
            *WHOLE,
            *(replace(t, metric=f"added_{t.metric}") for t in pcc(5e-4, _ADDED)),
            Threshold(
                "added_rel_rmse",
                3.2e-2,
                "the error that PCC 0.9995 stands for, sqrt(2 * 5e-4), so that a factor on what the block adds counts",
            ),
        ),
        "bfp8_b": (
            *WHOLE,
            *(replace(t, metric=f"added_{t.metric}") for t in pcc(4e-4, _WEIGHTS_IN_BFP8)),
            Threshold("added_rel_rmse", 2.8e-2, "the error that the PCC above stands for, sqrt(2 * 4e-4)"),
        ),
    }

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return inputs_of(case, seed)

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return super().arguments(case, seed) | {"index": MODELS[case.model].block}

    def reference(self, case: Case, seed: int, inputs: Path) -> Result:
        arguments = self.arguments(case, seed) | {"inputs": str(inputs)}
        return launch.execute(PROGRAM, case.layout.options(case.dtype), arguments)

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        shards = token_shards(case.layout, case.shape.n, case.shape.n)
        metrics, streams = compare(self.inputs(case, seed), outcome.tensors, reference.tensors, shards)
        counted, extra = compare_communication(outcome, reference)
        return metrics | counted, {"streams": streams} | extra
