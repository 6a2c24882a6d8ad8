"""``refsim bench full-size``: a step of a small model in a published one's place; what it cannot measure is refused."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import full_size
from parity.cases.checkpoints import MODELS
from refsim.cli.process import run_command
from refsim.models import registry
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence


@pytest.fixture
def small(monkeypatch):
    """The published model, as small as the tiny one of parity."""
    tiny, known = MODELS["sd35_tiny"], registry.published()
    config = tiny.config | {"_class_name": tiny.class_name}
    changed = known | {"sd35-medium": known["sd35-medium"].but(config=config)}
    for module in (registry, full_size):
        monkeypatch.setattr(module, "published", lambda: changed)


def test_a_step_is_measured_checked_and_written(tmp_path, capsys, small):
    words = ["bench", "full-size", "sd35-medium", "--mesh", "n300", "--parallel", "sp2", "--size", "64x64"]
    out = tmp_path / "out"
    assert run_command([*words, "--batch", "1", "--check", "--rounds", "2", "--out", str(out), "--json"]) == 0
    record = loads("bench full-size", capsys.readouterr().out)
    assert (record["mesh"], record["latent"], record["layers"]) == (
        "n300",
        [8, 8],
        MODELS["sd35_tiny"].config["num_layers"],
    )
    assert record["finite"] and record["ranks_agree"] and record["sent_bytes"]
    assert 0 < record["check"]["one_minus_pcc"] < 1e-3, "bf16 on two ranks is not diffusers' to the bit"
    assert record["rounds"] == 2 and record["step_cpu_s"] > 0
    assert record["check"]["times_oracle"] > 0 and record["check"]["cpu_times_oracle"] > 0
    (written,) = json.loads((out / "full_size.json").read_text())["records"]
    assert {"schema": record["schema"], **written} == record
    assert f"| sd35-medium | {record['layers']} | n300 | sp2 | ring |" in (out / "full_size.md").read_text()


def test_ratios_are_medians_of_rounds():
    sample = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    found = full_size.compare(
        sample, sample, [(2.0, 8.0), (9.0, 4.0), (4.0, 4.0)], [(1.0, 2.0), (1.0, 2.0), (2.0, 1.0)]
    )
    assert (found["times_oracle"], found["cpu_times_oracle"]) == (2.0, 4.0)
    assert (found["oracle_s"], found["oracle_cpu_s"], found["rel_rmse"]) == (1.0, 2.0, 0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["motif-6b"], "timing only"),
        (["sd35-medium", "--size", "-1x64"], "'-1x64' is not known for this model; choose one of 512, 1024, or pixels"),
        (["sd35-medium", "--size", "3x64x64"], "makes pictures; leave out --frames"),
        (["sd35-medium", "--out", "missing/folder"], "no folder and lies in none"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, small, words, said):
    assert run_command(["bench", "full-size", *words]) == 2
    sentence = capsys.readouterr().err.strip().removeprefix("refsim: ")
    assert said in sentence
    assert_one_sentence(sentence)


def test_a_folder_has_no_published_weights(tmp_path, capsys):
    tiny = MODELS["sd35_tiny"]
    (tmp_path / "config.json").write_text(json.dumps(tiny.config | {"_class_name": tiny.class_name}))
    assert run_command(["bench", "full-size", str(tmp_path)]) == 2
    assert "is measured by its published name only; choose one of sd35-medium" in capsys.readouterr().err
