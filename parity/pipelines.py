"""Whole tiny pipelines of diffusers: prompt in, pictures out, every step's latents judged against diffusers' own run.

The parts are the tiny models of ``parity.checkpoints``, a tokenizer of whole words and diffusers' schedulers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity import metrics as m
from parity.cases import Case
from parity.checkpoints import MODELS, CheckpointStore, diffusers_model, transformers_model
from parity.inputs import generator
from refsim.api.images import Generated, generate_images
from refsim.mesh import get_mesh
from refsim.pipelines.request import PipelineRequest

_WORDS = "a the cat dog runs over green hills under snow slow fast".split()


@dataclass(frozen=True)
class PipelineSpec:
    """A pipeline class of diffusers, its parts and what it is asked for.

    Attributes:
        parts: name of the part -> model in ``MODELS``.
        tokenizers: name -> longest prompt.
        scheduler: class and its arguments.
        arguments: of the pipeline's own constructor.
    """

    class_name: str
    parts: dict[str, str]
    tokenizers: dict[str, int]
    scheduler: tuple[str, dict[str, Any]]
    request: PipelineRequest
    arguments: dict[str, Any] = field(default_factory=dict)


def _request(steps: int, guidance: float, **sizes: Any) -> PipelineRequest:
    return PipelineRequest("a cat runs over green hills", "slow dog", steps, guidance, seed=7, **sizes)


def _cogvideox(transformer: str, scheduler: str) -> PipelineSpec:
    return PipelineSpec(
        "CogVideoXPipeline",
        {"text_encoder": "t5_32_tiny", "vae": "cogvideox_vae_tiny", "transformer": transformer},
        {"tokenizer": 512},
        (scheduler, {}),
        _request(2, 6.0, height=64, width=96, frames=9, max_text=13),
    )


_FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}
PIPELINES = {
    "sd3_pipeline_tiny": PipelineSpec(
        "StableDiffusion3Pipeline",
        {
            "text_encoder": "clip_l_tiny",
            "text_encoder_2": "clip_g_tiny",
            "text_encoder_3": "t5_64_tiny",
            "vae": "sd35_vae_tiny",
            "transformer": "sd35_tiny",
        },
        {"tokenizer": 77, "tokenizer_2": 77, "tokenizer_3": 512},
        ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        _request(3, 4.5, height=48, width=64, max_text=24),
    ),
    "wan_pipeline_tiny": PipelineSpec(
        "WanPipeline",
        {
            "text_encoder": "umt5_tiny",
            "vae": "wan_vae_tiny",
            "transformer": "wan22_tiny",
            "transformer_2": "wan22_tiny",
        },
        {"tokenizer": 512},
        ("UniPCMultistepScheduler", _FLOW),
        _request(3, 3.5, guidance_2=2.0, height=64, width=96, frames=5, max_text=40),
        {"boundary_ratio": 0.875},
    ),
    "cogvideox_2b_pipeline_tiny": _cogvideox("cogvideox_2b_tiny", "CogVideoXDDIMScheduler"),
    "cogvideox_5b_pipeline_tiny": _cogvideox("cogvideox_5b_tiny", "CogVideoXDPMScheduler"),
}


def build(name: str, seed: int, folder: Path) -> None:
    """Write a pipeline folder through ``save_pretrained``; every part has weights of its own."""
    import diffusers

    spec = PIPELINES[name]
    parts: dict[str, Any] = {}
    for part, model in spec.parts.items():
        make = diffusers_model if hasattr(diffusers, MODELS[model].class_name) else transformers_model
        parts[part] = make(MODELS[model], generator(seed, "weights", part))
    parts |= {part: _tokenizer(length) for part, length in spec.tokenizers.items()}
    scheduler, arguments = spec.scheduler
    parts["scheduler"] = getattr(diffusers, scheduler)(**arguments)
    getattr(diffusers, spec.class_name)(**parts, **spec.arguments).save_pretrained(folder)


def run(case: Case, seed: int, store: CheckpointStore, **more: Any) -> Generated:
    """The simulator's part."""
    options = case.layout.options(case.dtype, **more)
    return generate_images(store.folder(case.model, seed), PIPELINES[case.model].request, options=options)


def reference(name: str, folder: Path) -> tuple[Tensor, Tensor]:
    """(8-bit frames (F, H, W, 3) in int16, latents after every step) of diffusers' own run."""
    import diffusers

    spec, steps = PIPELINES[name], []
    pipe = getattr(diffusers, spec.class_name).from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)

    def keep(pipe: Any, index: int, t: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        steps.append(tensors["latents"].clone())
        return {}

    asked = spec.request
    extra = {"guidance_scale_2": asked.guidance_2, "num_frames": asked.frames}
    result = pipe(
        asked.prompt,
        negative_prompt=asked.negative_prompt,
        height=asked.height,
        width=asked.width,
        num_inference_steps=asked.steps,
        guidance_scale=asked.guidance,
        generator=torch.Generator().manual_seed(asked.seed),
        max_sequence_length=asked.max_text,
        callback_on_step_end=keep,
        output_type="np",
        **{name: value for name, value in extra.items() if value is not None},
    )
    images = result.images if asked.frames is None else result.frames[0]
    return (torch.from_numpy(images) * 255).round().to(torch.int16), torch.stack(steps)


def compare(case: Case, found: Generated, frames: Tensor, steps: Tensor) -> dict[str, Any]:
    """The worst step's error, the worst pixel, and whether there was a picture to judge."""
    ranks = get_mesh(case.mesh).num_devices
    return {
        "rel_rmse": m.worst([m.rel_rmse(a, b) for a, b in zip(found.steps, steps, strict=True)]),
        "max_pixel_difference": int((found.pixels.to(torch.int16) - frames).abs().max()),
        "flat_picture": int(frames.float().std() <= 10),
        "distinct_replicas": 1 if found.replicas_equal else math.nan if ranks > 1 else 1,
        "non_finite": m.non_finite(found.steps),
    }


def _tokenizer(longest: int) -> Any:
    """One id per word, ``</s>`` behind, ``<pad>`` up to the length."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest, **special)
