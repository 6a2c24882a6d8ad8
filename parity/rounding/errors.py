"""The three numbers that say how far a tensor is from the exact one, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.measure import metrics as m


@dataclass(frozen=True)
class Error:
    """A tensor beside the exact one.

    Attributes:
        one_minus_pcc: 1 - Pearson correlation.
        rel_rmse: RMS of the error over the exact tensor's spread.
        gain: <x, exact> / <exact, exact>: 1 but for a systematic factor.
    """

    one_minus_pcc: float
    rel_rmse: float
    gain: float

    @classmethod
    def of(cls, ours: Sequence[Tensor], exact: Sequence[Tensor]) -> Error:
        """Compare tensors, taken as one long vector."""
        x, y = (torch.cat([each.flatten().double() for each in tensors]) for tensors in (ours, exact))
        power = float(y @ y)
        return cls(m.one_minus_pcc(x, y), m.rel_rmse(x, y), float(x @ y) / power if power else 1.0)

    @property
    def pcc(self) -> float:
        """Return the Pearson correlation."""
        return 1.0 - self.one_minus_pcc

    def cells(self) -> list[str]:
        """Return the numbers as a table writes them."""
        return [f"{self.one_minus_pcc:.1e}", f"{self.rel_rmse:.1e}", f"{self.gain:.4f}"]


COLUMNS = ["1 - PCC", "relative RMSE", "gain"]
