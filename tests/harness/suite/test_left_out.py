"""A file that leaves itself out where something is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("a_package_that_is_not_there")


def test_never():
    raise AssertionError
