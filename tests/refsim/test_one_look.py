"""A folder of weights is looked at once before a rank starts, whichever door a run comes in by."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import refsim
from refsim.api import model, validate
from refsim.cli import process
from refsim.files import checkpoint
from refsim.files.tensor_file import TensorFile
from refsim.models import registry
from refsim.runtime.launch import Result
from tests.refsim.tiny.sd35 import make_inputs, make_model

ONCE = {"config.json": 1, "look for weights": 1, "diffusion_pytorch_model.safetensors": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Make a checkpoint, and the inputs of a forward beside it."""
    root = tmp_path_factory.mktemp("looked_at")
    make_model().save_pretrained(root / "model")
    save_file(make_inputs(), root / "in.safetensors")
    return root


@pytest.fixture
def looks(monkeypatch) -> Counter[str]:
    """How often this process reads each file of a checkpoint, and looks for its weights; no rank is started."""
    found: Counter[str] = Counter()

    def count(owner, name: str, what) -> None:
        plain = getattr(owner, name)

        def counted(*args, **more):
            found[what(*args)] += 1
            return plain(*args, **more)

        monkeypatch.setattr(owner, name, counted)

    count(Path, "read_text", lambda path, *_: path.name)
    count(TensorFile, "__init__", lambda _, path: Path(path).name)
    for module in (registry, checkpoint):
        count(module, "find_weights", lambda *_: "look for weights")
    answer = Result([{"digest": "a", "digests": ["a"]}], {"sample": torch.ones(1)}, {}, [])
    monkeypatch.setattr("refsim.runtime.launch.execute", lambda *_, **__: answer)
    monkeypatch.setattr("refsim.runtime.launch.warm_up", lambda: None)
    return found


def of_checkpoint(looks: Counter[str]) -> dict[str, int]:
    return {name: looks[name] for name in ONCE}


def test_from_python(folder, looks):
    refsim.run(folder / "model", inputs=folder / "in.safetensors", mesh="n150")
    assert of_checkpoint(looks) == ONCE


def test_from_the_command_line(folder, looks, tmp_path):
    words = [
        "run",
        folder / "model",
        "--inputs",
        folder / "in.safetensors",
        "--out",
        tmp_path / "out",
        "--mesh",
        "n150",
    ]
    assert process.run_command([str(word) for word in words]) == 0
    assert of_checkpoint(looks) == ONCE


def test_a_second_look_is_counted(folder, looks, monkeypatch):
    """What the two tests above are to find: a door that hands on the path in place of what it found."""
    plain = validate.check_run
    monkeypatch.setattr(model, "check_run", lambda found, *args, **more: plain(found.path, *args, **more))
    refsim.run(folder / "model", inputs=folder / "in.safetensors", mesh="n150")
    assert of_checkpoint(looks) == {**ONCE, "config.json": 2, "look for weights": 2}
