"""Operations without a rule of their own, answered by ttnn's golden functions, on request and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.tt_impl.env import Env, collect, raises


@contextmanager
def _abs_rule(rule: Any) -> Iterator[None]:
    """Another shadow rule for ``ttnn.abs``, or none."""
    from tt_impl.mock.rules.registry import RULES

    own = RULES.pop("ttnn.abs")
    if rule is not None:
        RULES["ttnn.abs"] = rule
    try:
        yield
    finally:
        RULES["ttnn.abs"] = own


def off_by_default(t: Env) -> None:
    """Nobody gets a golden function's answer who did not ask for it."""
    from tt_impl.mock.storage.errors import MissingRule

    with _abs_rule(None):
        raises(MissingRule, lambda: t.ttnn.abs(t.put(t.rand(1, 1, 32, 64))), "ttnn.abs", "no shadow rule")


def per_device(t: Env) -> None:
    """Every device's own values, once for devices that hold the same; another operation's result goes in."""
    t.shadow.fallback = True
    x = t.rand(1, 1, 64, 128)
    with _abs_rule(None):
        y = t.ttnn.add(t.put(x, (2, 3)), 1.0)
        t.check(t.ttnn.abs(y), t.shards((x + 1).abs(), (2, 3)))
        t.check(t.ttnn.abs(t.put(x, (2, None))), t.shards(x.abs(), (2, None)))
    assert t.shadow.fallbacks == {"ttnn.abs": 2}
    assert t.shadow.evaluations["ttnn.abs"] == t.n + t.shape[0]


def refused_option(t: Env) -> None:
    """A rule that does not know an option hands over, and the count says so."""
    from tt_impl.mock.storage.errors import RefusedOption

    def refuses(*_: Any) -> Any:
        raise RefusedOption("ttnn.abs", "anything")

    x = t.rand(1, 1, 32, 64)
    with _abs_rule(refuses):
        raises(RefusedOption, lambda: t.ttnn.abs(t.put(x)), "ttnn.abs")
        t.shadow.fallback = True
        t.check(t.ttnn.abs(t.put(x)), x.abs())
    assert t.shadow.fallbacks == {"ttnn.abs (option)": 1}


def swallowed_argument(t: Env) -> None:
    """What a golden function takes and never looks at is refused: its elu knows no positional alpha."""
    from tt_impl.mock.calls.golden import golden_values
    from tt_impl.mock.rules.registry import Call
    from tt_impl.mock.storage.errors import ShadowError

    x = t.put(t.rand(1, 1, 32, 64))
    out = t.ttnn.abs(x)
    inputs = {id(x): t.shadow.store.read(x, "a test")}
    call = Call("ttnn.celu", (x, 2.0), {}, [out], t.shadow.store)
    raises(ShadowError, lambda: golden_values(call, inputs), "ttnn.celu", "argument 2")
    call = Call("ttnn.celu", (x,), {"beta": 2.0}, [out], t.shadow.store)
    raises(ShadowError, lambda: golden_values(call, inputs), "ttnn.celu", "beta")


def denied(t: Env) -> None:
    """Goldens known to be wrong do not answer."""
    from tt_impl.mock.calls.golden import has_golden
    from tt_impl.mock.calls.golden_denied import DENIED

    assert not any(map(has_golden, DENIED))
    assert has_golden("ttnn.digamma") and not has_golden("ttnn.no_such_operation")


CASES = collect(globals())
