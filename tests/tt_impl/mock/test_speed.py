"""``refsim bench values``: what it prints for programs is what its schema says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.json_output import loads


def test_a_record_of_every_operation() -> None:
    words = ["-m", "refsim", "bench", "values", "--mesh", "n300", "--rounds", "1", "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = loads("bench values", done.stdout)
    assert told["mesh"] == "n300" and len(told["records"]) == 10
    for record in told["records"]:
        difference = record["with_values_ms"] - record["without_ms"]
        assert record["extra_ms"] == pytest.approx(difference, abs=2e-3), "one round: nothing but rounding"
