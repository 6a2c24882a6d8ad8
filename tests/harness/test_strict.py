"""Findings that fail a run: of pytest, by option, ini file and marker, in JUnit and the summary; of a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import warm
from tests.harness import words
from tests.harness.suites import run_suite
from tests.tree import ROOT

FILE = ("test_strict.py",)
FAILING = {
    "test_ring": "ring-without-link",
    "test_refused_and_caught": "refused",
    "test_freed_and_caught": "refused",
    "test_rows_of_minus_infinity": "not-finite",
}


def outcome(verdicts: dict) -> dict[str, str]:
    return {name: verdict.message.split(": ")[2] for name, verdict in verdicts.items() if verdict.category == "finding"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory):
    return run_suite(tmp_path_factory.mktemp("strict"), "--ttnn-mock=t3k", "--ttnn-mock-strict", *FILE, files=FILE)


def test_every_error_fails_its_test_and_nothing_else_does(strict) -> None:
    assert strict.code == 1
    assert {name.partition("[")[0]: kind for name, kind in outcome(strict.verdicts).items()} == FAILING
    assert {name.partition("[")[0] for name, wrong in strict.junit.items() if wrong} == set(FAILING)
    assert "4  failed: a finding, which strict mode does not allow" in strict.out
    assert "ttnn.matmul is refused, and the program goes on" in strict.out


def test_what_a_strict_run_says_word_for_word(strict) -> None:
    words.check("strict.txt", strict.told())


def test_without_it_findings_are_told_and_fail_nothing(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=t3k", files=FILE)
    assert ran.code == 0, ran.out
    assert "findings of the checks (they fail no test: add --ttnn-mock-strict):" in ran.out


def test_kinds_can_be_chosen_notes_among_them(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=t3k", "-o", "ttnn_mock_strict=not-finite", files=FILE)
    assert outcome(ran.verdicts) == {
        "test_rows_of_minus_infinity": "not-finite",
        "test_infinity_is_a_note": "not-finite",
    }


def test_a_kind_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=t3k", "--ttnn-mock-strict=ring", files=FILE)
    assert ran.code == 4
    assert "'ring' is no kind of finding; the kinds are ring-without-link, " in ran.out


SCRIPT = """
import torch, ttnn
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
x = ttnn.from_torch(torch.full((32, 32), -torch.inf), device=mesh, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16)
ttnn.to_torch(ttnn.softmax(x, dim=-1))
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 0), (("--strict",), 1), (("--strict", "--allow", "not-finite"), 0), (("--strict-kinds", "refused"), 0)],
)
def test_a_script_fails_if_asked_to(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    script = tmp_path / "rows.py"
    script.write_text(SCRIPT)
    done = warm.run("-m", "refsim", "ttnn", "run", "--mesh", "n150", "--json", *words, script, cwd=ROOT)
    assert done.returncode == code, done.stderr
    verdict = json.loads(done.stdout)
    assert any(f"{script}:5: error: not-finite: ttnn.softmax makes NaN" in line for line in verdict["findings"]), (
        verdict
    )
    assert verdict["category"] == ("finding" if code else "own")
