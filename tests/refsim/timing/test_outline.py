"""Models that predictions alone know: as large as diffusers' classes, as fast as the code of models they resemble."""

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
from refsim.models.outline import Outline, OutlinedTransformer
from refsim.models.registry import find, load_model, published, spec_of
from refsim.runtime.device import Device
from refsim.timing.cost.fitted import get_params
from refsim.timing.predict import replay
from refsim.timing.read import reading as readings
from refsim.timing.read.program import programs

FLUX1 = Outline(2, 24, 128, 64, 64, 4096, 12288, 3072, 12288, (256, 3072, 3072), num_single_layers=2)
SD35 = Outline(3, 38, 64, 64, 64, 4096, 9728, 2432, 9728, (256, 2432, 2432), last_chunks=2, rotary=False)


def parameters(name: str, **config: int) -> int:
    """Of the model as predictions read it, on one device."""
    model, asked = find(name)[1], ShapeWeights(torch.bfloat16)
    spec = spec_of(model)
    spec.model_class(asked, Device(RunOptions.of(mesh="n150")), spec.config_class.from_dict(model.config | config))
    return asked.parameters


@pytest.mark.parametrize("name", ["qwen-image", "flux2-dev", "ltx-video-2b", "wan22-ti2v-5b"])
def test_as_many_parameters_as_the_published_model(name):
    """As diffusers counts them; Mochi's pooled prompt is left out."""
    assert parameters(name) == pytest.approx(published()[name].parameters, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen-image", ["num_layers"]),
        ("flux2-dev", ["num_layers", "num_single_layers"]),
        ("ltx-video-2b", ["num_layers"]),
    ],
)
def test_a_block_has_the_parameters_of_diffusers(name, kinds):
    """One block more of a kind, here and there; norms and biases that an outline has or lacks are a thousandth."""
    diffusers, model = pytest.importorskip("diffusers"), published()[name]
    few = dict.fromkeys(kinds, 2)

    def theirs(**config: int) -> int:
        with torch.device("meta"):
            made = getattr(diffusers, model.class_name).from_config(model.config | config)
        return sum(p.numel() for p in made.parameters())

    for kind in kinds:
        more = few | {kind: 3}
        assert parameters(name, **more) - parameters(name, **few) == pytest.approx(
            theirs(**more) - theirs(**few), rel=1e-3
        )


@pytest.mark.parametrize(
    ("name", "outline", "few", "tokens", "mesh", "parallel"),
    [
        ("flux1-dev", FLUX1, {"num_layers": 2, "num_single_layers": 2}, 512, "t3k", "sp2_tp4"),
        ("sd35-large", SD35, {"num_layers": 3}, 333, "galaxy", "cfg2_sp4_tp4"),
    ],
)
def test_an_outline_takes_as_long_as_the_code_it_resembles(monkeypatch, name, outline, few, tokens, mesh, parallel):
    on, model = get_mesh(mesh), published()[name]
    options = RunOptions(on, parse_parallel(parallel, on), dtype="bf16")
    batch, machine = options.parallel.cfg, replay.machine(on, get_params(on.arch))

    def kinds(config, shapes) -> dict[str, float]:
        ops = [op for op in readings.read(config, shapes, options).ops if op.block >= 0]
        return replay.replay(programs(ops), machine).by_kind()

    code = kinds(model.config | few, spec_of(model).input_shapes(model, (128, 128), batch))
    monkeypatch.setattr(readings, "find_model", lambda architecture: (OutlinedTransformer, outline))
    shapes = {"hidden_states": (batch, 4096, 64), "encoder_hidden_states": (batch, tokens, 4096), "timestep": (batch,)}
    outlined = kinds({"_class_name": "an outline"}, shapes)
    assert sum(outlined.values()) == pytest.approx(sum(code.values()), rel=0.03)
    for kind in ("matmul", "sdpa"):
        assert outlined[kind] == pytest.approx(code[kind], rel=0.03)


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
    assert process.run_command(["time", "qwen-image", *words[1:], "--size", "512x512"]) == 2
    assert "choose --size 1024" in capsys.readouterr().err
