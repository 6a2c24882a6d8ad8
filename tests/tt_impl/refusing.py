"""In a case every rule is asked once more, with an option that no operation has: each must refuse it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OPTION = "no_such_option"
TAKE_ALL = frozenset(("ttnn.experimental.view", "ttnn.interleaved_to_sharded", "ttnn.view"))
"""Operations whose options all say where values lie."""


@contextmanager
def refusing() -> Iterator[None]:
    """Fail the first call of each operation whose rule takes what it does not know."""
    from tt_impl.mock.rules.registry import RULES

    rules = dict(RULES)
    RULES.update({name: _asked_twice(name, rule) for name, rule in rules.items() if name not in TAKE_ALL})
    try:
        yield
    finally:
        RULES.update(rules)


def _asked_twice(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    from tt_impl.mock.storage.errors import ShadowError

    asked = []

    def ask(call: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if not asked:
            asked.append(name)
            try:
                rule(call, args, kwargs | {OPTION: True})
            except (TypeError, ShadowError):
                pass
            else:
                raise AssertionError(f"the rule of {name} takes an option that it does not know")
        return rule(call, args, kwargs)

    return ask
