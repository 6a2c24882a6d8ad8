"""Mutations of the mock and of the harness, judged by their own cases: which changes of their source nobody notices.

    python -m benchmarks.mock_mutation --count 300 --budget 7200 --out out/mutation_mock

``refsim faults mutate`` judges by parity cases; what judges other people's programs is judged here by the cases of
``tests/tt_impl/cases`` and the programs of ``tests/harness/programs``, which a wheel does not have. First all run once,
unchanged, and tell which lines they execute (stored in ``--out``); then each change runs those that execute its line,
quick ones unlike those before them first, until one fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parity.mutation import score
from parity.mutation.campaign import (
    BOUND,
    EQUIVALENT,
    ERROR,
    HUNG,
    KILLED,
    SURVIVED,
    UNREACHED,
    Campaign,
    Tried,
    in_turn,
)
from parity.mutation.equivalent import proof
from parity.mutation.measure import Asked, Executed, LineMap
from parity.mutation.sites import Mutation, drawn
from parity.mutation.source import outside_functions
from parity.mutation.tree import ROOT, Tree, copied, files_under

FOLDERS = ["tt_impl/mock", "tt_impl/harness"]
PROGRAMS = "mistakes padding replays cached variants".split()
EACH_S = 90.0
"""The longest that the cases of one change run."""
CASES_AT_ONCE = 60
Named = tuple[str, str, str]


def meshes() -> dict[str, list[Named]]:
    """Return the cases by the mesh they run on: kind, module and name."""
    import importlib

    from tests.tt_impl.mock.test_shadow import MESHES

    cases: dict[str, list[Named]] = {}
    for (module, name), mesh in MESHES.items():
        cases.setdefault(mesh, []).append(("rule", module, name))
    for module in PROGRAMS:
        programs = importlib.import_module(f"tests.harness.programs.{module}")
        cases["t3k"] += [("program", module, name) for name in programs.EXPECTED]
    return cases


def judged(tree: Path, mesh: str, cases: Iterable[Named], limit_s: float, *options: str) -> tuple[list[dict], str]:
    """Run cases against the packages in ``tree``; returns the verdict of each, and why the process ended early."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))), "OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(list(cases), file)
        file.flush()
        command = [sys.executable, "-m", "tests.tt_impl.judge", mesh, file.name, *options]
        why = ""
        try:
            done = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=limit_s
            )
            text = done.stdout
            if done.returncode:
                why = f"exit code {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired as error:
            text = (error.stdout or b"").decode(errors="replace")
            why = HUNG
    verdicts = [json.loads(line.removeprefix("judge ")) for line in text.splitlines() if line.startswith("judge ")]
    return verdicts, why


def recorded(tree: Tree, stored_at: Path) -> dict[str, list[Executed]]:
    """Return what every case does unchanged, by mesh: from ``stored_at`` if that was made of the same sources."""
    key = _digest()
    if stored_at.is_file():
        stored = json.loads(stored_at.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return {mesh: [Executed(**case) for case in cases] for mesh, cases in stored["meshes"].items()}
    by_mesh: dict[str, list[Executed]] = {}
    for mesh, cases in meshes().items():
        verdicts, why = judged(tree.root, mesh, cases, 3600.0, "--lines")
        if why:
            print(f"{mesh}: {why}", file=sys.stderr)
        by_mesh[mesh] = [_executed(tree, one) for one in verdicts]
        print(f"{mesh}: {len(verdicts)} of {len(cases)} cases recorded", flush=True)
    rows = {mesh: [vars(case) for case in cases] for mesh, cases in by_mesh.items()}
    stored_at.parent.mkdir(parents=True, exist_ok=True)
    stored_at.write_text(json.dumps({"key": key, "meshes": rows}), encoding="utf-8")
    return by_mesh


def _executed(tree: Tree, row: dict[str, Any]) -> Executed:
    """Read the verdict of a case; what a file does on import is executed by every case that runs some of it."""
    lines = {}
    for file, numbers in row["lines"].items():
        lines[file] = sorted({*numbers, *outside_functions(tree.read(file))})
    verdict = "failed" if row["error"] else "passed"
    return Executed("-".join(row["case"]), verdict, row["error"], row["seconds"], lines)


def _digest() -> str:
    text = hashlib.sha256()
    for folder in (*FOLDERS, "tests/tt_impl", "tests/harness/programs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text.update(path.read_bytes())
    return text.hexdigest()


def attempt(mutation: Mutation, tree: Tree, by_mesh: dict[str, list[Executed]]) -> Tried:
    """Run the cases that execute a change, mesh by mesh, until one fails."""
    source = tree.read(mutation.file)
    diff = mutation.diff(source)
    if why := proof(mutation, source):
        return Tried(mutation, diff, EQUIVALENT, reason=why)
    chosen = {
        mesh: in_turn(LineMap(cases).executing(mutation.file, mutation.runs), mutation.file)
        for mesh, cases in by_mesh.items()
    }
    count = sum(map(len, chosen.values()))
    if not count:
        return Tried(mutation, diff, UNREACHED)
    ran = 0
    started = time.monotonic()
    with tree.changed(mutation.file, mutation.applied(source)):
        for mesh, cases in chosen.items():
            if not cases:
                continue
            names = [tuple(case.case.split("-", 2)) for case in cases[:CASES_AT_ONCE]]
            verdicts, why = judged(tree.root, mesh, names, EACH_S)
            ran += len(verdicts)
            last = verdicts[-1] if verdicts else {"error": "", "case": names[0]}
            if last["error"] or why:
                how = HUNG if why == HUNG else BOUND if "AssertionError" in last["error"] else ERROR
                reason = (last["error"] or why).strip().splitlines()[-1]
                seconds = time.monotonic() - started
                return Tried(mutation, diff, KILLED, "-".join(last["case"]), reason, ran, count, seconds, how)
    return Tried(mutation, diff, SURVIVED, ran=ran, cases=count, seconds=time.monotonic() - started)


def main(argv: list[str] | None = None) -> int:
    """Run a campaign; exit code 1 if fewer than ``--least`` percent are killed."""
    parser = argparse.ArgumentParser(prog="benchmarks.mock_mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FOLDERS, help="files, folders or patterns")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--budget", type=float, default=7200.0, help="seconds of the mutations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.0, help="percent to be killed")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(argv)
    files = files_under(asked.files)
    begun = time.monotonic()
    tried: list[Tried] = []
    with copied(files) as tree:
        by_mesh = recorded(tree, asked.out / "lines.json")
        started = time.monotonic()
        for mutation in drawn({file: tree.read(file) for file in files}, asked.seed):
            if len(tried) == asked.count or time.monotonic() - started > asked.budget:
                break
            tried.append(attempt(mutation, tree, by_mesh))
            print(score.line(len(tried), tried[-1]), flush=True)
    troubled = [case for cases in by_mesh.values() for case in cases if case.verdict != "passed"]
    suite: dict[str, Any] = {"suite": "tests of the mock", "backend": "ttnn-mock", "seed": asked.seed}
    campaign = Campaign(Asked(files, **suite), asked.seed, troubled, tried, time.monotonic() - begun)
    score.write(campaign, asked.out)
    print(score.text(campaign))
    percent = score.summary(campaign)["score"]
    return int(percent is None or percent < asked.least)


if __name__ == "__main__":
    sys.exit(main())
