"""Models that predictions alone know: as large as diffusers' classes, as fast as the model they share blocks with."""

from __future__ import annotations

import json

import pytest
import torch

from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.cli import process
from refsim.files.checkpoint import ShapeWeights
from refsim.models.registry import find, load_model, published, spec_of
from refsim.runtime.device import Device
from refsim.timing.cost.fitted import get_params
from refsim.timing.predict import replay
from refsim.timing.read import reading as readings
from refsim.timing.read.program import programs

MOTIF_LARGE = {
    "_class_name": "MotifTransformer",
    "num_layers": 3,
    "num_attention_heads": 38,
    "attention_head_dim": 64,
    "modulation_dim": 2432,
    "time_embed_dim": 256,
    "patch_size": 2,
    "in_channels": 16,
    "text_dim": 4096,
}
"""As wide as SD3.5-Large."""


def parameters(name: str, **config: int) -> int:
    """Of the model as predictions read it, on one device."""
    model, asked = find(name)[1], ShapeWeights(torch.bfloat16)
    spec = spec_of(model)
    spec.model_class(asked, Device(RunOptions.of(mesh="n150")), spec.config_class.from_dict(model.config | config))
    return asked.parameters


@pytest.mark.parametrize("name", ["ltx-video-2b", "wan22-ti2v-5b"])
def test_as_many_parameters_as_the_published_model(name):
    """As diffusers counts them."""
    assert parameters(name) == pytest.approx(published()[name].parameters, rel=0.01)


def test_a_block_has_the_parameters_of_diffusers():
    """One block more, here and there; norms and biases that Wan's has or lacks are a thousandth."""
    diffusers = pytest.importorskip("diffusers")
    model = published()["ltx-video-2b"]

    def theirs(num_layers: int) -> int:
        with torch.device("meta"):
            made = getattr(diffusers, model.class_name).from_config(model.config | {"num_layers": num_layers})
        return sum(p.numel() for p in made.parameters())

    ours = parameters(model.name, num_layers=3) - parameters(model.name, num_layers=2)
    assert ours == pytest.approx(theirs(3) - theirs(2), rel=1e-3)


def test_motif_takes_as_long_as_the_model_it_shares_blocks_with():
    mesh = get_mesh("galaxy")
    model = published()["sd35-large"]
    options = RunOptions(mesh, parse_parallel("cfg2_sp4_tp4", mesh), dtype="bf16")
    machine = replay.machine(mesh, get_params(mesh.arch))

    def kinds(config, shapes) -> dict[str, float]:
        ops = [op for op in readings.read(config, shapes, options).ops if op.block >= 0]
        return replay.replay(programs(ops), machine).by_kind()

    shapes = {"hidden_states": (2, 4096, 64), "encoder_hidden_states": (2, 333, 4096), "timestep": (2,)}
    wanted = kinds(model.config | {"num_layers": 3}, spec_of(model).input_shapes(model, (128, 128), 2))
    assert kinds(MOTIF_LARGE, shapes) == pytest.approx(wanted, rel=1e-6)


def test_timing_only_is_said_and_nothing_runs(capsys, tmp_path):
    words = ["motif-6b", "--mesh", "n300", "--parallel", "tp2"]
    assert process.run_command(["time", *words, "--force"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("motif-6b (timing only) 1024 on")
    assert process.run_command(["plan", *words[:3], "--attention", "ring"]) == 0
    assert process.run_command(["time", *words, "--force", "--from", "ttnn-mock"]) == 2
    assert "motif-6b has no program in TTNN; choose one of sd35-medium" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps(published()["motif-6b"].config))
    for given in ("motif-6b", str(tmp_path)):
        assert process.run_command(["run", given, *words[1:], "--inputs", "i.safetensors", "--out", "o"]) == 2
        assert "has no numeric model here: only `refsim time` and `refsim plan` know it" in capsys.readouterr().err
    with pytest.raises(UserError, match="no numeric model"):
        load_model(readings.Architecture(published()["motif-6b"].config), None, None)
    assert process.run_command(["time", "ltx-video-2b", *words[1:], "--size", "512x512"]) == 2
    assert "choose --size 512p" in capsys.readouterr().err
