"""Bounds of TTNN cases with numerics on: the mock runs each with several seeds, refsim's exact answer judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.cases import Case
from parity.cases.suites import registry
from parity.kinds import thresholds_for
from parity.measure.machine import versions
from parity.measure.rounding import STORED, Bound, as_stored, is_error
from parity.measure.thresholds import Threshold
from parity.run.ttnn import TTNNRunner
from refsim.base.options import Numerics, WeightsDtype
from refsim.files import output
from refsim.files.keys import Document

SEEDS = range(100, 106)
"""Of weights and inputs; none of those that cases are judged with."""
KINDS = ("ttnn_block", "ttnn_transformer", "ttnn_text_encoder", "ttnn_vae_decoder", "ttnn_pipeline")
"""Of cases whose answer is a tensor. Of tokens that are decoded rounding makes others, or none."""


@dataclass
class Bounds(Document):
    """Bounds of TTNN cases with numerics on.

    Attributes:
        cases: By case and metric: ``limit``, ``margin`` and ``reason``.
        file: Where they are stored.
    """

    numerics: str
    seeds: list[int]
    cases: dict[str, dict[str, Any]]
    file: str


def with_weights(case: Case, dtype: WeightsDtype) -> Case:
    """Return the case with a device's matrices stored as ``dtype``, under an id of its own."""
    return case if dtype == "bf16" else replace(case, id=f"{case.id}-weights_{dtype}", dtype=dtype)


def usual(case: Case) -> tuple[Threshold, ...]:
    """Return the bounds that a case has without numerics; those of bf16 where there are none of its weights."""
    return thresholds_for(case.kind, "bf16" if "-weights_" in case.id else case.dtype)


def predict(
    runner: TTNNRunner, case: Case, seeds: Sequence[int] = SEEDS, *, numerics: Numerics = "fast"
) -> dict[str, Bound]:
    """Return the bounds of a case, by metric, from the errors of every seed."""
    metrics = [t.metric for t in usual(case) if is_error(t)]
    values: dict[str, list[float]] = {metric: [] for metric in metrics}
    runner.plan([(case, seed) for seed in seeds])
    for seed in seeds:
        measured = runner.run(case, seed).metrics
        for metric in metrics:
            if measured.get(metric) is not None:
                values[metric].append(measured[metric])
    return {metric: Bound.of(metric, each, numerics) for metric, each in values.items() if each}


def make(
    cases: Sequence[Case], *, numerics: Numerics = "fast", progress: Callable[[str], None] = lambda _: None
) -> Bounds:
    """Predict the bounds of cases and store them, each as soon as it is there."""
    registry()  # the suites register the checkpoints of the cases
    bounds: dict[str, dict[str, Bound]] = {}
    made = {"numerics": numerics, "seeds": list(SEEDS), "versions": versions()}
    with TTNNRunner("ttnn-mock", numerics=numerics) as runner:
        runner.optable = False
        for case in cases:
            progress(case.id)
            bounds[case.id] = predict(runner, case, numerics=numerics)
            for seed in SEEDS:
                runner.drop(case, seed)
            output.write(STORED, as_stored({case.id: bounds[case.id]}, made).encode())
    by_case = {name: {metric: vars(bound) for metric, bound in each.items()} for name, each in bounds.items()}
    return Bounds(numerics, list(SEEDS), by_case, str(STORED))
