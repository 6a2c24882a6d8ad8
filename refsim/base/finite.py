"""Values that are not finite (NaN, infinity): found where they first appear, so that no run ends in one silently."""

from __future__ import annotations

import cmath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refsim.base.errors import NotFiniteError

if TYPE_CHECKING:
    from torch import Tensor

WOULD_WORK = "look at the weights there, lower the guidance, or run in fp32"


@dataclass(frozen=True)
class NotFinite:
    """The first activation on a rank that held a value which is not finite.

    Attributes:
        order: its number among the ops that the rank began; ranks run the same program, so the least is the earliest.
        op: the op that read it.
        where: the part of the model that ran, such as ``running block 3``.
        index: of the first such value, in the rank's own shard.
        shape: of that shard.
    """

    order: int
    op: str
    where: str
    index: tuple[int, ...]
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"index": list(self.index), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> NotFinite:
        return cls(**value | {"index": tuple(value["index"]), "shape": tuple(value["shape"])})

    def __str__(self) -> str:
        return f"{self.op} while {self.where}, which read it at {self.index} of its shard of shape {self.shape}"


def first_not_finite(x: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first value of ``x`` that is NaN or infinite, None if there is none.

    Most tensors are done with after one pass that copies nothing: a sum is finite only if all its terms are. Where it
    is not, it may also have overflown, and every value is looked at.
    """
    if x.is_meta or not (x.is_floating_point() or x.is_complex()) or cmath.isfinite(x.sum().item()):
        return None
    bad = ~x.isfinite()
    return tuple(bad.nonzero()[0].tolist()) if bool(bad.any()) else None


def check_tensors(tensors: dict[str, Tensor], first: str, instead: str = WOULD_WORK) -> None:
    """Raise ``NotFiniteError`` for the first of the answer's ``tensors`` that holds NaN or infinity.

    Args:
        first: where that began, in words.
        instead: what to do about it.
    """
    for name, tensor in tensors.items():
        index = first_not_finite(tensor)
        if index is not None:
            count = int((~tensor.isfinite()).sum())
            raise NotFiniteError(
                f"output {name} holds {count} non-finite value(s), the first at {index}; {first}; {instead}."
            )
