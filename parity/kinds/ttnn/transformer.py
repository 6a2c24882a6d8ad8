"""A whole transformer in TTNN against refsim in the same storage dtype (bf16).

refsim is itself judged against diffusers (kind ``transformer``). Here the question is whether the TTNN program cuts,
pads, orders and communicates the same way, so both get the same checkpoint and the same inputs.
"""

from __future__ import annotations

from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.cases.oracles import oracle_of
from parity.kinds.base import Metrics, TTNNKind
from parity.kinds.cpu.transformer import compare_samples, transformer_inputs
from parity.measure import metrics as m
from parity.measure.comm import differences, unexplained, without_results
from parity.measure.thresholds import FINITE, Threshold, pcc
from refsim import api
from refsim.models.inputs import is_per_sample
from refsim.models.registry import get
from refsim.models.spec import PROMPT
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

    def reference(self, case: Case, seed: int, inputs: Path) -> Result:
        """Return refsim's answer; of prompts with a mask, its collectives are those of what TTNN runs of them."""
        result = super().reference(case, seed, inputs)
        folder = self.store.folder(case.model, seed)
        options = case.layout.options(case.dtype)
        parts = one_by_one(case, self.inputs(case, seed))
        runs = [api.run(folder, inputs=part, options=options).collectives for part in parts]
        if runs:
            result.collectives = [*chain(*map(without_results, runs[:-1])), *runs[-1]]
        return result

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


def one_by_one(case: Case, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return inputs that cost as much as what TTNN runs where prompts have a mask: the samples of the first cfg group
    one after the other, alike ones together, without their masked tokens (at other places); every group has the same.
    """
    model = MODELS[case.model]
    mask = oracle_of(model.class_name).prompt_mask
    if not mask:
        return []
    groups = case.layout.config().cfg
    dims = get(model.class_name).inputs(model.config)
    rows = tensors[mask].chunk(groups)[0]
    parts = []
    for _, alike in groupby(range(len(rows)), lambda sample: rows[sample].tolist()):
        samples = [*alike]
        valid = rows[samples[0]]
        part = {
            name: torch.cat([x[samples]] * groups) if is_per_sample(dims[name]) else x for name, x in tensors.items()
        }
        cut = {name: x[:, valid] for name, x in part.items() if PROMPT in dims[name]}
        parts.append(part | cut)
    return parts


def compare_communication(
    outcome: Outcome, reference: Result, groups: int = 1, **more: Any
) -> tuple[Metrics, dict[str, Any]]:
    """Compare the collectives of both backends; ``groups`` of devices in turn issue equal ones in TTNN.

    ``more``: what else :func:`parity.measure.comm.differences` takes.
    """
    group = outcome.collectives[: len(outcome.collectives) // groups]
    entries = differences(reference.collectives, group, **more)
    return {"comm_unexplained": unexplained(entries)}, {"communication": entries, "collectives": group}
