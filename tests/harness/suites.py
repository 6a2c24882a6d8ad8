"""Runs pytest with the plugin on a copy of the suite, as a user would, and reads what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tree import ROOT
from tt_impl.harness.summary import read
from tt_impl.harness.verdicts import Verdict

SUITE = Path(__file__).parent / "suite"
TIMEOUT_S = 300


@dataclass
class Ran:
    """What a run left: exit code, what it printed, verdicts by the end of a test's id, temporary files."""

    code: int
    out: str
    verdicts: dict[str, Verdict]
    left: list[str]

    @property
    def categories(self) -> dict[str, str]:
        return {name: verdict.category for name, verdict in self.verdicts.items()}


def run_suite(folder: Path, *arguments: str, files: tuple[str, ...] = ()) -> Ran:
    """Copy the suite, or some of its files, into ``folder`` and run it there with the plugin and ``arguments``."""
    suite, temporary, log = folder / "suite", folder / "tmp", folder / "log.json"
    wanted = ("conftest.py", *files) if files else tuple(path.name for path in SUITE.glob("*.py"))
    suite.mkdir()
    temporary.mkdir()
    for name in wanted:
        shutil.copy(SUITE / name, suite / name)
    (suite / "pytest.ini").write_text("[pytest]\nempty_parameter_set_mark = skip\n", encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTEST_PLUGINS": "tt_impl.harness.plugin",
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ttnn-mock-json", str(log), *arguments]
    done = subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    found = {verdict.id.rpartition("::")[2]: verdict for verdict in read(log)} if log.exists() else {}
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("pytest-of-")]
    return Ran(done.returncode, done.stdout + done.stderr, found, left)
