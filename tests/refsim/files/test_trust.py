"""Nothing that a checkpoint's folder or the current folder holds is ever run, and nobody is asked whether it may be."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from refsim.api.text import Tokenizer
from refsim.base import processes, search_path
from refsim.base.errors import UserError
from refsim.pipelines.request import load_tokenizer
from tests.refsim.helpers import assert_one_sentence
from tests.refsim.pipelines.test_speculative import save_tokenizer
from tests.refsim.tiny.sd35 import make_inputs, make_model, save
from tests.tree import ROOT, files

TRAP = "from pathlib import Path\nPath(__file__).with_name('was_run').touch()\n"
SHADOWED = ("ctypes", "numpy", "rich", "safetensors", "torch", "typer")
COMMAND = "from refsim.cli import main; main()"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """Make a checkpoint's folder with modules in it that leave ``was_run`` behind, and ``in.safetensors`` beside it."""
    folder = tmp_path_factory.mktemp("strange")
    save(make_model(num_layers=1, dual_attention_layers=()), folder / "checkpoint")
    save_file(make_inputs(), folder / "in.safetensors")
    for name in SHADOWED:
        (folder / "checkpoint" / f"{name}.py").write_text(TRAP)
    return folder / "checkpoint"


@pytest.mark.parametrize(
    ("start", "path"),
    [(("-m", "refsim"), str(ROOT)), (("-c", COMMAND), f"{ROOT}{os.pathsep}")],
    ids=["python_m", "empty_place_in_PYTHONPATH"],
)
def test_no_module_of_the_current_folder_is_run(checkpoint, start, path):
    words = ["run", ".", "--mesh", "n150", "--inputs", "../in.safetensors", "--out", "../out.safetensors"]
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *start, *words]
    done = subprocess.run(command, cwd=checkpoint, env=environment, capture_output=True, text=True, timeout=120)
    assert not (checkpoint / "was_run").exists()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [["{here}"], ["", "{here}"], ["{here}/../here"], ["{link}"]], ids="-".join)
def test_a_helper_process_does_not_look_in_the_current_folder(tmp_path, monkeypatch, path):
    """Neither the process that forks ranks, nor ttnn's, nor a command that runs a command."""
    here, link = tmp_path / "here", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    (here / "json.py").write_text(TRAP)
    places = [place.format(here=here, link=link) for place in path]
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*places, *sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    command, environment = processes.command("refsim.cli", "meshes", "--json", as_list=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["meshes"] and not (here / "was_run").exists()


def test_a_folder_that_was_named_is_looked_into(tmp_path, monkeypatch):
    """In PYTHONPATH it stands because somebody wants it there; the folder of this project is needed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "elsewhere"])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert search_path.trusted() == [str(tmp_path), "elsewhere"]
    monkeypatch.setenv("PYTHONPATH", "")
    assert search_path.trusted() == ["elsewhere"]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", ["", str(ROOT)])
    assert search_path.trusted() == [str(ROOT)]


def test_a_tokenizer_with_code_of_its_own_is_refused(tmp_path, monkeypatch, capsys):
    """Also where somebody types yes all the time."""
    (tmp_path / "mine.py").write_text(TRAP + "class Mine: ...\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}})
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(UserError, match="needs code that lies beside it, which is never run") as caught:
        load_tokenizer(tmp_path)
    assert_one_sentence(str(caught.value))
    assert not list(tmp_path.rglob("was_run")) and capsys.readouterr().out == ""


ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ('{0.__class__.__mro__}'|attr('format'))(messages) }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.append(1) }}",
    "{{ raise_exception('no') }}",
    "{% for %}",
    "{{ 1 / 0 }}",
)


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_does_not_leave_its_sandbox(tmp_path, template):
    save_tokenizer(tmp_path, 8)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    with pytest.raises(UserError, match="chat template cannot be used"):
        Tokenizer(tmp_path).ids("w1 w2", chat=True)


def test_jinja_is_asked_for_above_the_known_ways_out_of_its_sandbox():
    """CVE-2025-27516, the latest of them, was closed in 3.1.6."""
    floor = re.search(r'"jinja2>=([\d.]+)"', (ROOT / "pyproject.toml").read_text()).group(1)
    assert tuple(map(int, floor.split("."))) >= (3, 1, 6)


def test_no_library_may_run_code_of_a_folder():
    """Wherever transformers or diffusers read a folder they are told so: left out, transformers asks on stdin."""
    places = [ROOT / "examples", *(ROOT / name for name in ("refsim", "tt_impl", "parity", "benchmarks"))]
    calls = []
    for path in {*files(), *(file for place in places for file in place.rglob("*.py"))}:
        if "tests" in path.relative_to(ROOT).parts:
            continue
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "from_pretrained" in source else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained":
                said = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
                calls.append((f"{path.relative_to(ROOT)}:{node.lineno}", said.get("trust_remote_code")))
    assert len(calls) >= 4
    assert [place for place, trusted in calls if trusted is not False] == []
