"""Run published programs, a row each, and write what the rows say.

    DFLASH_TREE=... TT_METAL_TREE=... python -m benchmarks.programs --out reports [-k WORDS] [--limit SECONDS]

Rows are kept in ``programs.json`` beside the page, so that a run of some (``-k``) replaces only theirs; the page is
made of all. Seconds and memory are those of the process that ``refsim ttnn run`` is.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.programs import checkpoints
from refsim.files import output
from refsim.files.tables import as_markdown
from tt_impl.harness.pytest import verdicts

ROOT = Path(__file__).resolve().parents[2]
DRIVE = Path(__file__).with_name("drive")
TREES = {"zoecarver/dflash at eb3c338": "DFLASH_TREE", "tt-metal at 622c6fb9": "TT_METAL_TREE"}
"""Published repositories, and the environment variables that name their checkouts."""
DFLASH, TT_METAL = TREES
CHECK = re.compile(r"^check: (?P<what>.+): (?P<value>[-+.\w]+)$", re.MULTILINE)
PCC = re.compile(r"\bPCC[=: ]+(?P<value>0?\.\d+|1\.0+)")
OURS = (verdicts.RULE, verdicts.OPTION, verdicts.SHADOW, verdicts.UNSEEN, verdicts.CAUGHT)


@dataclass(frozen=True)
class Program:
    """What to run.

    Attributes:
        name: of the row.
        source: a key of ``TREES``.
        script: file to run; its folder is on the search path.
        mesh: what it asks for; ``auto`` is that of the case of a test.
        weights: what to make small random weights with, given to a script as its first argument, to a test as
            ``HF_MODEL``; of ``checkpoints.HUB`` it loads models by their published names, ``HF_HOME``.
        path: folders of the checkout that are on the search path.
        changed: what the script replaces in the published program, and why.
        cause: whose a failure is and why, where somebody has looked.
        is_test: a case of ``script``, drawn with a seed, is run by pytest.
    """

    name: str
    source: str
    script: Path
    mesh: str
    weights: str = ""
    path: tuple[str, ...] = (".",)
    changed: str = ""
    cause: str = ""
    is_test: bool = False


@dataclass
class Row:
    """What came of it: ``checks`` are its comparisons; ``seconds``, ``cpu_seconds``, ``gib`` are of its process.

    ``cause`` says whose a failure is, and why, where somebody has looked.
    """

    name: str
    source: str
    mesh: str
    category: str
    message: str
    operations: int
    kernels: int
    findings: int
    seconds: float
    gib: float
    cpu_seconds: float = 0.0
    changed: str = ""
    checks: dict[str, str] = field(default_factory=dict)
    cause: str = ""

    @property
    def explained(self) -> str:
        """Return ``cause``, or what is known of failures with such a message."""
        return self.cause or next((why for words, why in CAUSES if re.search(words, self.message)), "")

    @property
    def whose(self) -> str:
        """Whose a failure is: as somebody found, or as far as its kind says."""
        if self.category in (verdicts.RULES, verdicts.KERNELS, verdicts.FALLBACK, verdicts.NO_DEVICE):
            return "-"
        if self.category == verdicts.SKIPPED:
            return "skipped"
        if self.explained:
            return self.explained.partition(":")[0]
        if self.category in (verdicts.ENVIRONMENT, verdicts.VERSION):
            return "not here"
        return "ours" if self.category in OURS else "open"


QUIRKS = "reference: frequencies of timesteps in bfloat16, as tt_dit has them; `arange` of uint32 from the host"
QWEN = (
    "rotary positions by the arguments of older diffusers; reference: guidance without its norm rescaled, prompts that "
    "attend to their padding, as tt_dit has them"
)
PIPELINES = (
    ("flux1", "flux1", f"{QUIRKS}; guidance not times 1000; VAE in torch"),
    ("sd35", "sd35", f"{QUIRKS}; VAE in torch"),
    ("mochi", "mochi", "VAE in torch, latents in float32 for it"),
    ("wan22", "wan", ""),
    ("qwenimage", "qwenimage", f"{QUIRKS}; {QWEN}"),
    ("motif", "motif", "weights and sizes; `arange` of uint32 from the host; VAE in torch; beside tt_dit's reference"),
)


CAUSES = (
    (
        r"WorkUnitSpec .* out of bounds",
        "ttnn's mock: cores are checked against the grid with dispatch in rows (program_spec.cpp of tt-metal), "
        "whatever axis a program asks for",
    ),
    (
        r"cannot import name '\w+' from 'ttnn|group_norm output dtype must match",
        "not here: made for another version of ttnn",
    ),
    (
        r"Tracing is not supported in fast runtime mode",
        "theirs: it wants TTNN_CONFIG_OVERRIDES without the fast runtime",
    ),
)
"""Whose failures with such messages are, and why."""
TUTORIALS = ("ttnn/ttnn/examples/usage", "ttnn/ttnn/examples/bert", "ttnn/tutorials/basic_python")
TABLE = Path(__file__).with_name("tests.csv")
"""Test files of tt-metal: path, mesh, weights, what is replaced, and whose a failure is."""


def programs(trees: dict[str, Path]) -> Iterator[Program]:
    """Yield the programs of the checkouts that are here."""
    if DFLASH in trees:
        tree = trees[DFLASH]
        path = ("src", ".", "test")
        for script in sorted(tree.glob("test/test_*.py")):
            yield Program(f"{script.name}", DFLASH, script, "bh-qb-1x4", path=path)
        small = "sizes made small: 2 layers, 16 experts, 1,024 words"
        for name in ("speculative", "traced"):
            yield Program(f"{name} loop", DFLASH, DRIVE / f"{name}.py", "bh-qb-1x4", "dflash", path, small)
    if TT_METAL in trees:
        for name, weights, changed in PIPELINES:
            yield Program(f"tt_dit {name}", TT_METAL, DRIVE / f"{name}.py", "t3k", weights, (".",), changed)
        for folder in TUTORIALS:
            for script in sorted(trees[TT_METAL].glob(f"{folder}/[a-z]*.py")):
                yield Program(f"{script.parent.name}/{script.name}", TT_METAL, script, "n150")
        with TABLE.open(newline="", encoding="utf-8") as table:
            for row in csv.DictReader(table):
                script = trees[TT_METAL] / row["path"]
                why = row["replaced"], row["cause"]
                yield Program(row["path"], TT_METAL, script, row["mesh"], row["weights"], (".",), *why, is_test=True)


def run(program: Program, tree: Path, work: Path, limit: float) -> Row:
    """Run one program on the mock."""
    weights = _weights(program.weights, work) if program.weights else None
    search = [*(str((tree / folder).resolve()) for folder in program.path), str(ROOT), str(DRIVE)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search), "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "verdict.json")
        if program.is_test:
            environment |= {"HF_HUB_OFFLINE": "1", "TT_CACHE_PATH": folder, "TT_METAL_HOME": str(tree)}
            environment |= {"LOGURU_LEVEL": "INFO"}  # their PCC
            if weights:
                environment["HF_HOME" if program.weights == checkpoints.HUB else "HF_MODEL"] = str(weights)
            environment |= {"MESH_DEVICE": program.mesh.upper()} if program.mesh != "auto" else {}
            command = _pytest(program, answer, limit)
        else:
            command = [sys.executable, "-m", "refsim", "ttnn", "run", "--json", "--mesh", program.mesh]
            command += [str(program.script), *([str(weights)] if weights else [])]
        with answer.open("w") as stdout:
            began = time.monotonic()
            process = subprocess.Popen(
                command, cwd=tree if program.is_test else work, env=environment, stderr=log,
                stdout=log if program.is_test else stdout, start_new_session=True,
            )  # fmt: skip
            usage = _waited(process, limit)
        seconds = time.monotonic() - began
        log.seek(0)
        verdict = answer.read_text() if answer.exists() else ""  # the plugin begins without it
        return _row(program, log.read(), verdict, seconds, usage)


def _weights(name: str, work: Path) -> Path:
    """Make a checkpoint in a process of its own: a process that is started later begins with the memory of this one."""
    folder = work / name
    subprocess.run([sys.executable, "-m", "benchmarks.programs.checkpoints", name, str(folder)], cwd=ROOT, check=True)
    return folder


def _pytest(program: Program, answer: Path, limit: float) -> list[str]:
    """Return the command that runs a case of a file of tests, drawn with a seed."""
    options = ["-q", "-s", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    mock = [f"--ttnn-mock={program.mesh}", "--ttnn-mock-cases=1", f"--ttnn-mock-json={answer}", f"--timeout={limit:g}"]
    mock += ["--ttnn-mock-weights=random:1"] if program.weights == checkpoints.HUB else []
    return [sys.executable, "-m", "pytest", "-p", "tt_impl.harness.plugin", *options, *mock, str(program.script)]


def _row(program: Program, log: str, answer: str, seconds: float, usage: Any) -> Row:
    """Make a row of what a process said and used; one that said nothing had no time, or could not be collected."""
    broken = re.search(r"^E +(?P<why>\w*Error\b.*)$", log, re.MULTILINE)
    verdict: dict[str, Any] = {"category": verdicts.TIMEOUT, "message": "no end"}
    if answer.startswith("{"):
        verdict = json.loads(answer.splitlines()[0] if program.is_test else answer)
    elif broken:
        verdict = {"category": verdicts.ENVIRONMENT, "message": broken["why"]}
    ops: dict[str, int] = verdict.get("ops", {})
    return Row(
        program.name,
        program.source,
        verdict.get("mesh", program.mesh),
        verdict["category"],
        _without_folders(verdict["message"].removeprefix("E ")),
        sum(ops.values()),
        sum(count for name, count in ops.items() if name.startswith("ttl.")),
        len(verdict.get("findings", ())),
        round(seconds, 1),
        round(usage.ru_maxrss / 2**20, 2),
        round(usage.ru_utime + usage.ru_stime, 1),
        program.changed,
        _checks(log),
        program.cause,
    )


def _waited(process: subprocess.Popen, limit: float) -> Any:
    """Wait for a process and those it started, told to end after ``limit`` seconds, killed 30 later; return the usage.

    ``Popen.wait`` has a limit but not what was used, ``os.wait4`` the reverse: so it is asked now and then.
    """
    end = time.monotonic() + limit
    ends = signal.SIGTERM
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.monotonic() > end:
            os.killpg(process.pid, ends)
            ends = signal.SIGKILL
            end += 30
        time.sleep(0.2)


def _checks(text: str) -> dict[str, str]:
    """Return what a program says of its comparisons: those of ``drive`` by name, of others the lowest PCC."""
    checks = {match["what"]: match["value"] for match in CHECK.finditer(text)}
    correlations = [float(match["value"]) for match in PCC.finditer(text)]
    return checks or ({"lowest PCC": f"{min(correlations):.6f}"} if correlations else {})


def page(rows: Iterable[Row]) -> str:
    """Write the rows as a page."""
    rows = list(rows)
    passed = sum(row.whose == "-" for row in rows)
    head = (
        "# Published programs on the mock\n\n"
        "**Measured** by `python -m benchmarks.programs`: programs of others, unmodified unless a row says what is\n"
        "replaced, with `refsim ttnn run` on mock meshes. Seconds and peak memory are of its process on this machine,\n"
        "which does other work, too; they say nothing about a device. A failure is *not here* where weights, a file,\n"
        "a module or the version of ttnn that it is made for are missing, *ours* where the mock does not know a value\n"
        "or takes more time or memory than there is, *theirs* or that of ttnn's own mock device where somebody has\n"
        "looked, else open; *skipped* says the program itself.\n\n"
        f"{passed} of {len(rows)} pass, {sum(row.whose == 'not here' for row in rows)} need what is not here.\n"
        "Of a file of tests a case drawn with a seed is run.\n"
    )
    parts = [head]
    for source in dict.fromkeys(row.source for row in rows):
        cells = [
            (
                row.name, row.mesh, verdicts.CATEGORIES[row.category].partition(":")[0], row.whose, row.operations,
                row.kernels, row.findings, ", ".join(f"{what} {value}" for what, value in row.checks.items()) or "-",
                row.seconds, row.cpu_seconds or "-", row.gib, row.changed or "-",
            )
            for row in rows if row.source == source
        ]  # fmt: skip
        heads = ("program", "mesh", "verdict", "whose", "operations", "TT-Lang kernels", "findings", "checks", "s")
        parts.append(f"## {source}\n\n" + as_markdown(cells, (*heads, "CPU s", "peak GiB", "replaced")) + "\n")
    failures = [
        (row.name, textwrap.shorten(row.message, 200, placeholder=" ..."), row.explained or "-")
        for row in rows if row.whose != "-"
    ]  # fmt: skip
    if failures:
        heads = ("program", "message", "whose, and why")
        parts.append("## What stopped the others\n\n" + as_markdown(failures, heads) + "\n")
    return "\n".join(parts)


def _without_folders(message: str) -> str:
    """Return a message without where files lie on this machine."""
    return re.sub(r"(?<![\w.:/])/[^\s'\"()]*/", "", re.sub(r" \(/[^)]*\)", "", message))


def main() -> int:
    """Run what the command line asks for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("-k", default="", help="only programs whose name has these words, separated by commas")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one program")
    parser.add_argument("--work", type=Path, default=Path("out/programs"), help="folder of weights")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of programs.md and programs.json")
    options = parser.parse_args()
    trees = {source: Path(os.environ[name]).absolute() for source, name in TREES.items() if os.environ.get(name)}
    if not trees:
        print(f"skipped: none of {', '.join(TREES.values())} names a checkout.", file=sys.stderr)
        return 0
    work = options.work.absolute()
    for folder in (work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    saved = options.out / "programs.json"
    rows = {row["name"]: Row(**row) for row in json.loads(saved.read_text())} if saved.exists() else {}
    for program in programs(trees):
        if program.name in rows:
            rows[program.name].cause = program.cause
        if options.k and not any(word in program.name for word in options.k.split(",")):
            continue
        row = run(program, trees[program.source], work, options.limit)
        rows[row.name] = row
        print(f"{row.name}: {row.category} {row.checks} {row.seconds} s, {row.gib} GiB {row.message}", flush=True)
        output.write(saved, json.dumps([asdict(row) for row in rows.values()], indent=1).encode())
    output.write(options.out / "programs.md", page(rows.values()).encode())
    return 0
