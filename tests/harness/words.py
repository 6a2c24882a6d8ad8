"""Texts that users read, word for word as they were once read and approved: ``approved/``, lines by what stands there.

    REFSIM_APPROVE=1 pytest tests/harness      writes them anew; read the difference before it is committed

They hold every number, place and piece of advice that the other tests ask only a part of.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from tests.tree import ROOT

APPROVED = Path(__file__).with_name("approved")
APPROVE = "REFSIM_APPROVE"
_LINE = re.compile(r"(tests/[\w/]+\.py):(\d+)")
_ADDRESS = re.compile(r"((?:semaphore|memory at|address) )\d+")


def check(name: str, text: str) -> None:
    """Hold a text against the approved one; an older ttnn says some things in other words."""
    path = APPROVED / name
    if os.environ.get(APPROVE):
        path.write_text(text, encoding="utf-8")
    if "REFSIM_TTNN_VERSION" not in os.environ:
        assert text == path.read_text(encoding="utf-8")


def by_source(text: str) -> str:
    """Write lines of programs as what stands there, which stays when others come before it."""
    return _LINE.sub(lambda match: f"`{_source(match[1], int(match[2]))}`", text)


def _source(file: str, line: int) -> str:
    return (ROOT / file).read_text(encoding="utf-8").splitlines()[line - 1].partition("  # ")[0].strip()


def told(finding: dict[str, Any]) -> str:
    """Write a finding as one line, without addresses, which depend on what ran before."""
    devices = ",".join(map(str, finding["devices"]))
    head = f"{finding['severity']}: {finding['kind']} x{finding['count']} on {devices or '-'}: {finding['op']}"
    return by_source(_ADDRESS.sub(r"\1A", f"{head} at {finding['where']}: {finding['sentence']}"))


def all_told(findings: dict[str, list[dict[str, Any]]]) -> str:
    """Write the findings of programs, each text once with the programs that give it."""
    programs: dict[str, list[str]] = {}
    for name, of_program in findings.items():
        for finding in of_program:
            programs.setdefault(told(finding), []).append(name)
    return json.dumps(programs, indent=1) + "\n"


def approved_of(module: str) -> dict[str, list[str]]:
    """Return the approved findings of every program of a module."""
    lines: dict[str, list[str]] = {}
    for text, names in json.loads((APPROVED / f"{module}.json").read_text(encoding="utf-8")).items():
        for name in names:
            lines.setdefault(name, []).append(text)
    return lines
