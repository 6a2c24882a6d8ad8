"""The denoising loop in TTNN on given conditions, two experts with a scale each, against refsim's ranks in bf16."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from parity.cases.checkpoints import MODELS
from parity.cases.model_folders import build
from parity.measure.metrics import one_minus_pcc
from refsim.base.options import RunOptions
from refsim.pipelines import denoise as reference
from refsim.pipelines.hosts.stable_diffusion_3 import StableDiffusion3Host
from refsim.pipelines.pipeline import Run as RefRun
from refsim.pipelines.request import PipelineRequest
from refsim.pipelines.stable_diffusion_3 import StableDiffusion3Pipeline as RefPipeline
from refsim.runtime import launch
from tt_impl.run.launch import execute

REQUEST = PipelineRequest("", steps=4, guidance=4.5, guidance_2=2.0)
EXPERTS = (("transformer", 0.85), ("transformer_2", 0.0))
CONDITIONS = ("encoder_hidden_states", "pooled_projections")


class TwoExpertsHost(StableDiffusion3Host):
    def experts(self, root: Path) -> tuple[tuple[str, float], ...]:
        return EXPERTS


class TwoExperts(TwoExpertsHost, RefPipeline):
    """The loop alone: nothing is read, encoded or decoded."""

    check = encode = decoder_input = None


def on_ranks(device, *, folder: str, inputs: str, request: dict[str, Any]):
    """The program of refsim's ranks."""
    from safetensors.torch import load_file

    from refsim.parallel.cfg import batch_range

    tensors, asked = load_file(inputs), PipelineRequest(**request)
    run = RefRun(device, Path(folder), asked, tensors, slice(*batch_range(device, 2)))
    steps, used = reference.denoise(TwoExperts(), run, {n: tensors[n][run.samples].to(run.storage) for n in CONDITIONS})
    return {"experts": used}, {"steps": torch.stack(steps)}


def in_ttnn(device, options, *, folder: str, inputs: dict[str, torch.Tensor], request: dict[str, Any]):
    """The program of the ttnn backend."""
    from tt_impl.pipelines.denoise import denoise
    from tt_impl.pipelines.pipeline import Run
    from tt_impl.pipelines.stable_diffusion_3 import StableDiffusion3Pipeline
    from tt_impl.pipelines.transformer import submeshes

    class TwoExpertsTTNN(TwoExpertsHost, StableDiffusion3Pipeline):
        pass

    groups, asked = submeshes(device, options), PipelineRequest(**request)
    share = 2 // len(groups)
    runs = [
        Run(submesh, options, Path(folder), asked, inputs, slice(i * share, (i + 1) * share))
        for i, submesh in enumerate(groups)
    ]
    conditions = [{n: inputs[n][run.samples].to(run.storage) for n in CONDITIONS} for run in runs]
    steps, used, held = denoise(TwoExpertsTTNN(), runs, conditions)
    return {"experts": used, "held": held}, {"steps": torch.stack(steps)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two transformers, a scheduler and what a host would have prepared."""
    from safetensors.torch import save_file

    root = tmp_path_factory.mktemp("pipeline")
    for seed, (name, _) in enumerate(EXPERTS):
        build(MODELS["sd35_tiny64"], seed, root / name)
    diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(root / "scheduler")
    (root / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusion3Pipeline"}))
    draw = torch.Generator().manual_seed(3)
    config = json.loads((root / "transformer" / "config.json").read_text())
    prompt, pooled = torch.Size((2, 29, config["joint_attention_dim"])), config["pooled_projection_dim"]
    tensors = {
        "latents": torch.randn((1, config["in_channels"], 10, 14), generator=draw),
        "encoder_hidden_states": torch.randn(prompt, generator=draw),
        "pooled_projections": torch.randn((2, pooled), generator=draw),
    }
    save_file(tensors, root / "inputs.safetensors")
    width = config["num_attention_heads"] * config["attention_head_dim"]
    lora = {"A": torch.randn(2, width, generator=draw), "B": torch.randn(width, 2, generator=draw)}
    names = {f"transformer.transformer_blocks.0.attn.to_v.lora_{half}.weight": x for half, x in lora.items()}
    save_file(names, root / "lora.safetensors")
    return root


@pytest.mark.parametrize(("mesh", "parallel"), [("n300", "cfg2"), ("bh-qb", "sp2_tp2")])
def test_every_step_is_refsims(folder, mesh, parallel):
    """CFG on two submeshes, one expert with a LoRA; as one batch on one mesh whose sp cuts 35 tokens as 32 and 3."""
    arguments = {"folder": str(folder), "inputs": str(folder / "inputs.safetensors"), "request": asdict(REQUEST)}
    options = RunOptions.of(mesh=mesh, parallel=parallel, dtype="bf16", backend="ttnn-mock")
    if parallel == "cfg2":
        options = options.but(lora=(f"transformer_2={folder}/lora.safetensors",))
    seen = []
    ours = execute(f"{__name__}:in_ttnn", options, arguments, progress=lambda *steps: seen.append(steps))
    ref = launch.execute(f"{__name__}:on_ranks", options.but(backend="cpu"), arguments)
    assert ours.report["experts"] == ref.value["experts"] == [EXPERTS[0][0]] * 2 + [EXPERTS[1][0]] * 2
    pairs = zip(ours.tensors["steps"], ref.tensors["steps"], strict=True)
    errors = [one_minus_pcc(a.float(), b.float()) for a, b in pairs]
    assert max(errors) <= 5e-4
    (empty, high), (between, low) = (ours.report["held"][name] for name, _ in EXPERTS)
    assert empty < between < high  # what the loop keeps is there; the first expert is gone
    assert low - between == high - empty
    assert seen == sorted(seen) and set(seen) <= {(done, 4) for done in range(5)}


def test_pictures_to_edit_stand_behind_the_latents():
    pytest.importorskip("ttnn")
    from tt_impl.pipelines.denoise import Group

    class Model:
        def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
            return inputs["hidden_states"]

        def read(self, answer: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
            return answer

    tensors = {"latents": torch.zeros(1, 4, 2), "condition": torch.ones(1, 3, 2)}
    run = SimpleNamespace(tensors=tensors, storage=torch.bfloat16)
    part = SimpleNamespace(model=Model(), sizes=lambda **_: {})
    group = Group(run, None, {"encoder_hidden_states": torch.zeros(2, 1, 1)}, part)
    answer = group.predict(tensors["latents"], torch.tensor(0.5))
    assert answer[..., 0].tolist() == [[0, 0, 0, 0, 1, 1, 1]] * 2
    assert group._read(answer).tolist() == torch.zeros(2, 4, 2).tolist()
