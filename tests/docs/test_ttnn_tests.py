"""``docs/ttnn_tests.md``, followed literally in an empty folder: every file is written, every command run.

Only the installation is left out: what it installs is there. A command whose comment says so has to fail.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.docs.test_add_a_model import ROOT, Block, blocks

DOCUMENT = ROOT / "docs" / "ttnn_tests.md"
FAILS = "# exit code 1"
PLUGIN = "tt_impl.harness.plugin"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ttnn") is None, reason="ttnn is not installed; nox -s ttnn runs this"),
]


def environment() -> dict[str, str]:
    """The project on the path; the plugin by its name where it is not installed."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if all(point.value != PLUGIN for point in importlib.metadata.entry_points(group="pytest11")):
        variables["PYTEST_PLUGINS"] = PLUGIN
    return variables


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the document in ``folder``: Python's in a fork of the warm process, the others in a shell."""
    if command.startswith("sed "):
        return subprocess.run(["sh", "-ec", command], cwd=folder, capture_output=True, text=True, check=False)
    return warm.run(*warm.words(command), cwd=folder, env=environment(), timeout=300)


def follow(document: list[Block], folder: Path) -> dict[str, str]:
    """Write the files and run the commands; what each printed."""
    work = folder / "work"
    work.mkdir()
    said = {}
    for block in document:
        if block.file is not None:
            (work / block.file).write_text(block.body)
    for command in (line for block in document if block.kind == "sh" for line in block.commands):
        done = run(command.removesuffix(FAILS), work)
        said[command] = done.stdout + done.stderr
        assert done.returncode == command.endswith(FAILS), f"{command}\n{said[command]}"
    return said


@pytest.fixture(scope="module")
def document() -> list[Block]:
    return blocks(DOCUMENT.read_text(encoding="utf-8"))


def test_a_stranger_runs_tests_and_scripts(document, tmp_path):
    said = follow(document, tmp_path)
    assert "1  passed on rules of the mock" in said["pytest --ttnn-mock t3k test_feed_forward.py"]
    (forgotten,) = (text for command, text in said.items() if command.endswith(FAILS) and "forgotten" in command)
    assert "1  failed: an assertion, of a value or a shape" in forgotten
    assert (
        "first shape: result 0 of ttnn.all_gather"
        in said["refsim ttnn diff --mesh t3k gather.py changed.py  # exit code 1"]
    )
    assert "127.0" in said["refsim ttnn run --mesh t3k gather.py"]
    assert "2048.0" in said["python cell.py"]


def test_a_mistake_in_a_block_is_noticed(document, tmp_path):
    """The document's test can fail: a wrong line in a file ends it at the command that shows it."""
    old, new = 'activation="relu"', 'activation="silu"'
    wrong = [Block(block.kind, block.body.replace(old, new), block.file) for block in document]
    assert wrong != document
    with pytest.raises(AssertionError, match="test_feed_forward"):
        follow(wrong, tmp_path)


def test_the_forgotten_sum_of_the_first_page(tmp_path):
    """The README's command fails, and what it shows of it is what is said."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = "pytest --ttnn-mock t3k examples/test_forgotten_sum.py"
    done = run(command, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = " ".join(done.stdout.replace(f"{ROOT}/", "").replace(f"{tmp_path}/", "").split())
    for shown in (
        "assert tensor(0.4729) > 0.999",
        page[page.index("examples/test_forgotten_sum.py:27") :].split(" ```")[0],
    ):
        assert shown in said, done.stdout
    assert command in page
