"""What is said when it is not the command that is wrong but the machine: rights, limits, folders that are gone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import refsim
from refsim.base.errors import UserError
from refsim.cli import process
from refsim.files import output
from refsim.files.checkpoint import Checkpoint
from refsim.pipelines.request import is_pipeline
from refsim.runtime import launch
from tests.refsim.helpers import assert_one_sentence
from tests.tree import ROOT

AS_NOBODY = """
import json, os, sys
from pathlib import Path
from refsim.api.text import _stop_ids
from refsim.api.validate import _check_inputs
from refsim.files.checkpoint import Checkpoint
from refsim.errors import UserError
from refsim.models.registry import find
from refsim.pipelines.request import is_pipeline, load_tokenizer
from tt_impl.api import run
from tt_impl.harness.script import Program
import torch
import transformers
from transformers import AutoTokenizer  # loaded on use, which is not to happen as nobody

AutoTokenizer.eos_token_id = None
root = Path(sys.argv[1])
if os.getuid() == 0:  # who may read everything
    os.setuid(65534)
found = {}
for name, ask in {
    "folder": lambda: Checkpoint(root / "closed"),
    "file": lambda: Checkpoint(root / "model"),
    "pipeline": lambda: is_pipeline(root / "closed"),
    "model": lambda: find(str(root / "model")),
    "tokenizer": lambda: load_tokenizer(root / "closed"),
    "stop": lambda: _stop_ids(root / "model", AutoTokenizer),
    "inputs": lambda: _check_inputs(root / "closed.safetensors", {}, torch.float32),
    "ttnn": lambda: run(root / "closed", inputs="x", mesh="n300", parallel="tp2"),
    "script": Program(str(root / "closed.safetensors")).check,
}.items():
    try:
        found[name] = repr(ask())
    except UserError as e:
        found[name] = str(e)
print(json.dumps(found))
"""


def python(code: str, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)


def test_a_package_of_another_that_hides_one_of_refsims_is_named(tmp_path):
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / "__init__.py").write_text("")
    done = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from refsim.cli import main; main(['meshes'])")
    assert done.returncode == 2 and done.stdout == ""
    assert f"refsim's package 'parity' is hidden, Python finds another at '{tmp_path}/parity/" in done.stderr


def test_what_cannot_be_read_is_not_missing():
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        root = Path(name)
        root.chmod(0o755)
        (root / "model").mkdir()
        for path in (root / "model" / "config.json", root / "model" / "generation_config.json"):
            path.write_text("{}")
            path.chmod(0)
        (root / "closed").mkdir(0)
        (root / "closed.safetensors").touch(0)
        done = python(AS_NOBODY, name)
    assert done.returncode == 0, done.stderr
    for said in json.loads(done.stdout).values():
        assert "cannot be read (Permission denied)" in said
        assert_one_sentence(said)


@pytest.mark.parametrize("ask", [Checkpoint, lambda name: is_pipeline(Path(name))])
@pytest.mark.parametrize("name", ["n" * 300, "d/" * 3000], ids=["name", "path"])
def test_a_name_that_is_too_long_is_called_so(ask, name):
    with pytest.raises(UserError, match="File name too long") as caught:
        ask(name)
    assert len(str(caught.value)) < 300


def test_trace_and_out_are_two_files(tmp_path, capsys):
    (tmp_path / "link").symlink_to(tmp_path)
    where = ["--out", str(tmp_path / "same"), "--trace", str(tmp_path / "link" / "same")]
    folder = save_names(tmp_path / "model", "SD3Transformer2DModel", "diffusion_pytorch_model.safetensors")
    assert process.run_command(["run", str(folder), "--mesh", "n150", "--inputs", "x", *where]) == 2
    said = capsys.readouterr().err
    assert "--trace and --out are both" in said and "input" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "FOLDER", "--inputs", "x", "--out", "y", "--backend", "ttnn-mock", "--trace", "z.json"], "FILE.jsonl"),
        (["time", "sd35-large", "--trace", "z.jsonl"], "name it FILE.json."),
    ],
    ids=["ttnn", "time"],
)
def test_a_trace_in_a_form_that_is_not_there(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    folder = save_names(tmp_path / "model", "SD3Transformer2DModel", "diffusion_pytorch_model.safetensors")
    assert process.run_command([str(folder) if w == "FOLDER" else w for w in words] + ["--mesh", "n150"]) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


def save_names(folder: Path, class_name: str, *files: str) -> Path:
    """Save a folder in which only the class and the names of the other files mean something."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_class_name": class_name}))
    for file in files:
        (folder / file).touch()
    return folder


@pytest.mark.parametrize("words", [["run", "--out", "x", "--dtype", "fp7"], ["generate", "--prompt", "x"]])
@pytest.mark.parametrize(
    ("class_name", "file", "says"),
    [
        ("SD3Transformer2DModel", "diffusion_pytorch_model.bin", "a pickle"),
        ("Qwen3MoeForCausalLM", "pytorch_model-00001-of-00002.bin", "a pickle"),
        ("HunyuanDiT2DModel", "diffusion_pytorch_model.safetensors", "is a HunyuanDiT2DModel; supported: "),
    ],
)
def test_what_a_folder_is_comes_before_wrong_options(tmp_path, capsys, monkeypatch, words, class_name, file, says):
    """Before torch is loaded, too: a user hears of it at once."""
    folder = save_names(tmp_path / "model", class_name, file)
    monkeypatch.setattr(launch, "warm_up", lambda: pytest.fail("torch is loaded"))
    assert process.run_command([words[0], str(folder), "--mesh", "moon", *words[1:]]) == 2
    said = capsys.readouterr().err
    wrong_for_text = words[0] == "generate" and class_name.startswith("SD3")
    assert ("is a SD3Transformer2DModel; supported: Qwen3MoeForCausalLM." if wrong_for_text else says) in said


def test_a_folder_that_was_removed_under_the_command(tmp_path):
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from refsim.cli import main; main(['meshes'])"
    (tmp_path / "gone").mkdir()
    done = python(code, str(tmp_path / "gone"))
    assert done.returncode == 2
    assert done.stderr == "refsim: the current folder does not exist any more; change to one that does.\n"


@pytest.mark.parametrize(("limit", "mesh"), [(40, "n150"), (100, "galaxy")])
def test_too_few_file_descriptors_are_called_so(tmp_path, limit, mesh):
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); import sys\n"
        "from refsim.base.mesh import get_mesh; from refsim.cli import process\n"
        "from refsim.runtime import launch; from refsim.runtime.ranks import pool\n"
        "devices = get_mesh(sys.argv[1]).num_devices\n"
        "launch.warm_up = lambda: pool.Pool(devices)\n"
        "sys.exit(process.run_command(['run', sys.argv[3], '--mesh', 'n150', '--inputs', 'x', '--out', sys.argv[2]]))"
    )
    folder = save_names(tmp_path / "model", "SD3Transformer2DModel", "diffusion_pytorch_model.safetensors")
    done = python(code, mesh, str(tmp_path / "out"), str(folder))
    assert done.returncode == 2
    assert "file descriptors but may have" in done.stderr and "ulimit -n" in done.stderr
    assert str(tmp_path) not in done.stderr


def test_an_output_is_not_blamed_for_too_many_open_files(tmp_path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    monkeypatch.setattr(process, "_run", lambda argv: output.write(tmp_path / "out", b""))
    assert process.run_command([]) == 2
    assert capsys.readouterr().err == "refsim: too many files are open at a time; allow more with `ulimit -n 1024`.\n"


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("one transformer; leave out --guidance-2.", "one transformer; leave out guidance_2."),
        ("torchrun's ranks; use --ring 2 --ulysses 4.", "torchrun's ranks; use ring=2 ulysses=4."),
        ("give --draft DRAFT_DIR, or leave it out.", "give draft=DRAFT_DIR, or leave it out."),
        ("--prompt '--x' is none; see `refsim plan --json`.", "prompt '--x' is none; see `refsim plan --json`."),
    ],
)
def test_python_names_keywords_where_the_command_line_names_flags(written, python):
    assert (str(UserError(written)), UserError(written).with_flags) == (python, written)


def test_the_same_mistake_from_python_and_on_the_command_line(capsys):
    with pytest.raises(UserError, match=r"^ring=8 contradicts ring4 in parallel 'ring4'"):
        refsim.parse_parallel("ring4", refsim.get_mesh("t3k-1x8"), ring=8)
    words = ["time", "sd35-large", "--mesh", "t3k-1x8", "--parallel", "ring4", "--ring", "8"]
    assert process.run_command(words) == 2
    assert capsys.readouterr().err.startswith("refsim: --ring 8 contradicts ring4 in --parallel 'ring4'")
