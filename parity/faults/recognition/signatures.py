"""The signatures of the faults, made and judged: is the right place named, is the right fault among the first three?

The place is judged by the simulator itself: the same case without the fault gives the right tensors, and the place must
be where those of the faulty run differ from them. The explanation sees the oracle's only.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parity.cases import Case
from parity.explain import causes
from parity.explain.explanation import place_of_message, place_of_trace
from parity.explain.places import Evidence, Features, Place
from parity.faults.recognition.right_place import right_place
from parity.faults.recognition.settings import JUDGED_SEED, SEEDS, of_fault, settings
from parity.faults.registry import Fault
from parity.faults.run import TIMEOUT_S, corpus
from parity.kinds import thresholds_for
from parity.measure.thresholds import judge
from parity.measure.traces import check
from parity.run.cpu import CpuRunner
from refsim.base.errors import RefsimError
from refsim.files import output

Progress = Callable[[str], None]
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


@dataclass
class Run:
    """One fault in one case: what a failure gives to explain, and what it is judged by.

    Attributes:
        failed: the gate failed the case, a hazard or an error included, or its trace is wrong.
    """

    fault: str
    case: Case
    seed: int
    failed: bool
    features: Features = field(default_factory=dict)
    place: Place | None = None
    result: Any = None
    message: str = ""


def observe(runner: CpuRunner, fault: Fault, case: Case, seed: int) -> Run:
    """Run a case with a fault in it and look at the answer as an explanation does."""
    bounds = thresholds_for(case.kind, case.dtype)
    limits = {t.metric: t.limit for t in bounds}
    evidence = Evidence()
    metrics = {}
    result = None
    error = ""
    messages: list[str] = []
    try:
        measured = runner.run(case, seed, fault=fault.reference, trace=True, timeout_s=TIMEOUT_S)
        metrics = {**measured.metrics, **check(measured.trace, case.layout)}
        messages = measured.hazards
        result = runner.last(case, seed)
        evidence = runner.explain(case, seed, limits)
        failed = bool(
            judge(metrics, bounds) or messages or any(v for k, v in metrics.items() if k.startswith("trace_"))
        )
    except RefsimError as e:
        error = str(e)
        failed = True
        evidence = Evidence()
        messages = [error]
    features = causes.signature(evidence, metrics, limits, messages) | causes.of_case(case)
    trace = getattr(result, "trace", [])
    place = evidence.place or place_of_message(messages, case) or place_of_trace(trace, case)
    return Run(fault.id, case, seed, failed, features, place, result, error or "; ".join(messages[:1]))


def make(ids: Iterable[str] | None, progress: Progress) -> dict[str, Any]:
    """Return the stored signatures, see :func:`parity.explain.causes.stored`."""
    known = settings()
    faults = corpus("cpu")
    signatures: list[dict[str, Any]] = []
    with CpuRunner() as runner:
        for name in ids or faults:
            for number, case in enumerate(of_fault(faults[name], known).made):
                for seed in SEEDS[:1] if number else SEEDS:
                    run = observe(runner, faults[name], case, seed)
                    progress(f"{name} in {case.id}, seed {seed}: {'failed' if run.failed else 'not seen'}")
                    if run.failed:
                        features = {key: round(value, 4) for key, value in sorted(run.features.items())}
                        signatures.append(
                            {"fault": name, "kind": case.kind, "case": case.id, "seed": seed, "features": features}
                        )
    return {
        "made": {
            "by": "refsim faults signatures",
            "seeds": list(SEEDS),
            "torch": torch.__version__.partition("+")[0],
            "cases": sorted({one["case"] for one in signatures}),
            "runs": len(signatures),
        },
        "temperature": temperature(signatures),
        "sentences": {name: faults[name].sentence for name in sorted({one["fault"] for one in signatures})},
        "signatures": signatures,
    }


def write(made: dict[str, Any], target: Path) -> None:
    """Write the signatures as JSON, compressed if the file is called ``.gz``."""
    text = (json.dumps(made, separators=(",", ":")) + "\n").encode()
    output.write(target, gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)


def temperature(signatures: list[dict[str, Any]]) -> float:
    """Return the temperature under which signatures, left out with all of their seed, are likeliest by the others."""
    tables = []
    for one in signatures:
        distances: dict[str, float] = {}
        for other in signatures:
            if other["kind"] == one["kind"] and other["seed"] != one["seed"]:
                d = causes.distance(one["features"], other["features"])
                distances[other["fault"]] = min(d, distances.get(other["fault"], math.inf))
        if one["fault"] in distances:
            tables.append((one["fault"], distances))

    def surprise(t: float) -> float:
        return -sum(math.log(max(causes.likelihoods(d, t)[name], 1e-9)) for name, d in tables)

    return min(TEMPERATURES, key=surprise)


@dataclass(frozen=True)
class Judged:
    """One fault explained on a mesh, a model and a seed that no signature is of.

    Attributes:
        fault, case, seed: what ran.
        place: what the explanation says.
        place_right: whether the faulty run differs there from the clean one.
        causes: the first three, the likeliest first.
        cause_right: the fault is among them.
    """

    fault: str
    case: str
    seed: int
    place: str
    place_right: bool
    causes: list[str]
    cause_right: bool

    def text(self) -> str:
        """Write the same in three lines."""
        place, cause = ("right" if is_right else "WRONG" for is_right in (self.place_right, self.cause_right))
        alike = "; ".join(self.causes) or "looks like nothing that is known"
        return f"{self.fault} in {self.case}\n  {place}: {self.place}\n  {cause}: {alike}"


def draw(count: int, seed: int) -> list[str]:
    """Draw the ids of so many faults by seed, in a random order."""
    return random.Random(seed).sample(sorted(corpus("cpu")), min(count, len(corpus("cpu"))))


def judge_draw(count: int, seed: int, progress: Progress) -> tuple[list[Judged], list[str]]:
    """Explain faults drawn by seed; one that nothing sees on its case here is replaced by the next drawn.

    Returns:
        what was judged, and the ids of those that were replaced.
    """
    known = settings()
    faults = corpus("cpu")
    judged: list[Judged] = []
    unseen: list[str] = []
    with CpuRunner() as runner:
        for name in draw(len(faults), seed):
            if len(judged) == count:
                break
            case = of_fault(faults[name], known).judged
            run = observe(runner, faults[name], case, JUDGED_SEED)
            if not run.failed:
                unseen.append(name)
                progress(f"{name}: not seen in {case.id}")
                continue
            judged.append(_judged(runner, run))
            progress(judged[-1].text())
    return judged, unseen


def _judged(runner: CpuRunner, run: Run) -> Judged:
    clean = None
    if run.result is not None:
        runner.run(run.case, run.seed, trace=True)
        clean = runner.last(run.case, run.seed)
    nearest = causes.nearest(run.case.kind, run.features)
    right = right_place(run.place, run.case, run.result, clean, run.message)
    names = [cause.fault for cause in nearest]
    return Judged(
        run.fault, run.case.id, run.seed, str(run.place or "none"), right, [str(c) for c in nearest], run.fault in names
    )
