"""Tests of the device backend need ttnn; without it they are skipped, and say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tt_impl.run.launch import Worker

HAS_TTNN = importlib.util.find_spec("ttnn") is not None
WITHOUT_TTNN = {"test_descriptor.py"}
REASON = "THE DEVICE BACKEND IS NOT TESTED HERE: ttnn is not installed in this Python (it has wheels for 3.10 and 3.12)"


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """One process that has imported ttnn; whatever runs on a mesh is forked from it."""
    with Worker() as warm:
        yield warm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest hands over the items of the whole run, so those of other folders are left alone."""
    for item in items:
        ours = Path(__file__).parent in item.path.parents
        if ours and not HAS_TTNN and item.path.name not in WITHOUT_TTNN:
            item.add_marker(pytest.mark.skip(reason=REASON))
