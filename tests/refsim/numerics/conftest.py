"""Level fast by its formulas, whatever the size of a product."""

from __future__ import annotations

import pytest

from refsim.numerics import matrix_unit


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no product be small enough for the loops of level exact."""
    monkeypatch.setattr(matrix_unit, "_SMALL", {True: 0, False: 0})
