"""Findings in many forms: every wrong program of ``programs/variants`` is named, and no right one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.harness.programs import variants
from tests.tree import ROOT
from tests.tt_impl.worker import launch

pytestmark = pytest.mark.skipif(not HAS_TTNN, reason=REASON)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("variants")
    done = launch("tests.harness.watching", "t3k", str(folder), "variants", folder=folder, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "variants.json").read_text(encoding="utf-8"))


def names(family: str) -> list[str]:
    return [name for name in variants.EXPECTED if name.split("-")[0] == family]


@pytest.mark.parametrize("family", variants.FAMILIES)
def test_wrong_programs_are_named(family: str, ran: dict[str, Any]) -> None:
    kind, _ = variants.FAMILIES[family]
    wrong = {name: ran[f"{name} wrong"] for name in names(family)}
    missed = {name: row for name, row in wrong.items() if {finding["kind"] for finding in row["findings"]} != {kind}}
    assert wrong and missed == {}


@pytest.mark.parametrize("family", variants.FAMILIES)
def test_right_programs_are_silent(family: str, ran: dict[str, Any]) -> None:
    right = {name: ran[f"{name} right"] for name in names(family)}
    assert {name: row for name, row in right.items() if row != {"error": None, "findings": []}} == {}


def test_findings_word_for_word(ran: dict[str, Any]) -> None:
    words.check("variants.json", words.all_told({name: row["findings"] for name, row in ran.items()}))


def test_the_table_of_the_page() -> None:
    page = (ROOT / "docs" / "ttnn_tests.md").read_text(encoding="utf-8")
    assert variants.table() in page, variants.table()
