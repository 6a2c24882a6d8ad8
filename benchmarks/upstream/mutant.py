"""A pytest plugin of the seeded bugs: ``-p benchmarks.upstream.mutant`` in a process with ``UPSTREAM_BUG``.

The bug's edit is applied while the file is imported. ``UPSTREAM_SMALLER`` (JSON) gives parameters of the test, such as
the number of tokens, smaller values than upstream's: thirty blocks at 4,096 tokens would take an hour. What the test
asserts, thresholds included, stays upstream's own.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from benchmarks.upstream.bugs import BUGS
from benchmarks.upstream.edits import install

if name := os.environ.get("UPSTREAM_BUG"):
    bug = BUGS[name]
    install(bug.file, bug.function, bug.edit)

_SMALLER: dict[str, Any] = json.loads(os.environ.get("UPSTREAM_SMALLER", "{}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give parameters their smaller values; a name that a test does not have is an error."""
    for item in items if _SMALLER else []:
        parameters = item.callspec.params
        if missing := _SMALLER.keys() - parameters.keys():
            raise pytest.UsageError(f"{item.nodeid} has no parameters {sorted(missing)}")
        parameters.update(_SMALLER)
