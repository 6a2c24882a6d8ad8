"""Faults of whole pipelines on the device backend: experts, guidance, the scheduler, what passes between the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from parity.cases import Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, at, instead
from parity.faults.registry import fault


def _whole(name: str, parallel: str) -> Case:
    return make_case("ttnn_pipeline", name, Layout("n300", parallel), ModelShape((), 24, 2), dtype="bf16")


SD3 = _whole("sd3_pipeline_tiny64", "cfg2")  # negative and positive prompt on a device each
WAN = _whole("wan_pipeline_tiny64", "tp2")  # two experts with a scale each, a scheduler that looks back
FLUX = _whole("flux1_pipeline_tiny64", "tp2")
DPM = _whole("cogvideox_5b_pipeline_tiny64", "sp2")  # a scheduler that adds noise


pipeline = partial(fault, "pipeline", case=SD3)


@pipeline("The second expert starts one step late.", "the boundary compared with the last step's time", case=WAN)
def expert_switched_late() -> Patch:
    before = [1000.0]

    @at("tt_impl.pipelines.denoise:expert_of")
    def late(original: Callable, experts: Any, t: float, steps: int) -> str:
        before.append(t)
        return original(experts, before[-2], steps)

    return late()


@pipeline("Both experts run with the first one's scale of guidance.", "guidance_2 not read", case=WAN)
def guidance_of_the_other_expert() -> Patch:
    from refsim.pipelines.request import PipelineRequest

    return instead(PipelineRequest, "guidance_scales", property(lambda self: (self.guidance, self.guidance)))


@pipeline("Guidance moves away from the prompt.", "the halves of the batch joined positive first")
@at("tt_impl.pipelines.denoise:gather_batch")
def guidance_halves_swapped(original: Callable, groups: list, predictions: list) -> list:
    joined = original(groups[::-1], predictions[::-1])
    return joined[::-1]


@pipeline("Every step is as long as the next one should be.", "sigmas counted from the second")
@at("tt_impl.pipelines.denoise:recurrences")
def schedule_one_sigma_off(original: Callable, schedule: Any) -> list:
    steps = original(schedule)
    return [*steps[1:], steps[-1]]


@pipeline("The scheduler finds these latents where the former ones were.", "one buffer for both", case=WAN)
@at("tt_impl.pipelines.scheduler:DeviceScheduler.step")
def schedule_history_overwritten(original: Callable, self: Any, prediction: Any, index: int, noise: Any = None) -> Any:
    self._latents = [self._latents[0]] * len(self._latents)
    return original(self, prediction, index, noise)


@pipeline("The noise is laid out as the patches go in, not as they come out.", "one order taken for both")
@at("tt_impl.pipelines.scheduler:TokenOrder.put")
def noise_in_the_order_of_patches(original: Callable, self: Any, latents: torch.Tensor) -> Any:
    tokens = latents.float().unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 1, 3, 5)
    whole = torch.zeros(self._shape).flatten()
    whole[: tokens.numel()] = tokens.flatten()
    return self.put_tokens(whole.view(self._shape))


@pipeline("Latents go into the decoder as they are.", "scaling_factor and shift_factor of the VAE not read")
@at("refsim.pipelines.hosts.stable_diffusion_3:VAEConfig.from_dict")
def latents_not_rescaled(original: Callable, raw: Any) -> Any:
    return replace(original(raw), scaling_factor=1.0, shift_factor=0.0)


@pipeline("Latents go into the decoder without their channels' means and spreads.", "as images need none", case=WAN)
@at("tt_impl.pipelines.wan:WanVAEConfig.from_dict")
def latents_not_denormalized(original: Callable, raw: Any) -> Any:
    config = original(raw)
    channels = len(config.latents_mean)
    return replace(config, latents_mean=(0.0,) * channels, latents_std=(1.0,) * channels)


@pipeline("Both samples get the negative prompt's pooled features.", "the first row taken for all")
@at("tt_impl.pipelines.pipeline:Run.answer")
def pooled_of_the_negative_prompt(original: Callable, self: Any, part: str, **inputs: torch.Tensor) -> dict:
    from refsim.pipelines.hosts.stable_diffusion_3 import CLIPS

    answers = original(self, part, **inputs)
    if part in CLIPS:
        negative = self.tensors[part][: len(inputs["input_ids"])]
        answers["sample"] = original(self, part, input_ids=negative)["sample"]
    return answers


@pipeline("CLIP-G's features stand before CLIP-L's.", "encoders joined in the order of another pipeline")
def clips_in_the_wrong_order() -> Patch:
    from refsim.pipelines.hosts import stable_diffusion_3

    return instead(stable_diffusion_3, "CLIPS", stable_diffusion_3.CLIPS[::-1])


@pipeline("Rows of the prompt that are padding keep what the encoder gave for them.", "mask left out", case=WAN)
@at("tt_impl.pipelines.wan:WanPipeline.encode")
def padding_rows_kept(original: Callable, self: Any, run: Any) -> dict:
    ids, mask = (run.tensors[name][run.samples] for name in ("input_ids", "attention_mask"))
    return {"encoder_hidden_states": run.answer("text_encoder", input_ids=ids, attention_mask=mask)["sample"]}


@pipeline("Guidance is 1 whatever was asked for.", "the embedding's input left at its default", case=FLUX)
@at("tt_impl.pipelines.flux:FluxPipeline.encode")
def embedded_guidance_of_one(original: Callable, self: Any, run: Any) -> dict:
    return original(self, run) | {"guidance": torch.ones(1)}


@pipeline("Time steps are not shifted by the size of the picture.", "mu left out of set_timesteps", case=FLUX)
@at("refsim.pipelines.hosts.flux:_shift")
def schedule_not_shifted(original: Callable, config: Any, tokens: Any) -> Any:
    return 0.0


@pipeline("The scheduler's fresh noise is left out.", "a DPM taken for the DDIM beside it", case=DPM)
@at("tt_impl.pipelines.denoise:_noise")
def schedule_without_noise(original: Callable, schedule: Any, numbers: Any, shape: Any) -> Any:
    return None
