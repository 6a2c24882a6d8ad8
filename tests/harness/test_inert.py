"""Installed and not asked for, the plugin does nothing; asked for without ttnn, it says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.conftest import HAS_TTNN
from tests.tree import ROOT

PLAIN = """
import os, sys

def test_nothing_is_imported():
    assert "tt_impl.harness.plugin" in sys.modules
    assert [name for name in ("ttnn", "torch", "tt_impl.mock", "loguru", "numpy") if name in sys.modules] == []
    assert "LOGURU_LEVEL" not in os.environ and "TT_METAL_MOCK_CLUSTER_DESC_PATH" not in os.environ

def test_fixtures_are_not_there(request):
    assert not request.session._fixturemanager.getfixturedefs("mesh_device", request.node)
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_plain.py").write_text(PLAIN, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tt_impl.harness.plugin",
        *arguments,
    ]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_without_its_option_nothing_happens(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    assert "ttnn" not in done.stdout


@pytest.mark.skipif(HAS_TTNN, reason="ttnn is installed")
def test_without_ttnn_it_says_so(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--ttnn-mock=t3k")
    assert done.returncode == 4
    assert "ttnn is not installed in this Python; install it with 'pip install ttnn'" in done.stderr


def test_it_is_registered_under_the_name_of_its_module() -> None:
    """So that naming it with ``-p``, or in a conftest, where it is installed, does not register it twice."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\n"tt_impl.harness.plugin" = "tt_impl.harness.plugin"\n' in text
