"""Beside tt_dit's block: at most its operations and bytes, and the same values; needs a checkout of tt-metal."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("ttnn")

from benchmarks import tt_dit
from tests.tree import ROOT

REPORT = ROOT / "reports" / "ops" / "sd35-large.json"


def at_most_theirs(found: dict) -> list[str]:
    ours, theirs = found["ours"]["totals"], found["theirs"]["totals"]
    moved = [sum(t[key] for key in ("read_bytes", "written_bytes")) for t in (ours, theirs)]
    wrong = ["operations"] if ours["operations"] > theirs["operations"] else []
    return wrong + (["bytes"] if moved[0] > moved[1] else [])


@pytest.mark.skipif(tt_dit.tree() is None, reason=tt_dit.WITHOUT)
def test_counts_of_a_checkout():
    found = tt_dit.compare(tt_dit.tree(), values=False)
    assert found["commit"] == "622c6fb9"
    assert at_most_theirs(found) == []


def test_without_a_checkout_it_says_so(monkeypatch, capsys):
    monkeypatch.setenv("TT_METAL_TREE", "/nowhere")
    assert tt_dit.main([]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "TT_METAL_TREE names no checkout" in said.err


def test_the_committed_table():
    """Names the commit, is at most tt_dit's, and all three answers agree."""
    found = json.loads(REPORT.read_text(encoding="utf-8"))
    assert found["commit"] == "622c6fb9" and at_most_theirs(found) == []
    apart = found["values"]["one_minus_pcc"]
    assert set(apart) == {"ours to refsim", "theirs to refsim", "ours to theirs"}
    assert all(value < 5e-4 for value in apart["ours to refsim"].values())
    text = REPORT.with_suffix(".md").read_text(encoding="utf-8")
    assert "622c6fb9" in text and re.search(r"\| operations \| \d+ \| \d+ \|", text)


def test_more_than_theirs_is_seen():
    found = json.loads(REPORT.read_text(encoding="utf-8"))
    found["ours"]["totals"]["operations"] = found["theirs"]["totals"]["operations"] + 1
    found["ours"]["totals"]["written_bytes"] += found["theirs"]["totals"]["written_bytes"]
    assert at_most_theirs(found) == ["operations", "bytes"]
