"""Schemes and layers called with tensors that are laid out wrongly: each is refused before anything is sent.

Documents judge: of every function of ``refsim.parallel``, ``refsim.ccl`` and ``refsim.layers`` which layouts it takes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from parity.cases import Case, Layout
from parity.kinds.base import CpuKind, Metrics
from parity.measure.thresholds import Threshold
from refsim.runtime import launch
from refsim.runtime.launch import Result


class Placements(CpuKind):
    """Nothing goes in; out come the calls that were accepted though wrong, and those that failed though right."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold("accepted", 0, "what cannot be right is refused in a sentence, before anything is sent"),
            Threshold("failed", 0, "what is right is done, and its answer is laid out as documented"),
        )
    }

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        options = layout.options(case.dtype, pad_heads=False, **more)
        return launch.execute("parity.kinds.refusals.placement_calls:program", options, {})

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        return {name: len(sentences) for name, sentences in self._of_all_ranks(result).items()}

    def extra(self, result: Result) -> dict[str, Any]:
        return {name: sentences for name, sentences in self._of_all_ranks(result).items() if sentences}

    @staticmethod
    def _of_all_ranks(result: Result) -> dict[str, list[str]]:
        return {name: sorted({x for value in result.values for x in value[name]}) for name in ("accepted", "failed")}
