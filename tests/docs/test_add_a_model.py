"""``docs/add_a_model.md``, followed literally from an empty folder: every file is written, every command run.

The commands are the document's own, in forks of a warm process. So that nothing is installed into the environment that
runs the tests, pip is told by its environment variables to install into a folder of the test, without a build
environment of its own and without dependencies, which are there. The block for ttnn runs where ttnn is installed
(``nox -s ttnn``) and is skipped aloud elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import warm

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "add_a_model.md"
ROOT = DOCUMENT.parents[1]
_BLOCK = re.compile(r"(?:^`(?P<file>[\w./]+)`:\n\n)?^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: the file it stands for, or (``sh``) the commands in it."""

    kind: str
    body: str
    file: str | None

    @property
    def commands(self) -> list[str]:
        return [line for line in self.body.splitlines() if line and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document in order."""
    return [Block(found["kind"], found["body"], found["file"]) for found in _BLOCK.finditer(text)]


def environment(folder: Path) -> dict[str, str]:
    """A place of its own for what ``pip install .`` installs."""
    site = folder / "site"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "PIP_TARGET": str(site),
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads the negated option's "no" as "do not isolate"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(command: str, folder: Path, variables: dict[str, str]) -> str:
    """Run one line of the document in ``folder``; what it printed."""
    done = warm.run(*warm.words(command), cwd=folder, env=variables, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def follow(document: list[Block], folder: Path, *, ttnn: bool) -> dict[str, str]:
    """Write and run the blocks in order; what each command printed."""
    variables, work = environment(folder), folder / "work"
    work.mkdir()
    said = {}
    for block in document:
        if block.file is not None:
            path = work / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
    for block in document:
        if block.kind == "sh" or (block.kind == "sh ttnn" and ttnn):
            said |= {command: run(command, work, variables) for command in block.commands}
    return said


@pytest.fixture(scope="module")
def document() -> list[Block]:
    return blocks(DOCUMENT.read_text(encoding="utf-8"))


def test_every_block_is_a_file_or_commands(document):
    assert all((block.file is None) == block.kind.startswith("sh") for block in document)
    assert [block.kind for block in document].count("sh ttnn") == 1


def test_the_model_is_short(document):
    """As the page says: of both backends, with configuration and spec, less than 150 lines."""
    files = {f"toydit/{name}.py" for name in ("config", "spec", "transformer", "ttnn_transformer")}
    lines = {block.file: len(block.body.splitlines()) for block in document if block.file in files}
    assert lines.keys() == files and sum(lines.values()) < 150, lines


@pytest.mark.timeout(900)
def test_a_stranger_adds_a_model(document, tmp_path):
    said = follow(document, tmp_path, ttnn=False)
    errors = [float(text.split()[-1]) for command, text in said.items() if "check.py" in command]
    assert len(errors) == 2 and max(errors) <= 5e-6
    (listed,) = (text for command, text in said.items() if "parity list" in command)
    (judged,) = (text for command, text in said.items() if "parity run" in command)
    cases = [line for line in listed.splitlines() if line.startswith("toy-")]
    assert cases and all(f"passed  {case}" in judged for case in cases)
    (predicted,) = (text for command, text in said.items() if "refsim time" in command)
    assert "toy-large 1024 on t3k" in predicted and "predicted" in predicted


@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed; nox -s ttnn runs this")
def test_a_stranger_adds_its_counterpart(document, tmp_path):
    said = follow(document, tmp_path, ttnn=True)
    assert any("golden values" in text for text in said.values())
    (judged,) = (text for command, text in said.items() if "--backend ttnn-mock -k toy" in command)
    assert "0 failed" in judged and "0 passed" not in judged


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("toydit/transformer.py", "F.silu(self._time", "F.gelu(self._time", "check.py"),
        ("toydit/config.py", "self.num_attention_heads * self", "2 * self", "refsim run"),
    ],
)
def test_a_mistake_in_a_block_is_noticed(document, tmp_path, file, old, new, said):
    """The document's test can fail: a wrong line in a file ends it at the command that shows it."""
    wrong = [Block(b.kind, b.body.replace(old, new), b.file) if b.file == file else b for b in document]
    assert wrong != document
    with pytest.raises(AssertionError, match=re.escape(said)):
        follow(wrong, tmp_path, ttnn=False)


LISTED = {
    "SD3.5": "sd35",
    "Flux.1": "flux1",
    "CogVideoX": "cogvideox",
    "FLUX.2": "flux2",
    "Qwen-Image": "qwenimage",
    "Mochi 1": "mochi",
}


@pytest.mark.parametrize("name", LISTED)
def test_the_table_counts_what_a_model_has_now(name):
    folders = [ROOT / side / "models" / LISTED[name] for side in ("refsim", "tt_impl")]
    files = [path for folder in folders for path in folder.iterdir() if path.suffix in (".py", ".json")]
    left_out = ("__init__.py", "single_file.py", "figures.py")
    counted = [len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.name not in left_out]
    row = next(line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
    assert row.endswith(f"| {sum(counted)} lines, {len(counted)} files |")
