"""What every rule keeps to, held while a case runs: it refuses what it does not know, and changes nothing it is given.

Devices that hold the same share one tensor, so a rule that wrote into it would change what others read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

OPTION = "no_such_option"
TAKE_ALL = frozenset(("ttnn.experimental.view", "ttnn.interleaved_to_sharded", "ttnn.view"))
"""Operations whose options all say where values lie."""
SMALL = 2**18
"""Elements; larger tensors are not looked at."""


@contextmanager
def strict_rules() -> Iterator[None]:
    """Fail a call whose rule takes an option that no operation has, or writes into its inputs."""
    from tt_impl.mock.rules.registry import RULES

    rules = dict(RULES)
    RULES.update({name: _strict(name, rule) for name, rule in rules.items()})
    try:
        yield
    finally:
        RULES.update(rules)


def _strict(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    asked = [] if name not in TAKE_ALL else [name]

    def ask(call: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if not asked:
            asked.append(name)
            assert _refuses(rule, call, args, kwargs), f"the rule of {name} takes an option that it does not know"
        pairs = [(tensor, tensor.clone()) for tensor in _tensors(args, kwargs) if tensor.numel() <= SMALL]
        result = rule(call, args, kwargs)
        for tensor, before in pairs:
            torch.testing.assert_close(
                tensor, before, rtol=0, atol=0, equal_nan=True, msg=f"{name} writes into an input"
            )
        return result

    return ask


def _refuses(rule: Callable[..., Any], call: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    from tt_impl.mock.storage.errors import ShadowError

    try:
        rule(call, args, kwargs | {OPTION: True})
    except (TypeError, ShadowError):
        return True
    return False


def _tensors(args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return what a rule gets of its inputs, as they are kept and widened; who holds them keeps them for the rule."""
    from tt_impl.mock.rules.registry import leaves
    from tt_impl.mock.storage.values import Shards

    shards = [value for value in leaves((args, kwargs)) if isinstance(value, Shards)]
    tensors = [tensor for value in shards for tensor in (*value.stored, *value)]
    return list({id(tensor): tensor for tensor in tensors}.values())
