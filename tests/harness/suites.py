"""Runs pytest with the plugin on a copy of the suite, as a user would, and reads what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests import warm
from tests.tree import ROOT
from tt_impl.harness.pytest.summary import read
from tt_impl.harness.pytest.verdicts import Verdict

SUITE = Path(__file__).parent / "suite"
TIMEOUT_S = 300
_WRONG = ("failure", "error", "skipped")


@dataclass
class Ran:
    """What a run left: exit code, what it printed, verdicts by the end of a test's id, temporary files.

    ``junit``: of each test of the JUnit file what is wrong with it: ``failure``, ``error``, ``skipped``.
    """

    code: int
    out: str
    verdicts: dict[str, Verdict]
    left: list[str]
    junit: dict[str, list[str]] = field(default_factory=dict)

    def told(self) -> str:
        """Verdicts without their seconds, what JUnit holds against tests, and the closing summary."""
        rows = [asdict(verdict) | {"seconds": 0} for verdict in self.verdicts.values()]
        lines = [json.dumps({name: value for name, value in row.items() if value}) for row in rows]
        summary = self.out.partition("= ttnn mock ")[2].partition("= short test summary")[0]
        text = re.sub(
            r'"assert .*?"(?=, "|})', '"assert"', "\n".join([*sorted(lines), json.dumps(self.junit), summary])
        )
        return re.sub(r"/\S*/(?=suite/|reports?/|report$)", "", re.sub(r"\d+\.\d+ ?s\b", "S", text))

    @property
    def categories(self) -> dict[str, str]:
        return {name: verdict.category for name, verdict in self.verdicts.items()}


def run_suite(folder: Path, *arguments: str, files: tuple[str, ...] = (), conftest: bool = True) -> Ran:
    """Copy the suite, or some of its files, into ``folder`` and run it there with the plugin and ``arguments``."""
    suite, temporary, log, junit = folder / "suite", folder / "tmp", folder / "log.json", folder / "junit.xml"
    wanted = (*["conftest.py"] * conftest, *files) if files else tuple(path.name for path in SUITE.glob("*.py"))
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
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    own = ["-p", "no:cacheprovider", f"--ttnn-mock-json={log}", f"--junitxml={junit}"]
    log.write_text("of an earlier run")
    done = warm.run("-m", "pytest", *own, *arguments, cwd=suite, env=environment, timeout=TIMEOUT_S)
    found = {verdict.id.rpartition("::")[2]: verdict for verdict in read(log)} if log.exists() else {}
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("pytest-of-")]
    cases = ElementTree.parse(junit).iter("testcase") if junit.exists() else ()
    wrong = {case.attrib["name"]: [part.tag for part in case if part.tag in _WRONG] for case in cases}
    return Ran(done.returncode, done.stdout + done.stderr, found, left, wrong)
