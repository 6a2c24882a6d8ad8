"""The commands of the documents: those of ``sh`` blocks are run, in order, in an empty folder; all are read.

Read means: the command, its options and nox's session exist. A block whose fence says ``not_run="why"`` is only read,
as is a command within a sentence. ``# exit code 2`` behind a command says how it ends. ``smaller="--steps 2"`` on a
fence is appended to its commands here, so that one of minutes takes seconds. Pages in ``OWN`` have a test of their own.
Names in capitals are folders that a page takes for granted; small ones stand for published models. Commands are run in
this process, scripts in forks of a warm one.
"""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from safetensors.torch import save_file

from refsim.cli import process
from refsim.cli.app import app, mount
from tests import warm
from tests.docs.test_add_a_model import ROOT, blocks
from tests.refsim.pipelines import test_speculative
from tests.refsim.timing import test_calibrate
from tests.refsim.tiny import sd3_pipeline, wan_pipeline
from tests.refsim.tiny.sd35 import make_inputs, make_model, save
from tests.test_documents import DOCUMENTS

PAGES = {path.relative_to(ROOT).as_posix(): path for path in DOCUMENTS if path.name != "CHANGELOG.md"}
OWN = {"docs/add_a_model.md", "docs/add_a_scheme.md", "docs/ttnn_tests.md"}
LONG = {
    "docs/check_a_checkpoint.md",
    "docs/ci.md",
    "docs/debug_a_case.md",
    "docs/judge.md",
    "docs/plan_a_deployment.md",
    "docs/run.md",
}
"""Two minutes in all: run in CI, and where ``REFSIM_LONG_DOCUMENTS`` is set."""
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_WHY, _SMALLER = re.compile(r'not_run="(.+?)"'), re.compile(r'smaller="(.+?)"')
_CODE = re.compile(r"# .*exit code (\d+)$")
_SESSION = re.compile(r"^@nox\.session(?:\(.*?\))?\ndef (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command of a document: how it ends, why it is not run (empty if it is), and what makes it smaller."""

    page: str
    text: str
    code: int = 0
    why: str = ""
    smaller: str = ""


def commands(page: str, text: str) -> list[Command]:
    """The commands of a page's ``sh`` blocks in order."""
    found = []
    for block in blocks(text):
        if block.kind.split(" ")[0] == "sh":
            why, smaller = _WHY.search(block.kind), _SMALLER.search(block.kind)
            for line in block.body.replace("\\\n", "").splitlines():
                code = _CODE.search(line)
                if line and not line.startswith("#"):
                    reason = why[1] if why else "CI runs it" if "venv" in line else ""
                    more = smaller[1] if smaller else ""
                    found.append(Command(page, line, int(code[1]) if code else 0, reason, more))
    return found


def in_sentences(page: str, text: str) -> list[Command]:
    """Commands within a sentence, such as `refsim meshes`."""
    quoted = re.findall(r"`((?:refsim|nox -s) [^`]+)`", _FENCE.sub("", text))
    return [Command(page, " ".join(words.split()), why="in a sentence") for words in quoted]


def problems(line: str) -> list[str]:
    """What does not exist of the commands of a line."""
    words = shlex.split(line, comments=True)
    if "refsim" in words:
        return _unknown(words[words.index("refsim") + 1 :])
    if "-s" in words:
        sessions = {name.replace("_", "-") for name in _SESSION.findall((ROOT / "noxfile.py").read_text())}
        named = itertools.takewhile(lambda word: not word.startswith("-"), words[words.index("-s") + 1 :])
        return [name for name in named if name not in sessions]
    return []


@cache
def _tree() -> Any:
    mount()
    return typer.main.get_command(app)


def _unknown(words: list[str]) -> list[str]:
    command = _tree()
    while words and hasattr(command, "commands"):
        if not words[0].startswith("-"):
            if words[0] not in command.commands:
                return words[:1]
            command = command.commands[words[0]]
        words = words[1:]
    known = {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}
    return [word for word in words if re.match(r"--?[a-z]", word) and word not in known]


ALL = {page: commands(page, path.read_text(encoding="utf-8")) for page, path in PAGES.items()}


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    text = PAGES[page].read_text(encoding="utf-8")
    found = {c.text: problems(c.text) for c in [*ALL[page], *in_sentences(page, text)]}
    assert {line: unknown for line, unknown in found.items() if unknown} == {}


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("refsim run X --mesh t3k --colour red  # --none", ["--colour"]),
        ("python -m refsim.base.torchrun --nproc-per-node 8 -m refsim run X --mesh t3k -j", ["-j"]),
        ("refsim paritty run", ["paritty"]),
        ("refsim --debug parity runs", ["runs"]),
        (".venv/bin/nox -s parity paritty", ["paritty"]),
        ("refsim parity run -k 'a and not b' --seed 1", []),
        ("nox -s ttnn-faults", []),
    ],
)
def test_what_does_not_exist_is_found(line, unknown):
    assert problems(line) == unknown


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What pages take for granted: the examples, a checkpoint and its inputs, pipelines, two models of a language, a
    profile, results of two runs.
    """
    folder = tmp_path_factory.mktemp("given")
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in ("CHECKPOINT_DIR", "SD35_LARGE_TRANSFORMER"):
        save(make_model(), folder / name)
    save_file(make_inputs(), folder / "in.safetensors")
    sd3_pipeline.make_pipeline().save_pretrained(folder / "SD3_DIR")
    wan_pipeline.make_pipeline().save_pretrained(folder / "WAN_DIR")
    pair = test_speculative.Pair(tmp_path_factory.mktemp("pair"), vocab=64)
    test_speculative.save_tokenizer(pair.target, 64)
    pair.target.rename(folder / "TARGET_DIR")
    pair.draft.rename(folder / "DRAFT_DIR")
    test_calibrate.write(folder / "my.csv", *test_calibrate.rows(range(1, 30)))
    for name in ("before", "after"):
        run = ["parity", "run", "-k", "attention-n300-sp2-ring-fp32-normal", "--out", str(folder / name)]
        assert process.run_command(run) == 0
    return folder


def follow(page: str, text: str) -> None:
    """Write the files of a page, run its commands and its nameless blocks of Python in the current folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for block in blocks(text):
        if block.file is not None:
            Path(block.file).write_text(block.body)
        elif block.kind == "python":
            Path("block.py").write_text(block.body)
            runpy.run_path("block.py")
    for command in commands(page, text):
        if command.why:
            continue
        name, *words = shlex.split(command.text, comments=True) + shlex.split(command.smaller)
        if name == "refsim":
            code, shown = process.run_command(words), ""
        else:
            assert name == "python", f"{command.text}: say not_run, or run it here"
            done = warm.run(*words, env=environment)
            code, shown = done.returncode, done.stdout + done.stderr
        assert code == command.code, f"{command.text}\n{shown}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OWN and any(not c.why for c in ALL[page])])
def test_commands_run(page, given, tmp_path, monkeypatch):
    if page in LONG and not {"CI", "REFSIM_LONG_DOCUMENTS"} & set(os.environ):
        count = sum(not c.why for c in ALL[page])
        pytest.skip(f"{count} commands of {page} take long: they run in CI and where REFSIM_LONG_DOCUMENTS is set")
    monkeypatch.chdir(tmp_path)
    for path in given.iterdir():
        Path(path.name).symlink_to(path)
    follow(page, PAGES[page].read_text(encoding="utf-8"))
    if page == "README.md":
        assert Path("t3k.svg").read_bytes() == (ROOT / "docs/t3k.svg").read_bytes()  # its picture is of this run


def test_a_command_that_ends_otherwise_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="--mesh moon"):
        follow("page", "```sh\nrefsim explain --mesh moon\n```\n")
    follow("page", "```sh\nrefsim explain --mesh moon  # exit code 2\n```\n")


def test_what_is_not_run_is_counted():
    every = [command for found in ALL.values() for command in found if command.page not in OWN]
    left = Counter(command.why for command in every if command.why)
    pytest.skip(f"{sum(left.values())} of {len(every)} commands of blocks are read and not run: {dict(left)}")
