"""Every kind of mistake is found at its line and operation, and the correct version of each program gives nothing."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.conftest import HAS_TTNN, REASON
from tests.harness.programs import mistakes
from tests.tt_impl.worker import launch

pytestmark = pytest.mark.skipif(not HAS_TTNN, reason=REASON)
KIND = re.compile(r"^\| ([a-z-]+) \|", re.MULTILINE)
FILE = "tests/harness/programs/mistakes.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("findings")
    ran = launch("tests.harness.watching", "t3k", str(folder), "mistakes", folder=folder, timeout=170)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads((folder / "mistakes.json").read_text(encoding="utf-8"))


def marked_line(name: str) -> int:
    """The line of a program that is marked as the one to blame; of ``gather``, where the program has none."""
    for function in (getattr(mistakes, name), mistakes.gather):
        lines, first = inspect.getsourcelines(function)
        for i, line in enumerate(lines):
            if "# here" in line:
                return first + i
    raise AssertionError(f"no line of {name} is marked")


@pytest.mark.parametrize("name", mistakes.EXPECTED)
def test_a_mistake_is_found(name: str, found: dict[str, Any]) -> None:
    kind, op = mistakes.EXPECTED[name]
    ran = found[f"{name} wrong"]
    assert ran["error"] is None, ran["error"]
    found_there = [(f["kind"], f["op"], f["where"]) for f in ran["findings"]]
    assert found_there == [(kind, op, f"{FILE}:{marked_line(name)}")], ran["findings"]
    sentence = ran["findings"][0]["sentence"]
    assert sentence.endswith(".") and "\n" not in sentence, sentence


@pytest.mark.parametrize("name", mistakes.EXPECTED)
def test_the_correct_one_is_fine(name: str, found: dict[str, Any]) -> None:
    ran = found[f"{name} right"]
    assert ran["error"] is None, ran["error"]
    assert ran["findings"] == []


def test_every_kind_has_a_program(found: dict[str, Any]) -> None:
    from tt_impl.harness import findings

    kinds = set(KIND.findall(findings.__doc__)) - {"kind"}
    made = {f["kind"] for ran in found.values() for f in ran["findings"]}
    assert kinds - made == {"not-neighbours", "submeshes-differ"}  # they need meshes of their own
