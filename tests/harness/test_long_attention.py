"""What a ring's attention costs with values, by its own command, at a length that takes no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.conftest import HAS_TTNN, REASON
from tests.tt_impl.worker import launch


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
@pytest.mark.parametrize(("mesh", "sp_axis", "heads"), [("n300", 1, 1), ("t3k", 0, 4)])
def test_a_short_sequence(mesh: str, sp_axis: int, heads: int, tmp_path: Path) -> None:
    """Tokens that fill no tile, which rounding alone makes wrong."""
    length = {"video": "short", "mesh": mesh, "sp_axis": sp_axis, "tokens": 600}
    ran = launch("tt_impl.harness.reports.long_attention", json.dumps(length), folder=tmp_path)
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found.items() >= (length | {"heads": heads}).items()
    assert 0.0005 < found["error"] < 0.003 and 0 <= found["cpu_s"] < 30
    assert 0.1 < found["before_gib"] <= found["peak_gib"] < 8
