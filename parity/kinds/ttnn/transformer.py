"""A whole transformer in TTNN against refsim in the same storage dtype (bf16).

refsim is itself judged against diffusers (kind ``transformer``). Here the question is whether the TTNN program cuts,
pads, orders and communicates the same way, so both get the same checkpoint and the same inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from parity.cases import Case
from parity.kinds.base import Metrics, TTNNKind
from parity.kinds.cpu.transformer import compare_samples, transformer_inputs
from parity.measure import metrics as m
from parity.measure.comm import differences, unexplained
from parity.measure.thresholds import FINITE, Threshold, pcc
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome

_TWO_PROGRAMS = (
    "PCC 0.9995 between two bf16 programs that round in different places; either alone stays above 0.9999 of fp32"
)
GUIDED = Threshold("guided_one_minus_pcc", 5e-4, "guidance is judged like the sample it is made of", optional=True)
WHOLE = (
    *pcc(5e-4, _TWO_PROGRAMS),
    Threshold(
        "rel_rmse", 3.2e-2, "the error that PCC 0.9995 stands for, sqrt(2 * 5e-4), so that scale and shift count"
    ),
    Threshold("comm_unexplained", 0, "the same collectives in the same order, on the same axis, with the same bytes"),
    FINITE,
)


class TTNNTransformer(TTNNKind):
    """Latents in, latents out, guidance where it is asked for."""

    program = "tt_impl.pipelines.transformer:program"
    thresholds: ClassVar = {"bf16": (*WHOLE[:-2], GUIDED, *WHOLE[-2:])}

    inputs = staticmethod(transformer_inputs)

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return super().arguments(case, seed) | {"guidance": case.guidance}

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        ours = outcome.tensors
        ref = reference.tensors
        metrics = compare_samples(case, ours["sample"].float(), ref["sample"].float())
        if case.guidance is not None:
            metrics["guided_one_minus_pcc"] = m.one_minus_pcc(ours["guided"].float(), ref["guided"].float())
        counted, extra = compare_communication(outcome, reference, case.layout.config().cfg)
        return metrics | counted, extra


def compare_communication(
    outcome: Outcome, reference: Result, groups: int = 1, **more: Any
) -> tuple[Metrics, dict[str, Any]]:
    """Compare the collectives of both backends; ``groups`` of devices in turn issue equal ones in TTNN.

    ``more``: what else :func:`parity.measure.comm.differences` takes.
    """
    group = outcome.collectives[: len(outcome.collectives) // groups]
    entries = differences(reference.collectives, group, **more)
    return {"comm_unexplained": unexplained(entries)}, {"communication": entries, "collectives": group}
