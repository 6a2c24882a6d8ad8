"""Operations without a rule of their own, answered by ttnn's golden functions, on request and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.tt_impl.cases.shadow.numerics import _numerics
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
        t.shadow.numerics = _numerics("fast")
        t.check(t.ttnn.abs(t.put(x)), x.abs())
        assert t.shadow.numerics.once == {"ttnn.abs": 1}
    assert t.shadow.fallbacks == {"ttnn.abs": 3}
    assert t.shadow.evaluations["ttnn.abs"] == t.n + t.shape[0] + 1


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
    call = Call("ttnn.celu", (x,), {"alpha": 2.0}, [out], t.shadow.store)
    wanted = torch.nn.functional.celu(t.shadow.values(x)[0], 2.0)
    torch.testing.assert_close(golden_values(call, inputs)[0][-1].float(), wanted, rtol=1e-2, atol=1e-2)
    call = Call("ttnn.celu", (x,), {"beta": 2.0}, [out], t.shadow.store)
    raises(ShadowError, lambda: golden_values(call, inputs), "ttnn.celu", "beta")


def functions_of_all_kinds(t: Env) -> None:
    """What prepares a golden function's inputs is called; of its results those that are None are no output.

    A keyword that it has is its own; a tensor that is only written is kept from it.
    """
    from tt_impl.mock.calls import golden
    from tt_impl.mock.rules.registry import Call
    from tt_impl.mock.storage.errors import ShadowError

    x = t.put(t.rand(1, 1, 32, 64))
    out, value = t.ttnn.abs(x), t.shadow.values(x)[0]
    inputs = {id(x): t.shadow.store.read(x, "a test")}

    def doubled(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return (t.ttnn.to_torch(args[0]).float() * 2, *args[1:]), kwargs

    def answer(function: Any, **kwargs: Any) -> Any:
        operation = SimpleNamespace(
            golden_function=function, preprocess_golden_function_inputs=doubled, python_fully_qualified_name="ttnn.abs"
        )
        with patch.object(golden, "registered", lambda: {"ttnn.abs": operation}):
            ((found, *_),) = golden.golden_values(Call("ttnn.abs", (x,), kwargs, [out], t.shadow.store), inputs)
        return found

    assert torch.equal(answer(lambda x, factor=1.0: [None, factor * x], factor=3.0, output_tensor=out), 6 * value)
    assert torch.equal(answer(lambda x: x.squeeze(0)), 2 * value)  # dims of one come and go
    whole = answer(lambda x: x.int())
    assert whole.dtype == torch.int64 and torch.equal(whole, (2 * value).to(torch.int64))
    raises(ShadowError, lambda: answer(lambda x: [x, x]), "gives 1 tensors", "golden function 2")
    raises(ShadowError, lambda: answer(lambda x: x[..., :32]), "(1, 1, 32, 32)")
    raises(ShadowError, lambda: answer(lambda x: x.to(torch.complex64)), "complex numbers")
    raises(ShadowError, lambda: answer(lambda x: x + torch.ones(7)), "fails with RuntimeError")
    told = t.ttnn.decorators.set_golden_comparison_config
    some = torch.arange(value.numel()).reshape(value.shape) > 0
    for how in ({"method": "skip"}, {"method": "allclose", "mask": some}):
        raises(ShadowError, lambda how=how: answer(lambda x: told(x, scope="all", **how)), "know the whole result")
    assert torch.equal(answer(lambda x: told(x, method="allclose", scope="all", mask=some | True)), 2 * value)


def denied(t: Env) -> None:
    """Goldens known to be wrong do not answer."""
    from tt_impl.mock.calls.golden import has_golden
    from tt_impl.mock.calls.golden_denied import DENIED

    assert not any(map(has_golden, DENIED))
    assert has_golden("ttnn.digamma") and not has_golden("ttnn.no_such_operation")


CASES = collect(globals())
