"""Whether a place is right, by the same program without the fault: there the tensors of both must differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.cases import Case
from parity.explain.places import Place
from refsim.parallel.sequence import TokenShards
from refsim.runtime.group import parallel_groups

SEEN = 1e-6
"""Differences of a tensor, relative to its RMS, below which no judge could see them in fp32."""


def right_place(place: Place | None, case: Case, faulty: Any, clean: Any, message: str) -> bool:
    """Whether a place is where a faulty run first differs from a clean one; of a refusal, what its message names."""
    if place is None:
        return False
    if faulty is None or clean is None:
        return place.rank is not None and f"rank {place.rank}" in message
    if message and f"rank {place.rank}" in message:
        return True  # a hazard says itself where it is
    if place.what == "event":
        return _schedule(faulty.trace, place) != _schedule(clean.trace, place)
    return _OF_KIND[case.kind](place, case, faulty, clean)


def _schedule(trace: list[dict[str, Any]], place: Place) -> list[tuple[str, ...]]:
    """Return what the named rank does, in its order, without times; nothing if the collective is not part of it."""
    keys = ("op", "collective", "group", "axis", "topology", "step", "peer")
    events = [e for e in trace if e["rank"] == place.rank]
    if all(place.tensor not in (e["collective"], e["op"]) for e in events):
        return []
    return [tuple(str(e[key]) for key in keys) for e in sorted(events, key=lambda e: e["start"])]


def _differs(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not torch.isfinite(a).all():
        return True
    size = float(b.double().square().mean().sqrt()) or 1.0
    return float((a.double() - b.double()).square().mean().sqrt()) > SEEN * size


def _attention(place: Place, case: Case, faulty: Any, clean: Any) -> bool:
    """Whether all of the error of the named rank lies in the named heads and rows, and there is some."""
    options = case.layout.options()
    shape = case.shape
    groups = parallel_groups(options.mesh, options.parallel, place.rank or 0)
    cut = TokenShards(shape.rows, options.parallel.sp, TokenShards.of(shape.n, options.parallel.sp).local_n)
    start, stop = cut.tokens(groups["sp"].index)
    if place.rows is None or place.heads is None:
        return False
    names = ("out", "joint_out") if place.tensor == "out" else ("lse",)
    a, b = (torch.cat([x[n] for n in names if n in x], 2) for x in (faulty.tensors, clean.tensors))
    gap = shape.n - shape.rows  # rows of padding, which places do not count
    change = (a != b).flatten(3).any(3) if a.ndim == 4 else a != b
    change = torch.cat([change[:, :, : shape.rows], change[:, :, shape.rows + gap :]], 2)
    named = change[:, place.heads[0] : place.heads[1], place.rows[0] : place.rows[1]]
    inside = place.rows[0] >= shape.rows or (start <= place.rows[0] and place.rows[1] <= stop)
    return bool(named.any()) and inside


def _transformer(place: Place, case: Case, faulty: Any, clean: Any) -> bool:
    """Whether the named tensor is the first that differs on any rank, and differs on the named one."""
    first: dict[str, set[int]] = {}
    least = None
    for rank, (ours, theirs) in enumerate(zip(faulty.observed, clean.observed, strict=True)):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if (least is None or index <= least) and _differs(a.local, b.local) and _real(a, b):
                name = f"{a.name}#{a.call}" if a.call else a.name
                if least is None or index < least:
                    least = index
                    first = {}
                first.setdefault(name, set()).add(rank)
                break
    if least is None:  # no layer: the sample, or a copy of it
        changed = [a != b for a, b in zip(faulty.value["digests"], clean.value["digests"], strict=True)]
        guided = "guided" in faulty.tensors and _differs(faulty.tensors["guided"], clean.tensors["guided"])
        return (place.tensor == "sample" and changed[place.rank or 0]) or (place.tensor == "guided" and guided)
    return place.rank in first.get(place.tensor, set())


def _real(a: Any, b: Any) -> bool:
    """Whether it is more than a difference of rounding in a tensor that is nearly zero."""
    return float(b.local.double().abs().max()) > 0 or float(a.local.double().abs().max()) > SEEN


def _picture(place: Place, case: Case, faulty: Any, clean: Any) -> bool:
    """Whether the named rows and columns differ."""
    if place.rows is None or place.columns is None:
        return False
    part = (..., slice(*place.rows), slice(*place.columns))
    return _differs(faulty.tensors["sample"][part], clean.tensors["sample"][part])


def _text(place: Place, case: Case, faulty: Any, clean: Any) -> bool:
    """Whether the named kind of value is the first that differs in the first round in which anything does."""
    rounds = []
    for prompt, (a, b) in enumerate(zip(faulty.texts, clean.texts, strict=True)):
        for index, (x, y) in enumerate(zip(a.steps, b.steps, strict=False)):
            margin = not abs(x.margin - y.margin) <= 1e-4
            if list(x.proposed) != list(y.proposed) or x.accepted != y.accepted or margin or _rows(x) != _rows(y):
                rounds.append((index, prompt))
                break
        else:
            if list(a.tokens) != list(b.tokens):
                rounds.append((0, prompt))
    if not rounds:
        return False
    named = tuple(int(word) for word in place.note.replace(",", "").split() if word.isdigit())[:2]
    return (named[1], named[0]) in rounds and named[1] == min(rounds)[0]


def _rows(step: Any) -> tuple[int, int]:
    return step.target_rows, step.draft_rows


_OF_KIND: dict[str, Callable[[Place, Case, Any, Any], bool]] = {
    "attention": _attention,
    "transformer": _transformer,
    "vae_decoder": _picture,
    "generation": _text,
}
"""Whether a place is right, given the answers of the faulty and of the clean run, by kind of case."""
