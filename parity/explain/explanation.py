"""The explanation of a failed case: place, errors by device, likely causes, and the command that runs it again."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from parity.cases import Case
from parity.explain import causes, places
from parity.explain.places import Evidence, Place
from parity.measure.traces import FINDINGS, offending
from refsim.base.mesh import get_mesh

_RANK = re.compile(r"\brank (\d+)")
_STEP = re.compile(r"\bstep (\d+)")
_WHAT = re.compile(r"\b((?:ring_attention|all_gather|reduce_scatter|all_reduce|all_to_all|neighbor_pad)[\w/]*)")


@dataclass(frozen=True)
class Failure:
    """What a case that failed leaves to explain.

    Attributes:
        metrics: those that were measured, by name.
        limits: what was allowed, by metric.
        messages: hazards, and the error that ended the run.
        trace: events of all ranks, where they were kept.
    """

    metrics: dict[str, Any]
    limits: dict[str, float]
    messages: list[str]
    trace: list[dict[str, Any]]


def explain(
    case: Case, failure: Failure, evidence: Evidence, problem: str, *, backend: str, base_seed: int
) -> dict[str, Any]:
    """Return JSON values of why a case failed; without evidence they are causes and command alone.

    Args:
        evidence: what a finder found in the answer.
        problem: why there could be no evidence; empty if nothing stood in the way.

    Keys: ``place`` (see :class:`parity.explain.places.Place`, None if unknown), ``by_rank``, ``maps`` (each ``title``,
    ``lines``, ``columns``, ``errors``), ``causes`` (``fault``, ``sentence``, ``likelihood``) and ``again``.
    """
    features = causes.signature(evidence, failure.metrics, failure.limits, failure.messages) | causes.of_case(case)
    likely = causes.nearest(case.kind, features) if not problem else []
    place = evidence.place or place_of_message(failure.messages, case) or place_of_trace(failure.trace, case)
    maps = [evidence.error_map] if evidence.error_map else []
    if any(evidence.by_rank) and not any(m["title"].startswith("error by device") for m in maps):
        maps.insert(0, places.device_map(get_mesh(case.mesh), evidence.by_rank))
    return {
        "place": place.to_json() if place else None,
        "maps": maps,
        "causes": [vars(cause) for cause in likely],
        "again": again(case, backend, base_seed),
        "problem": problem,
    }


def again(case: Case, backend: str, base_seed: int, *, trace: str = "") -> str:
    """Return the command that runs only this case again, with taps and trace on, which go into the file ``trace``."""
    words = ["refsim", "parity", "why", case.id]
    words += ["--backend", backend] if backend != "cpu" else []
    words += ["--seed", str(base_seed)] if base_seed else []
    words += ["--trace", trace] if trace else []
    return shlex.join(words)


def place_of_message(messages: list[str], case: Case) -> Place | None:
    """Return the rank, step and collective that a hazard or an error names."""
    for message in messages:
        rank = _RANK.search(message)
        step = _STEP.search(message)
        what = _WHAT.search(message)
        if rank or what:
            mesh = get_mesh(case.mesh)
            number = int(rank[1]) if rank and int(rank[1]) < mesh.num_devices else None
            coord = None if number is None else mesh.coord(number)
            name = what[1] if what else "what the error names"
            return Place(name, number, () if number is None else (number,), coord, step=int(step[1]) if step else None)
    return None


def place_of_trace(trace: list[dict[str, Any]], case: Case) -> Place | None:
    """Return the first event that is wrong in a trace, of a run whose answer may be right; None where nothing is."""
    wrong = [(event, name) for name, events in offending(trace, case.layout).items() for event in events]
    if not wrong:
        return None
    event, name = min(wrong, key=lambda wrong_event: wrong_event[0]["start"])
    ranks = sorted({e["rank"] for e, other in wrong if other == name})
    rank = event["rank"]
    step = event["step"] if event["op"] in ("send", "recv", "sdpa") else None
    coord = get_mesh(case.mesh).coord(rank)
    where = event["collective"] or event["op"]
    return Place(where, rank, tuple(ranks), coord, step=step, note=FINDINGS[name], what="event")


def text(explanation: dict[str, Any], *, maps: bool = True) -> str:
    """Write the explanation in lines, for terminals, markdown and JUnit alike."""
    lines = []
    if place := explanation["place"]:
        lines.append(place["text"])
    if explanation.get("problem"):
        lines.append(explanation["problem"])
    likely = [causes.Cause(**cause) for cause in explanation["causes"] if cause["likelihood"] >= 0.01]
    if likely:
        lines.append("looks like: " + "; ".join(map(str, likely)))
    if maps:
        lines += [places.shaded(one) for one in explanation["maps"]]
    if explanation["again"]:
        lines.append(f"again: {explanation['again']}")
    return "\n".join(lines)
