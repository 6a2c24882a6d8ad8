"""A pytest plugin that leaves out cases which a broken-off run has told of, after the sample is drawn.

``-p benchmarks.upstream.resume`` with ``UPSTREAM_FORMER`` naming a file of that run's lines. ``--deselect`` would leave
them out before the draw, and others would be drawn in their place.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what has no line."""
    lines = Path(os.environ["UPSTREAM_FORMER"]).read_text(encoding="utf-8").splitlines()
    former = {json.loads(line)["id"] for line in lines}
    session.config.hook.pytest_deselected(items=[item for item in session.items if item.nodeid in former])
    session.items[:] = [item for item in session.items if item.nodeid not in former]
