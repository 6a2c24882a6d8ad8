"""A case that ends its process, between two that do not; a case that hangs is not here, a timeout ends it alike."""

from __future__ import annotations

from tests.tt_impl.env import Env, collect


def before(t: Env) -> None:
    t.ttnn.add(t.put(t.rand(1, 1, 32, 32)), 1.0)


def crash(t: Env) -> None:
    """What ttnn does with a deallocated tensor if nobody looks."""
    from tt_impl.trace.intercept import uncaught

    x = t.put(t.rand(1, 1, 32, 32))
    with uncaught():
        t.ttnn.deallocate(x)
        t.ttnn.gelu(x)


def after(t: Env) -> None:
    before(t)


def fails(t: Env) -> None:
    t.check(t.put(t.rand(1, 1, 32, 32)), t.rand(1, 1, 32, 32))


CASES = collect(globals())
