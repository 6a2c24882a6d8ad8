"""Wan2.2's two experts in turn on one mesh, and its transformer called on what is on the devices already."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.cases import ModelShape
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import model_inputs
from parity.cases.model_folders import build
from parity.measure.metrics import one_minus_pcc
from refsim import api
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from tt_impl.run.launch import execute

MODEL = "wan22_tiny64"
OPTIONS = RunOptions.of(mesh="bh-qb", parallel="sp2_tp2", dtype="bf16", backend="ttnn-mock")
SIZES = {"frames": 3, "height": 8, "width": 12}


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    return model_inputs(ModelShape(tuple(SIZES.values()), 29, 1), 40, None, "normal", 0)


@pytest.fixture(scope="module")
def experts(tmp_path_factory) -> list[Path]:
    """Two checkpoints of one architecture with weights of their own."""
    root = tmp_path_factory.mktemp("experts")
    for seed in (0, 1):
        build(MODELS[MODEL], seed, root / str(seed))
    return [root / "0", root / "1"]


def in_turn(device, options, *, folders: list[str], inputs: dict[str, torch.Tensor]):
    """Each expert's answer, the one before let go of first; and bytes of DRAM taken while it is there and after."""
    import ttnn

    ctx = _context(device, options)

    def taken() -> int:
        gc.collect()
        return ttnn.get_memory_view(device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank

    answers, held, left = {}, [], []
    for folder in folders:
        model = _model(ctx, folder)
        answers[Path(folder).name] = model.read(model(**inputs), SIZES)
        held.append(taken())
        del model
        left.append(taken())
    return {"held": held, "left": left}, answers


def on_the_devices(device, options, *, folders: list[str], inputs: dict[str, torch.Tensor]):
    """Two predictions of one prompt, from patches and a prompt that stay on the devices, and the patches read back."""
    ctx = _context(device, options)
    model = _model(ctx, folders[0])
    latent, time = inputs["hidden_states"], inputs["timestep"]
    patches, grid = model._patches.put(latent), model._patches.grid(latent.shape[2:])
    prompt = model.embed_prompt(ctx.put(inputs["encoder_hidden_states"][:, None]))
    first, second = (model.forward(patches, prompt, time, grid=grid) for _ in range(2))
    tensors = {"first": first, "second": second, "patches": patches}
    return {name: model.read(x, SIZES) for name, x in tensors.items()} | {"called": model.read(model(**inputs), SIZES)}


def built(device, options, *, folders: list[str], inputs: dict[str, torch.Tensor]):
    _model(_context(device, options), folders[0])
    return {}


def _context(device: Any, options: RunOptions) -> Any:
    from tt_impl.parallel.context import Context

    return Context(device, options)


def _model(ctx: Any, folder: str) -> Any:
    from refsim.files.checkpoint import Checkpoint, Weights
    from refsim.models.wan22.config import WanConfig
    from tt_impl.models.wan22.transformer import WanTransformer

    checkpoint = Checkpoint(folder)
    return WanTransformer(Weights(checkpoint, torch.bfloat16), ctx, WanConfig.from_dict(checkpoint.config))


def _run(program: str, folders: list[Path], inputs: dict[str, torch.Tensor], tmp_path: Path, **options: Any) -> Any:
    from safetensors.torch import save_file

    save_file(inputs, tmp_path / "inputs.safetensors")
    arguments = {"folders": [str(f) for f in folders], "inputs": str(tmp_path / "inputs.safetensors")}
    return execute(f"{__name__}:{program}", OPTIONS.but(**options), arguments)


def test_two_experts_in_turn_on_one_mesh(experts, inputs, tmp_path):
    outcome = _run("in_turn", experts, inputs, tmp_path)
    references = [api.run(folder, inputs=inputs, options=OPTIONS.but(backend="cpu")).tensors for folder in experts]
    first, second = (outcome.tensors[folder.name].float() for folder in experts)
    for ours, reference in zip((first, second), references, strict=True):
        assert one_minus_pcc(ours, reference["sample"].float()) <= 5e-4
    assert one_minus_pcc(first, second) > 0.1
    held, left = outcome.report["held"], outcome.report["left"]
    weights = held[0] - left[0]
    assert weights > 0 and held[1] == held[0] and left[1] == left[0], "the first expert is still there"


def test_a_prediction_from_what_is_on_the_devices(experts, inputs, tmp_path):
    """Patches go in as they come out, so that a denoising step can add the one to the other."""
    found = _run("on_the_devices", experts, inputs, tmp_path).tensors
    assert torch.equal(found["patches"], inputs["hidden_states"].bfloat16())
    assert torch.equal(found["first"], found["called"]) and torch.equal(found["second"], found["called"])


def test_a_split_prompt_is_refused(experts, inputs, tmp_path):
    with pytest.raises(UserError, match="attends to the whole prompt on every device; leave out prompt_layout"):
        _run("built", experts, inputs, tmp_path, prompt_layout="split")
