"""How many known mistakes hide behind rounding: the TTNN fault corpus with numerics on, per dtype of weights.

    cases drawn by a seed, faults drawn of each
      clean case  --> passes the bounds of rounding (parity/measure/rounding.json), or that is a false alarm
      each fault  --> refused by a sentence that names it | a count is wrong | an error is beyond its bound | hidden

Without numerics every one of them is caught. What hides is the limit of any gate on an error, PCC among them, that has
to leave as much room as the device's rounding takes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from parity.cases import Case
from parity.faults.records import SEED
from parity.faults.registry import Fault
from parity.faults.run import corpus
from parity.measure.rounding import is_error, rounded, stored
from parity.measure.thresholds import Threshold, judge
from parity.rounding.bounds import usual, with_weights
from parity.run.ttnn import TTNNRunner
from refsim.base.errors import RefsimError, UserError
from refsim.base.options import WEIGHTS_DTYPES, Numerics, WeightsDtype
from refsim.files.keys import Document
from refsim.files.tables import as_markdown

WHOLE = "one_minus_pcc"
WITH_LINEARS = ("ttnn_block", "ttnn_transformer", "ttnn_text_encoder")
"""Kinds of cases whose weights may be bfp8_b or bfp4_b."""


@dataclass(frozen=True)
class Judged:
    """A fault, or a clean case (without a fault), with numerics on.

    Attributes:
        by: What caught it: ``refused``, ``count``, ``pcc`` (of the whole tensor), ``error`` (another one), or empty.
        one_minus_pcc: Of the whole tensor; null where it was refused or the kind has none.
        bound: Of it.
    """

    weights: str
    case: str
    fault: str
    by: str
    one_minus_pcc: float | None
    bound: float | None


@dataclass
class Hidden(Document):
    """Faults of the TTNN corpus with numerics on.

    Attributes:
        corpus: Faults that could be drawn.
        judged: Every fault and clean case that was run, once for each dtype of weights.
    """

    numerics: str
    seed: int
    corpus: int
    judged: list[Judged]

    @property
    def false_alarms(self) -> list[Judged]:
        """Clean cases that did not pass."""
        return [each for each in self.judged if not each.fault and each.by]


def draw(count: int, cases: int, seed: int) -> list[Fault]:
    """Return the first ``count`` faults, in an order drawn by a seed, that are put into the first ``cases`` cases."""
    order = eligible()
    random.Random(seed).shuffle(order)
    names = list(dict.fromkeys(fault.case.id for fault in order))[:cases]
    chosen = [fault for fault in order if fault.case.id in names][:count]
    return sorted(chosen, key=lambda fault: (fault.case.id, fault.id))


def eligible() -> list[Fault]:
    """Return the faults of the TTNN corpus whose case is judged by errors of a tensor that linear layers make."""
    return [fault for fault in corpus("ttnn-mock").values() if fault.case.kind in WITH_LINEARS]


def run(
    faults: Sequence[Fault],
    *,
    seed: int = 0,
    numerics: Numerics = "fast",
    dtypes: Sequence[WeightsDtype] = WEIGHTS_DTYPES,
    progress: Callable[[str], None] = lambda _: None,
) -> Hidden:
    """Judge clean cases and faults with numerics on.

    Args:
        faults: of the TTNN corpus.
        seed: they were drawn by, for the record.

    Raises:
        UserError: a case has no stored bounds.
    """
    from parity.cases.suites import registry

    registry()  # the suites register the checkpoints of the cases
    cases = list(dict.fromkeys(fault.case for fault in faults))
    for case in (with_weights(case, dtype) for case in cases for dtype in dtypes):
        if case.id not in stored():
            raise UserError(f"case {case.id} has no bounds; `refsim numerics bounds --corpus -k {case.id}` makes them.")
    judged: list[Judged] = []
    with TTNNRunner("ttnn-mock", numerics=numerics) as runner:
        for dtype in dtypes:
            for case in cases:
                progress(with_weights(case, dtype).id)
                mistakes = [None, *(fault for fault in faults if fault.case == case)]
                judged += _of_case(runner, with_weights(case, dtype), mistakes, dtype)
                runner.drop(with_weights(case, dtype), SEED)
    return Hidden(numerics, seed, len(eligible()), judged)


def _of_case(runner: TTNNRunner, case: Case, mistakes: Sequence[Fault | None], dtype: WeightsDtype) -> list[Judged]:
    futures = [runner.start(case, SEED, fault=fault.reference if fault else "") for fault in mistakes]
    bounds = rounded(usual(case), stored()[case.id])
    limit = next((bound.limit for bound in bounds if bound.metric == WHOLE), None)
    judged = []
    for fault, future in zip(mistakes, futures, strict=True):
        name = fault.id if fault else ""
        try:
            metrics = runner.measure(case, SEED, future.result()[0]).metrics
        except RefsimError as error:
            named = fault is None or bool(fault.says and re.search(fault.says, str(error)))
            judged.append(Judged(dtype, case.id, name, "refused" if named else "", None, limit))
            continue
        value = cast("float | None", metrics.get(WHOLE))
        judged.append(Judged(dtype, case.id, name, caught_by(metrics, bounds), value, limit))
    return judged


def caught_by(metrics: dict, bounds: Sequence[Threshold]) -> str:
    """Return what catches a fault, the plainest first: the whole PCC, other errors, counts; or nothing."""
    beyond = [bound for bound in bounds if judge(metrics, (bound,))]
    if any(bound.metric == WHOLE for bound in beyond):
        return "pcc"
    if any(is_error(bound) for bound in beyond):
        return "error"
    return "count" if beyond else ""


def text(hidden: Hidden) -> str:
    """Write the table of all dtypes, and what hides."""
    rows = []
    for dtype in dict.fromkeys(each.weights for each in hidden.judged):
        faults = [each for each in hidden.judged if each.weights == dtype and each.fault]
        measured = [each for each in faults if each.by != "refused"]
        by = {kind: sum(each.by == kind for each in faults) for kind in ("refused", "pcc", "error", "count", "")}
        alone = sum(each.by != "pcc" for each in measured)
        bounds = [each.bound for each in faults if each.bound is not None]
        room = f"{min(bounds):.1e} to {max(bounds):.1e}" if bounds else ""
        rows.append([dtype, len(faults), *by.values(), f"{alone} of {len(measured)}", room])
    columns = ["weights", "faults", "refused", "whole PCC", "another error", "a count", "hidden"]
    columns += ["behind whole PCC alone", "bounds of 1 - PCC"]
    clean = [each for each in hidden.judged if not each.fault]
    cases = len({each.case.partition("-weights_")[0] for each in clean})
    faults_run = len({each.fault for each in hidden.judged if each.fault})
    parts = [
        "# Faults that hide behind rounding",
        f"Made by `refsim numerics hidden`: {faults_run} faults in {cases} cases, drawn by seed {hidden.seed} of the "
        f"{hidden.corpus} of the TTNN corpus that concern a transformer. The mock rounds as kernels do (numerics "
        f"{hidden.numerics}); errors are bounded by what that comes to over seeds of weights and inputs, with a "
        "margin. Without numerics the gate catches every one of them.",
        as_markdown(rows, columns, "lrrrrrrrl"),
        f"Clean cases that fail these bounds: {len(hidden.false_alarms)} of {len(clean)}.",
    ]
    cells = [
        [
            each.weights,
            each.fault,
            each.case.partition("-weights_")[0],
            _number(each.one_minus_pcc),
            _number(each.bound),
        ]
        for each in hidden.judged
        if each.fault and not each.by
    ]
    if cells:
        parts += ["## Hidden", as_markdown(cells, ["weights", "fault", "case", "1 - PCC", "bound"], "lllrr")]
    return "\n\n".join(parts) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
