"""What options choose from is in ``--help``, and a shell completes it."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from refsim.base.mesh import MESHES
from refsim.cli import process
from refsim.cli.app import app


@pytest.mark.parametrize("command", ["run", "generate", "time", "plan", "memory", "ops", "explain"])
def test_help_of_a_mesh_names_all_of_them(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    words = shown.replace("│", " ").replace(",", " ").split()
    assert set(MESHES) <= set(words)


@pytest.mark.parametrize("words", [[], ["parity"]], ids=["refsim", "refsim_parity"])
def test_a_command_without_words_prints_its_help(words, capsys):
    """As pip, cargo and docker do: exit code 0, and nothing is called wrong."""
    assert process.run_command(words) == 0
    shown = capsys.readouterr()
    assert "Usage: " in shown.out and shown.err == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("refsim explain --mesh t", ["t3k", "t3k-1x8", "tg"]),
        ("refsim run --attention u", ["ulysses", "usp"]),
        ("refsim run --ring-order g", ["gather"]),
        ("refsim exp", ["explain"]),
        ("refsim time sd35-", ["sd35-medium", "sd35-large"]),
        ("refsim run --backend ttnn-m", ["ttnn-mock"]),
        ("refsim parity run --suite s", ["smoke"]),
    ],
)
def test_a_shell_completes_values(words, offered):
    asked = {"_REFSIM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "import sys; sys.argv = ['/some/where/refsim/__main__.py']; from refsim.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert ran.stdout.split() == offered, ran.stderr
