"""Tests of the device wing need ttnn; without it they are skipped, and say so."""

from __future__ import annotations

import importlib.util

import pytest

HAS_TTNN = importlib.util.find_spec("ttnn") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    for item in items:
        if not HAS_TTNN and str(item.path).startswith(here) and item.get_closest_marker("without_ttnn") is None:
            item.add_marker(
                pytest.mark.skip(reason="THE DEVICE WING IS NOT TESTED HERE: ttnn is not installed in this Python")
            )
