"""Tests of what serves a user's own program need ttnn where they run one; without it they are skipped, and say so."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tt_impl.worker import launch

collect_ignore = ["suite"]
"""The suite is not ours to run: the tests run pytest on copies of it."""

HAS_TTNN = importlib.util.find_spec("ttnn") is not None
REASON = "PROGRAMS OF USERS ARE NOT TESTED HERE: ttnn is not installed in this Python (it has wheels for 3.10 and 3.12)"


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the harness says of each program of ``tests/harness/measured.py``; they run once, in one process.

    ``folder`` is where its reports lie, in ``reports``.
    """
    if not HAS_TTNN:
        pytest.skip(REASON)
    folder: Path = tmp_path_factory.mktemp("measured")
    ran = launch("tests.harness.measured", str(folder), folder=folder, timeout=170)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return found | {"folder": str(folder)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the plugin and the runner need ttnn; pytest hands over the items of the whole run."""
    needy = [Path(__file__).with_name(name) for name in ("test_plugin.py", "test_script.py", "test_strict.py")]
    for item in items:
        if not HAS_TTNN and item.path in needy:
            item.add_marker(pytest.mark.skip(reason=REASON))
