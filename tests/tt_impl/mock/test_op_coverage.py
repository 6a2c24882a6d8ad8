"""The page of operations says what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ttnn")

from benchmarks import op_coverage


def test_page_agrees_with_the_code() -> None:
    """Every registered operation is on it, with the evidence it has now; ``benchmarks.op_coverage`` writes it anew."""
    page = op_coverage.listed(op_coverage.TABLE.read_text(encoding="utf-8"))
    assert page == {row.name: row.evidence for row in op_coverage.rows()}


def test_evidence_of_some() -> None:
    assert op_coverage.evidence("ttnn.add") == op_coverage.RULE
    assert op_coverage.evidence("ttnn.from_torch") == op_coverage.TRANSFER
    assert op_coverage.evidence("ttnn.execute_trace") == op_coverage.EMULATED
    assert op_coverage.evidence("ttnn.no_such_operation") == op_coverage.NONE


def test_upstream_counts(tmp_path: Path) -> None:
    """A test counts for what it called, if it passed and no golden function answered."""
    verdicts = [
        {"outcome": "passed", "ops": {"ttnn.add": 3, "ttnn.exp": 1}, "fallbacks": {"ttnn.exp": 1}},
        {"outcome": "failed", "ops": {"ttnn.add": 1}, "fallbacks": {}},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(verdict) + "\n" for verdict in verdicts), encoding="utf-8")
    table = {row.name: row for row in op_coverage.rows([log])}
    assert (table["ttnn.add"].upstream, table["ttnn.exp"].upstream) == (1, 0)
    assert "| `ttnn.add` | rule |" in op_coverage.markdown([table["ttnn.add"]], upstream=True)


def test_refused_options() -> None:
    """What a rule lacks is told; what cannot change values is not."""
    table = {row.name: row.refused for row in op_coverage.rows()}
    assert "memory_config" not in {name for names in table.values() for name in names}
    assert any(table.values())
