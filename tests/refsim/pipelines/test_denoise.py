"""The denoising loop by itself: a toy pipeline of two experts on one device, with numbers one can follow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from refsim.base.options import RunOptions
from refsim.pipelines.denoise import denoise
from refsim.pipelines.hosts.cogvideox import CogVideoXHost
from refsim.pipelines.pipeline import Pipeline, Run
from refsim.pipelines.request import PipelineRequest
from refsim.runtime.device import Device

HIGH, LOW = 10.0, 1.0


class Constant:
    """A transformer that predicts one number for the positive prompt and 0 for a negative one."""

    def __init__(self, number):
        self.number, self.calls = number, []

    def __call__(self, *, hidden_states, timestep, encoder_hidden_states):
        self.calls.append((tuple(hidden_states.shape), timestep.tolist(), timestep.dtype))
        return self.number * encoder_hidden_states.sum((1, 2)).view(-1, 1, 1).expand(hidden_states.shape)


class Subtract:
    """A scheduler of four steps."""

    timesteps = torch.tensor([999, 700, 500, 2], dtype=torch.float64)
    num_train_timesteps = 1000

    def step(self, sample, index, latents):
        return latents - sample


class Toy(Pipeline):
    """The loop alone: nothing is read, encoded or decoded."""

    transformer = Constant
    sizes = prepare = check = encode = decoder_input = None

    def experts(self, root):
        return (("high", 0.7), ("low", 0.0))

    def schedule(self, run):
        return Subtract()


class Embedded(Toy):
    classifier_free = False


@dataclass(frozen=True)
class ToyRun(Run):
    loaded: list = field(default_factory=list)

    def load(self, name, kind=object):
        self.loaded.append((name, kind(HIGH if name == "high" else LOW)))
        return self.loaded[-1][1]


def run_of(pipeline, **more):
    request = PipelineRequest("a cat", **{"steps": 50} | more, guidance=3.0)
    device = Device(RunOptions.of(mesh="n150", parallel="sp1"))
    samples = slice(0, pipeline.batch(request))
    return ToyRun(device, Path("nowhere"), request, {"latents": torch.zeros(1, 5, 4)}, samples)


def test_a_pipeline_without_a_negative_prompt_runs_one_sample():
    pipeline = Embedded()
    run = run_of(pipeline)
    kept, used = denoise(pipeline, run, {"encoder_hidden_states": torch.ones(1, 1, 1)})
    assert used == ["high", "high", "low", "low"]  # 700 of 1000 is the high expert's still
    assert [name for name, _ in run.loaded] == ["high", "low"]
    assert [step.unique().tolist() for step in kept] == [[-10.0], [-20.0], [-21.0], [-22.0]]
    assert run.loaded[0][1].calls == [((1, 5, 4), [999.0], torch.float32), ((1, 5, 4), [700.0], torch.float32)]
    assert pipeline.texts(run.request) == ["a cat"]


@pytest.mark.parametrize(("guidance_2", "last"), [(None, -66.0), (2.0, -64.0)])
def test_guidance_of_two_experts(guidance_2, last):
    pipeline = Toy()
    run = run_of(pipeline, guidance_2=guidance_2)
    conditions = torch.tensor([0.0, 1.0]).view(2, 1, 1)  # negative first
    kept, _ = denoise(pipeline, run, {"encoder_hidden_states": conditions})
    assert kept[1].unique().tolist() == [-60.0]  # twice 0 + 3 (10 - 0)
    assert kept[-1].unique().tolist() == [last]
    assert run.loaded[1][1].calls[0][:2] == ((2, 5, 4), [500.0, 500.0])
    assert pipeline.texts(run.request) == ["", "a cat"]


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["fp32", "storage"])
def test_guidance_is_computed_in_the_dtype_that_the_pipeline_asks_for(dtype):
    """Predictions 1 and 1 + 2**-7 in bf16, scale 1.5: what guidance makes of them lies between two numbers of bf16."""
    samples = []

    class Kept(Subtract):
        timesteps = torch.tensor([2], dtype=torch.float64)

        def step(self, sample, index, latents):
            samples.append(sample)
            return latents - sample

    class Close(Toy):
        guidance_dtype = dtype

        def schedule(self, run):
            return Kept()

    pipeline = Close()
    run = replace(run_of(pipeline), request=PipelineRequest("a cat", steps=50, guidance=1.5))
    conditions = torch.tensor([1.0, 1.0 + 2.0**-7]).bfloat16().view(2, 1, 1)  # negative first
    denoise(pipeline, run, {"encoder_hidden_states": conditions})
    assert samples[0].dtype == (dtype or torch.bfloat16)
    exact = samples[0].double() == 1 + 1.5 * 2.0**-7
    assert exact.all() if dtype else not exact.any()


def test_cogvideox_guides_in_fp32():
    assert CogVideoXHost.guidance_dtype == torch.float32


def test_a_digest_is_of_every_bit():
    """Replicas are compared by it: one bit, or the order of two tensors, and it is another one."""
    from refsim.pipelines.transformer import digest

    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    other = x.clone()
    other.view(torch.int16)[1, 2, 3] ^= 1
    assert digest(x) == digest(x.clone()) == digest(x.transpose(0, 1).contiguous().transpose(0, 1))
    assert len({digest(x), digest(other), digest(x, other), digest(other, x)}) == 4
