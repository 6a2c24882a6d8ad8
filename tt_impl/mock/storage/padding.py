"""What fills a tensor's last tiles up, where its shape ends inside of them, and who reads it."""

from __future__ import annotations

from dataclasses import dataclass

from tt_impl.mock.storage.views import View


@dataclass(frozen=True)
class Padding:
    """The number below the last row, and the one right of the last column and below that; None: nobody knows it."""

    rows: float | None = None
    columns: float | None = None

    @classmethod
    def of(cls, number: Padding | float | None) -> Padding:
        """Return the padding of a tensor that one number fills up."""
        return number if isinstance(number, Padding) else cls(number, number)

    def single(self, view: View) -> float | None:
        """Return the one number that fills up tiles of ``view``; None if nobody knows it, or if there are two."""
        below, right = ends_inside(view)
        if below and right:
            return self.rows if self.rows == self.columns else None
        return self.rows if below else self.columns


def ends_inside(view: View) -> tuple[bool, bool]:
    """Tell whether a view's rows, and whether its columns, end inside of a tile."""
    if view.tile is None:
        return False, False
    shape, padded = view.rows()
    return shape[-2] != padded[-2], shape[-1] != padded[-1]


@dataclass(frozen=True)
class PaddingRead:
    """One operation reads padding of tiles as if it were data.

    Attributes:
        argument: the tensor, by its name in the operation.
        shape: of the tensor.
        dim: -2 if rows beyond the shape are read, -1 if columns are.
        end: of the tiles: the rows or columns from ``shape[dim]`` up to it are padding.
        fill: the number that is there; None if nobody knows it.
        remedy: what the program can do, from "fill" or another verb on.
    """

    argument: str
    shape: tuple[int, ...]
    dim: int
    end: int
    fill: float | None
    remedy: str
