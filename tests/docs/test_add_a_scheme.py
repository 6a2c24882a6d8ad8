"""``docs/add_a_scheme.md``, followed literally in an empty folder: every file is written, every command run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "add_a_scheme.md"
_FILE = re.compile(r"^`([\w./]+)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def follow(text: str, folder: Path, limit: int | None = None) -> None:
    """Write the files of the document and run its commands (the first ``limit``); AssertionError if one fails."""
    for name, body in _FILE.findall(text):
        (folder / name).write_text(body, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    commands = [line for block in _COMMANDS.findall(text) for line in block.splitlines()]
    assert commands
    for command in commands[:limit]:
        done = warm.run(*warm.words(command.removeprefix("! ")), cwd=folder, env=variables, timeout=300)
        assert bool(done.returncode) == command.startswith("! "), f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"


@pytest.fixture(scope="module")
def document() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.timeout(600)
def test_a_stranger_adds_a_scheme(document, tmp_path):
    """The scheme is right, and each of its mistakes is found."""
    follow(document, tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for other in answers[1:]:", "for other in answers[2:]:"),  # one member's keys are never merged
        (
            "all_gather(device, q, group, dim=2)",
            "all_gather(device, all_gather(device, q, group, dim=2), group, dim=2)",
        ),
        ("tp=1, sp=2))\n    group", "tp=1, sp=1))\n    group"),  # refused: PlacementError
    ],
)
@pytest.mark.timeout(600)
def test_a_mistake_in_the_document_is_noticed(document, tmp_path, old, new):
    assert document.count(old) == 1
    with pytest.raises(AssertionError, match=re.escape("python check.py")):
        follow(document.replace(old, new), tmp_path, limit=1)
