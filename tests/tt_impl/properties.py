"""Property tests of shadow rules: drawn tensors, different on every device, and what each device must then hold.

A property is a function of hypothesis' ``data`` that :func:`hold` runs, or one of an ``Env`` and what its arguments may
be, of which :func:`drawn` makes a case. Examples are the same in every run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import ULP, Env

ROWS = (1, 5, 32, 33)
COLUMNS = (1, 7, 32, 50)


def hold(t: Env, examples: int, check: Callable[[Any], None]) -> None:
    """``check`` on drawn data, the same examples in every run; ``t`` counts the operations as called by a property.

    At least two of them: the first is the smallest of all, one number of seed 0, which tells little.
    """
    from hypothesis import given
    from hypothesis import strategies as st

    with t.drawing():
        _runs(max(2, examples))(given(st.data())(lambda data: check(data)))()


def _runs(examples: int) -> Any:
    from hypothesis import HealthCheck, Phase, settings

    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def choose(data: Any, options: Sequence[Any]) -> Any:
    from hypothesis import strategies as st

    return data.draw(st.sampled_from(list(options)))


def whole(data: Any, low: int, high: int) -> int:
    from hypothesis import strategies as st

    return data.draw(st.integers(low, high))


def shape_of(data: Any, ranks: Sequence[int] = (2, 3, 4)) -> tuple[int, ...]:
    """Shape of one device's part; the last two dims are often no whole tiles."""
    leading = tuple(whole(data, 1, 3) for _ in range(choose(data, ranks) - 2))
    return (*leading, choose(data, ROWS), choose(data, COLUMNS))


def numbers(data: Any, shape: Sequence[int], low: float, high: float, integers: bool = False) -> Tensor:
    """Drawn values of ``shape`` between ``low`` and ``high``."""
    random = torch.Generator().manual_seed(whole(data, 0, 2**31))
    if integers:
        return torch.randint(int(low), int(high) + 1, tuple(shape), generator=random)
    return torch.rand(*shape, generator=random) * (high - low) + low


def on_mesh(env: Env, parts: Callable[[], Tensor], dtype: str = "bfloat16", layout: str = "TILE") -> Any:
    """A device tensor whose part on every device is another result of ``parts``."""
    values = [parts() for _ in range(env.n)]
    stacked = torch.stack(values).unflatten(0, env.shape)
    joined = torch.cat([torch.cat(list(stacked[row]), 1) for row in range(env.shape[0])], 0)
    return env.put(joined, (0, 1), dtype=dtype, layout=layout)


def held(env: Env, tensor: Any) -> list[Tensor]:
    """What every device holds: float64, or int64."""
    return [value.double() if value.is_floating_point() else value for value in env.shadow.values(tensor)]


def agree(env: Env, out: Any, wanted: Sequence[Tensor], ulps: float = 2.0) -> None:
    """Every device holds what is wanted, within ``ulps`` units of its dtype; infinities and NaN where they belong."""
    values = env.shadow.values(out)
    assert len(values) == len(wanted)
    name = out.dtype.name.lower()
    unit = ULP.get(name, 0.0) * ulps
    for device, (value, want) in enumerate(zip(values, wanted, strict=True)):
        assert tuple(value.shape) == tuple(want.shape), (
            f"device {device}: {tuple(value.shape)}, not {tuple(want.shape)}"
        )
        want = want.double()
        finite = want[want.isfinite()]
        largest = finite.abs().max().item() if finite.numel() else 0.0
        atol = unit * largest * (1.0 if "loat8" in name or "loat4" in name else 1e-2)
        torch.testing.assert_close(
            value.double(), want, rtol=unit, atol=atol, equal_nan=True, msg=lambda text, d=device: f"device {d}: {text}"
        )


def only(applies: bool) -> None:
    """Refuse what was drawn if the property cannot be asked of it."""
    from hypothesis import assume

    assume(applies)


def drawn(examples: int, **strategies: Any) -> Callable[[Callable[..., None]], Callable[[Env], None]]:
    """Make a case of a property ``(t, **drawn values)``, the same examples in every run.

    First every option of every argument is drawn at least once, then what is left of ``examples`` by chance. A property
    overrides nothing that was drawn: it refuses by :func:`only` what it cannot be asked of. An option that it refuses
    with all others fails the case.
    """

    def decorate(check: Callable[..., None]) -> Callable[[Env], None]:
        def runs(t: Env, fixed: dict[str, Any], count: int = 1) -> bool:
            """Run the property with some arguments fixed; returns whether it took any draw."""
            from hypothesis import given
            from hypothesis import strategies as st
            from hypothesis.errors import Unsatisfiable

            chosen = strategies | {name: st.just(value) for name, value in fixed.items()}
            try:
                _runs(count)(given(**chosen)(lambda **values: check(t, **values)))()
            except Unsatisfiable:
                return False
            return True

        def case(t: Env) -> None:
            with t.drawing():
                options = _options(strategies)
                each = 1 if options.keys() == strategies.keys() else 2  # the first one drawn is the smallest
                taken = each_option(options, lambda fixed: runs(t, fixed, each))
                if examples > taken:
                    runs(t, {}, max(2, examples - taken))

        case.__doc__ = check.__doc__
        return case

    return decorate


def _options(strategies: dict[str, Any]) -> dict[str, Sequence[Any]]:
    """What each argument may be, of those that choose among a few values; of many integers the ends and the middle."""
    options = {}
    for name, strategy in strategies.items():
        elements = (False, True) if repr(strategy) == "booleans()" else getattr(strategy, "elements", None)
        if ends := re.fullmatch(r"integers\(min_value=(-?\d+), max_value=(-?\d+)\)", repr(strategy)):
            low, high = map(int, ends.groups())
            elements = range(low, high + 1) if high - low < 8 else (low, (low + high) // 2, high)
        if elements is not None:
            options[name] = elements
    return options


def each_option(options: dict[str, Sequence[Any]], runs: Callable[[dict[str, Any]], bool]) -> int:
    """Run combinations until every option was in one that ``runs`` took; returns how many it took.

    Raises:
        AssertionError: an option is refused in every combination.
    """
    untried = [
        dict(zip(options, places, strict=True)) for places in product(*(range(len(o)) for o in options.values()))
    ]
    random.Random(0).shuffle(untried)
    missing = {(name, place) for name, values in options.items() for place in range(len(values))}
    taken = 0
    while missing:
        places = max(untried, key=lambda combination: len(missing & combination.items()), default={})
        if not missing & places.items():
            names = ", ".join(f"{name}={options[name][place]!r}" for name, place in sorted(missing))
            raise AssertionError(f"the property refuses {names} with all other options")
        untried.remove(places)
        if runs({name: options[name][place] for name, place in places.items()}):
            missing -= places.items()
            taken += 1
    return taken


def spread(t: Env, *shape: int, dtype: str = "bfloat16", scale: float = 1.0) -> tuple[Any, list[Tensor]]:
    """A tensor of ``shape`` on every device, each with values of its own, and those values as the devices hold them."""
    rows, columns = t.shape
    if len(shape) == 1:
        whole, dims = t.rand(columns * shape[0], scale=scale), (None, 0)
    else:
        whole, dims = t.rand(rows * shape[0], columns * shape[1], *shape[2:], scale=scale), (0, 1)
    tensor = t.put(whole, dims, dtype=dtype)
    return tensor, t.shadow.values(tensor)


def each(function: Callable[..., Any], *parts: Any) -> list[Any]:
    """``function`` of every device's part; what is no list is the same on all devices."""
    count = next(len(part) for part in parts if isinstance(part, list))
    return [function(*(part[i] if isinstance(part, list) else part for part in parts)) for i in range(count)]
