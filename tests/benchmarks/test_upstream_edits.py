"""The tool that runs upstream's tests, without upstream's tree: edits of source and the seeded bugs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from benchmarks import tt_dit
from benchmarks.upstream.bugs import BUGS
from benchmarks.upstream.edits import (
    Argument,
    Assign,
    Condition,
    Drop,
    Keyword,
    NoSuchPlace,
    Result,
    SwapTargets,
    Unwrap,
    edited,
    install,
)

MODULE = """
class Layer:
    def forward(self, x, axis):
        first, second = self.split(x, 2)
        if self.parallel:
            x = ops.gather(x, dim=2, axis=axis)
        x = ops.gather(x.permute(1, 0), dim=3, axis=axis)
        x = x + first
        self.note(x)
        return x * second
"""


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (Keyword("gather", "dim", "1", 1), "x = ops.gather(x.permute(1, 0), dim=1, axis=axis)"),
        (Keyword("ops.gather", "axis", None), "x = ops.gather(x, dim=2)"),
        (Argument("gather", 0, "first", 1), "x = ops.gather(first, dim=3, axis=axis)"),
        (Unwrap("gather"), "x = x"),
        (Unwrap("permute", receiver=True), "x = ops.gather(x, dim=3, axis=axis)"),
        (Assign("x", "x + x + first", 2), "x = x + x + first"),
        (SwapTargets("first", "second"), "second, first = self.split(x, 2)"),
        (Condition("parallel", False), "if False:"),
        (Result("{} + 1"), "return x * second + 1"),
    ],
)
def test_an_edit_changes_what_it_says_and_nothing_else(edit, line):
    before = {text.strip() for text in edited(MODULE, "Layer.forward", Result("None")).splitlines()}
    after = {text.strip() for text in edited(MODULE, "Layer.forward", edit).splitlines()}
    assert line in after
    assert len(after - before - {"return x * second"}) <= 1


@pytest.mark.parametrize(("edit", "text"), [(Drop("note"), "note"), (Assign("x", None, 2), "x + first")])
def test_a_statement_is_left_out(edit, text):
    assert text in MODULE
    assert text not in edited(MODULE, "Layer.forward", edit)


def test_the_only_statement_of_a_block_is_left_out():
    assert "pass" in edited(MODULE, "Layer.forward", Assign("x", None))


@pytest.mark.parametrize(
    ("function", "edit"),
    [
        ("Layer.backward", Drop("note")),
        ("Layer.forward", Drop("gather")),
        ("Layer.forward", Keyword("gather", "dim", "1", 2)),
        ("Layer.forward", Keyword("gather", "shape", "1")),
        ("Layer.forward", Assign("y", "1")),
        ("Layer.forward", SwapTargets("first", "third")),
        ("Layer.forward", Condition("serial", True)),
        ("Layer.forward", Keyword("gather", "dim", "2")),
    ],
)
def test_an_edit_without_a_place_is_an_error(function, edit):
    with pytest.raises(NoSuchPlace):
        edited(MODULE, function, edit)


def test_an_installed_edit_is_seen_by_an_import(tmp_path, monkeypatch):
    folder = tmp_path / "somebodys_layers"
    folder.mkdir()
    (folder / "plain.py").write_text("def answer():\n    return 1\n", encoding="utf-8")
    (folder / "wrong.py").write_text("def answer():\n    return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install("somebodys_layers/wrong.py", "answer", Result("{} + 1"))
    assert importlib.import_module("somebodys_layers.plain").answer() == 1
    assert importlib.import_module("somebodys_layers.wrong").answer() == 2
    assert (folder / "wrong.py").read_text(encoding="utf-8").endswith("return 1\n")


def test_bugs_are_told_apart():
    assert len(BUGS) == 36
    assert len({(bug.file, bug.function, bug.edit) for bug in BUGS.values()}) == 36
    assert all(bug.file.startswith("tt_dit/") for bug in BUGS.values())
    places = [bug.case.path.partition("::")[0] for bug in BUGS.values()]
    assert all(place.startswith("models/tt_dit/tests/") or Path(place).is_file() for place in places)


@pytest.mark.skipif(tt_dit.tree() is None, reason=tt_dit.WITHOUT)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_the_tree(name):
    bug = BUGS[name]
    source = (tt_dit.tree() / "models" / bug.file).read_text(encoding="utf-8")
    edited(source, bug.function, bug.edit)
