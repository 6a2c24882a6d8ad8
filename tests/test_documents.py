"""What the documents say about files, names and shapes holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tree import PRODUCT, ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TOP = "|".join([*PRODUCT, "tests", "docs", "examples", "reports"])
TO_COME = {"refsim/numerics"}


def names(path: Path) -> set[str]:
    """The functions, classes and constants at the top of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"[a-z]+:", target)]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(rf"`((?:{TOP})/[\w./]*)`", text)
    assert [name for name in named if not (ROOT / name).exists() and name.rstrip("/") not in TO_COME] == []


def test_names_in_the_walk_are_in_their_files():
    """``| 3 | `file` `name` |``: the file has a function, class or constant of that name at its top."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w./]+)` `(\w+)` \|", text, re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if row[1] not in names(ROOT / row[0])] == []
