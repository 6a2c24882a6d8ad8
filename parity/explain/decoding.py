"""Generation of text: the first prompt and round that is wrong, and what of it was wrong first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from parity.explain.places import Evidence, Features, Place, bounded, log_error

ORDER = ("rows", "proposals", "steps", "margin", "tokens")
"""What a round computes, in the order in which a mistake shows."""


@dataclass
class Wrong:
    """What is wrong with one prompt's text, each the (round, position or error) of what is wrong first, or absent."""

    prompt: int
    first: dict[str, tuple[int, float]] = field(default_factory=dict)


def find(texts: Sequence[Any], expected: Sequence[Any], lengths: Sequence[int], limit: float) -> Evidence:
    """Say what is wrong first.

    Args:
        texts: refsim's ``Decoded``, one per prompt.
        expected: the oracle's, None where a prompt decides nothing; see :mod:`parity.kinds.cpu.generation`.
        lengths: tokens of the prompts.
        limit: largest allowed error of a margin.
    """
    judged = [
        _of_prompt(i, *pair, limit) for i, pair in enumerate(zip(texts, expected, lengths, strict=True)) if pair[1]
    ]
    wrong = [w for w in judged if w.first]
    if not wrong:
        return Evidence()
    _, kind, first = min(
        ((round_, ORDER.index(kind), w.prompt), kind, w) for w in wrong for kind, (round_, _) in w.first.items()
    )[0:3]
    round_, position = first.first[kind]
    what = {"proposals": "drafter.proposals", "margin": "target.logits", "rows": "caches.rows"}.get(
        kind, f"text.{kind}"
    )
    note = f"prompt {first.prompt}, round {round_}"
    note += f", error {position:.1e}" if kind == "margin" else f", position {int(position)}"
    place = Place(what, note=note)
    return Evidence(place, features=_features(judged, wrong, kind, (round_, position)))


def _of_prompt(index: int, text: Any, expected: Any, length: int, limit: float) -> Wrong:
    wrong = Wrong(index)
    start = length
    for kind, ours, theirs in (
        ("proposals", [s.proposed for s in text.steps], expected.proposed),
        ("steps", [[s.accepted] for s in text.steps], [[a] for a in expected.accepted]),
    ):
        for round_, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if list(a) != list(b):
                position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                wrong.first.setdefault(kind, (round_, position))
    for round_, (step, margin) in enumerate(zip(text.steps, expected.margins, strict=False)):
        if not abs(step.margin - margin) <= limit:
            wrong.first.setdefault("margin", (round_, abs(step.margin - margin)))
    for round_, step in enumerate(map(asdict, text.steps)):
        if step["proposed"] and step["draft_rows"] != start:
            wrong.first.setdefault("rows", (round_, step["draft_rows"] - start))
        start += step["accepted"]
        if step["target_rows"] != start:
            wrong.first.setdefault("rows", (round_, step["target_rows"] - start))
    for position, (a, b) in enumerate(zip(text.tokens, expected.tokens, strict=False)):
        if a != b:
            wrong.first.setdefault("tokens", (_round_of(position, text.steps), position))
    return wrong


def _round_of(position: int, steps: Sequence[Any]) -> int:
    """Return the round that gave a token; the first token comes before them and counts as round 0's."""
    count = 1
    for round_, step in enumerate(steps):
        count += step.accepted
        if position < count:
            return round_
    return max(len(steps) - 1, 0)


def _features(judged: list[Wrong], wrong: list[Wrong], kind: str, at: tuple[int, float]) -> Features:
    round_, position = at
    features = {
        f"first:{kind}": 1.0,
        "share:prompts": len(wrong) / len(judged),
        "coef:round": bounded(float(round_)),
        "coef:position": bounded(position if kind != "margin" else 0.0, 16.0) / 4,
    }
    for name in ORDER:
        with_it = [w.first[name] for w in judged if name in w.first]
        features[f"share:{name}"] = len(with_it) / len(judged)
        if with_it:
            features[f"share:{name}_in_round_0"] = sum(r == 0 for r, _ in with_it) / len(with_it)
        if with_it and name == "margin":
            features["log:margin"] = log_error(max(value for _, value in with_it))
    return features
