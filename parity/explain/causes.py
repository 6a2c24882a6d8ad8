"""Which faults of the corpus a failure looks like: features compared with the stored signatures of every fault.

A signature is the features of one run with one fault in it, on a mesh, a model and a seed that stand beside it. Two
signatures of a kind of case differ by a sum over features of a bounded squared distance; the likelihood of a fault is
exp(-distance / temperature) of its nearest signature, over the sum of all faults'. The temperature is the one under
which signatures that are left out of the store in turn are best told apart, see
:mod:`parity.faults.recognition.signatures`.

A likelihood says which known mistake is nearest, not that it is one of them.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.explain.places import Evidence, Features, log_error

SIGNATURES = Path(__file__).with_name("signatures.json.gz")
"""Made by ``refsim faults signatures``; says how. Read when the first failed case is explained."""

WIDTHS = {"log": 1.0, "share": 0.2, "coef": 0.2, "after": 0.7}
WIDTHS |= dict.fromkeys(("first", "wrong", "word", "trace", "cut"), 0.5)
"""Differences that count as one, by the part of a feature's name before ``:``."""
MOST = 4.0
"""The most that one feature counts."""


@dataclass(frozen=True)
class Cause:
    """A fault of the corpus that looks alike.

    Attributes:
        fault: its id.
        sentence: what is wrong in a program that has it.
        likelihood: between 0 and 1; all faults' together are 1.
    """

    fault: str
    sentence: str
    likelihood: float

    def __str__(self) -> str:
        return f"{self.fault} ({self.sentence.rstrip('.')}), {self.likelihood:.2f}"


def signature(
    evidence: Evidence, metrics: Mapping[str, Any], limits: Mapping[str, float], messages: Sequence[str]
) -> Features:
    """Return a failure's features: what a finder found, metrics over their limits, words of hazards and errors.

    Args:
        messages: hazards and the error; numbers in them do not count.
    """
    features = dict(evidence.features)
    for name, limit in limits.items():
        value = metrics.get(name)
        if isinstance(value, (int, float)):
            features[f"log:metric {name}"] = log_error(float(value), limit or 1.0)
    for name, value in metrics.items():
        if name.startswith("trace_"):
            features[f"trace:{name}"] = float(bool(value))
    for message in messages:
        words = re.sub(r"[^a-z ]", " ", re.sub(r"\d+", " ", message.partition("\n")[0].lower()))
        features |= {f"word:{word}": 1.0 for word in words.split() if len(word) > 2}
    return features


def of_case(case: Case) -> Features:
    """Return what a case's layout allows: no error of Ulysses without it, no halo where channels are cut."""
    cuts = case.id.split("-")
    return {f"cut:{word}": 1.0 for word in ("halo", "channels", "gather") if word in cuts} | {
        f"cut:{name}": 1.0 for name in ("ring", "ulysses") if getattr(case.layout.config(), name) > 1
    }


def distance(a: Features, b: Features) -> float:
    """Sum over all features; what only one of them has counts as 0 in the other, a number or a trace's as equal."""
    total = 0.0
    for name in a.keys() | b.keys():
        if (name not in a or name not in b) and name.startswith(("log:", "trace:", "coef:")):
            continue
        width = WIDTHS[name.partition(":")[0]]
        total += min(((a.get(name, 0.0) - b.get(name, 0.0)) / width) ** 2, MOST)
    return total


@cache
def stored(path: Path = SIGNATURES) -> dict[str, Any]:
    """Return ``made`` (how), ``temperature`` and ``signatures``: fault, kind, features and the run they are of."""
    return json.loads(gzip.decompress(path.read_bytes()))


def likelihoods(distances: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Return the likelihood of every fault from the distance of its nearest signature, the likeliest first."""
    if not distances:
        return {}
    least = min(distances.values())
    weights = {name: math.exp(-(d - least) / temperature) for name, d in distances.items()}
    total = sum(weights.values())
    return {name: w / total for name, w in sorted(weights.items(), key=lambda item: -item[1])}


def nearest(kind: str, features: Features, count: int = 3, known: dict[str, Any] | None = None) -> list[Cause]:
    """Return the likeliest faults; none where there is no signature of a kind of case.

    Args:
        known: what :func:`stored` gives; the package's own if None.
    """
    known = stored() if known is None else known
    distances: dict[str, float] = {}
    for one in known["signatures"]:
        if one["kind"] == kind:
            d = distance(features, one["features"])
            distances[one["fault"]] = min(d, distances.get(one["fault"], math.inf))
    ranked = list(likelihoods(distances, known["temperature"]).items())[:count]
    return [Cause(name, known["sentences"][name], likelihood) for name, likelihood in ranked]
