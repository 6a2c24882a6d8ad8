"""How the values of watched programs were rounded, in words. Nothing of ``ttnn`` is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def sentence(counts: Iterable[dict[str, Any]]) -> str:
    """Say how values were rounded, in a line; empty if numerics were off.

    Args:
        counts: of programs, see :attr:`tt_impl.harness.watch.session.Session.numerics`.
    """
    counts = [each for each in counts if each]
    if not counts:
        return ""
    rounded: Counter[str] = Counter()
    once: Counter[str] = Counter()
    for each in counts:
        rounded.update(each["rounded"])
        once.update(each["once"])
    kinds = len(rounded | once)
    names = f": {', '.join(sorted(once))}" if once else ""
    return (
        f"numerics {counts[0]['level']}: {rounded.total()} operations rounded as the kernels do, "
        f"{len(once)} of {kinds} kinds rounded once{names}"
    )
