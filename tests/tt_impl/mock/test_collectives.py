"""The table of collectives says what ttnn's own documentation says."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("ttnn")

import ttnn

from tt_impl.trace.collectives import RING_BY_DEFAULT, TABLE

DOCUMENTED = re.compile(r"topology\W[^\n]*Defaults to `?(?:ttnn\.Topology\.)?(Ring|Linear)\b")


def documented(name: str) -> str | None:
    """The topology that an operation takes by its documentation, if it says so."""
    owner = ttnn
    for part in name.split(".")[1:]:
        owner = getattr(owner, part)
    said = DOCUMENTED.search(owner.__doc__ or "")
    return said[1] if said else None


def test_rings_by_default() -> None:
    said = {name: documented(name) for name in TABLE}
    assert sum(topology is not None for topology in said.values()) > 15
    assert {name for name, topology in said.items() if topology == "Ring"} <= RING_BY_DEFAULT
    assert not {name for name, topology in said.items() if topology == "Linear"} & RING_BY_DEFAULT
