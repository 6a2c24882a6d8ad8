"""Values that are computed when somebody reads them, not when the operation is called.

An operation whose rule only computes its outputs may wait: what it read is kept (values are never changed in place),
and its outputs are computed together at the first read of one of them, after what they need. What nobody reads is
never computed. An error comes at the read, so it names the line that called the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import torch

from tt_impl.mock.storage.errors import ShadowError

Values = list[list[torch.Tensor]]
"""By output, by device."""

_numbers = count()


class Deferred:
    """One operation that was called, but not computed yet.

    Args:
        where: the user's line that called it.
        needs: the operations that make what it reads, as far as they are deferred too.
        compute: gives the values of its outputs, once those it needs are computed.
    """

    def __init__(self, where: str, needs: list[Deferred], compute: Callable[[], Values]) -> None:
        self._number = next(_numbers)
        self._where = where
        self._needs = needs
        self._compute: Callable[[], Values] | None = compute
        self._values: Values = []

    def values(self) -> Values:
        """Compute its outputs; first, in the order of the program, whatever it needs."""
        needed = {self._number: self}
        waiting = [self]
        while waiting:
            for operation in waiting.pop()._needs:
                if operation._number not in needed:
                    needed[operation._number] = operation
                    waiting.append(operation)
        for number in sorted(needed):
            needed[number]._evaluate()
        return self._values

    def _evaluate(self) -> None:
        if self._compute is not None:
            with self.named():
                self._values = self._compute()
            self._compute = None
            self._needs = []

    @contextmanager
    def named(self) -> Iterator[None]:
        """Have errors in the block say where the operation was called."""
        try:
            yield
        except ShadowError as error:
            where = self._where or "an unknown line"
            raise ShadowError(f"{str(error).removesuffix('.')}; the operation was called in {where}.") from error
