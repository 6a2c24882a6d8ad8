"""Chunk sizes of ring attention are tried against ttnn's own limits."""

from __future__ import annotations

import pytest

from refsim.base.options import RunOptions
from tt_impl.reports import chunks
from tt_impl.run.launch import Worker


@pytest.fixture(scope="module")
def report(worker: Worker) -> dict:
    """One device's share of SD3.5-Large on a pair of Wormholes, 512 pixels."""
    options = RunOptions.of(mesh="n300", parallel="sp2", backend="ttnn-mock")
    arguments = {"q": [1, 4, 512, 64], "rear": [1, 4, 333, 64]}
    return worker.execute(chunks.PROGRAM, options, arguments, values=False).report


def test_a_pair_fits_as_far_as_its_bytes_do(report: dict) -> None:
    """ttnn refuses exactly what ends beyond L1, the larger of two pairs takes more, and the models' pair fits."""
    cells = {(row["q"], row["k"]): row for row in report["rows"]}
    assert len(cells) == 20
    for row in report["rows"]:
        assert bool(row["refused"]) == (row["bytes"] > report["total"])
        assert not row["refused"] or "beyond max L1 size" in row["refused"]
    assert any(row["refused"] for row in report["rows"]) and not cells[tuple(report["used"])]["refused"]
    assert cells[32, 128]["bytes"] < cells[32, 256]["bytes"] < cells[64, 256]["bytes"] < cells[256, 512]["bytes"]


def test_the_table_strikes_out_what_is_refused(report: dict) -> None:
    row = {"system": list(chunks.SYSTEMS[0]), "ran": "here", "q": [1, 4, 512, 64], "rear": None} | report
    text = "\n".join(chunks.markdown([row]))
    assert text.count("~~") == 2 + 2 * sum(bool(cell["refused"]) for cell in report["rows"]) and text.count("**") == 4
