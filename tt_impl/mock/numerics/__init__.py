"""Values as kernels round them: every operation by its own compute config, program config, dtypes and chip.

The arithmetic is :mod:`refsim.numerics`; here is which of it an operation runs, a module a family. An operation that
computes and has no numeric rule, or one with an option that it does not know, is rounded once, as without numerics, and
counted by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.matrix_unit import check_level
from tt_impl.mock.numerics.kernel import FLOATS, ROUNDED, Kernel, Unmodelled, dtype_of
from tt_impl.mock.numerics.unrounded import UNROUNDED
from tt_impl.mock.rules.registry import Call, Rule
from tt_impl.mock.storage.errors import RefusedOption

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")

Values = list[list[Tensor]]


class Numerics:
    """One program's rounding.

    Attributes:
        level: ``exact`` or ``fast``.
        rounded: operations that were rounded as their kernels do, by name.
        once: those that compute and were rounded once.
    """

    def __init__(self, level: str) -> None:
        check_level(level)
        self.level = level
        self.rounded: Counter[str] = Counter()
        self.once: Counter[str] = Counter()

    def counts(self) -> dict[str, Any]:
        """Return level and counts as JSON values."""
        return {"level": self.level, "rounded": dict(self.rounded), "once": dict(self.once)}

    def values(self, call: Call, rule: Rule, by_rule: Callable[[Rule], Values]) -> Values:
        """Return the outputs of an operation.

        Args:
            call: the operation, after it ran.
            rule: what computes it exactly.
            by_rule: gives a rule the arguments of the call.
        """
        if call.name in UNROUNDED or not call.outputs or dtype_of(call.outputs[0]) not in FLOATS:
            return by_rule(rule)
        numeric = ROUNDED.get(call.name)
        if numeric is None:
            self.once[call.name] += 1
            return by_rule(rule)
        kernel = Kernel(call, self.level)
        try:
            values = by_rule(lambda _, args, kwargs: numeric(kernel, args, kwargs))
        except (Unmodelled, UserError, RefusedOption) as unknown:
            self.once[f"{call.name} ({unknown})"] += 1
            return by_rule(rule)
        self.rounded[call.name] += 1
        return values
