"""Whole tiny pipelines of diffusers as folders, and what each is asked for.

The parts are the tiny models of ``parity.cases.checkpoints``, a tokenizer of whole words and diffusers' schedulers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.cases.checkpoints import MODELS
from parity.cases.model_folders import diffusers_class, diffusers_model, transformers_model
from refsim.base.errors import UserError
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
        chat_template: of its tokenizers, where a prompt is a message.
    """

    class_name: str
    parts: dict[str, str]
    tokenizers: dict[str, int]
    scheduler: tuple[str, dict[str, Any]]
    request: PipelineRequest
    arguments: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None


def _request(steps: int, guidance: float, **sizes: Any) -> PipelineRequest:
    return PipelineRequest("a cat runs over green hills", "slow dog", steps=steps, guidance=guidance, seed=7, **sizes)


def _cogvideox(transformer: str, scheduler: str, max_text: int) -> PipelineSpec:
    return PipelineSpec(
        "CogVideoXPipeline",
        {"text_encoder": "t5_32_tiny", "vae": "cogvideox_vae_tiny", "transformer": transformer},
        {"tokenizer": 512},
        (scheduler, {}),
        _request(2, 6.0, height=64, width=96, frames=9, max_text=max_text),
    )


_FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}


def _sd3(transformer: str, height: int, width: int) -> PipelineSpec:
    return PipelineSpec(
        "StableDiffusion3Pipeline",
        {"text_encoder": "clip_l_tiny", "text_encoder_2": "clip_g_tiny", "text_encoder_3": "t5_64_tiny"}
        | {"vae": "sd35_vae_tiny", "transformer": transformer},
        {"tokenizer": 77, "tokenizer_2": 77, "tokenizer_3": 512},
        ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        _request(3, 4.5, height=height, width=width, max_text=24),
    )


PIPELINES = {
    "sd3_pipeline_tiny": _sd3("sd35_tiny", 48, 64),
    "sd3_pipeline_medium_width": _sd3("sd35_medium_width", 64, 96),
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
        {"boundary_ratio": 0.909},  # 909 is the second of the three time steps: the first expert's, too
    ),
    "cogvideox_2b_pipeline_tiny": _cogvideox("cogvideox_2b_tiny", "CogVideoXDDIMScheduler", 13),
    "cogvideox_5b_pipeline_tiny": _cogvideox("cogvideox_5b_tiny", "CogVideoXDPMScheduler", 11),
    "cogvideox_15_pipeline_tiny": _cogvideox("cogvideox_15_tiny", "CogVideoXDPMScheduler", 11),
}


def register_pipeline(name: str, spec: PipelineSpec) -> None:
    """Add a pipeline, to be used by the cases of a suite.

    Raises:
        UserError: the name is taken.
    """
    if PIPELINES.get(name, spec) != spec:
        raise UserError(f"two pipelines of parity are called '{name}'; rename one of them.")
    PIPELINES[name] = spec


def build(name: str, seed: int, folder: Path) -> None:
    """Write a pipeline folder through ``save_pretrained``; every part has weights of its own."""
    import diffusers

    from parity.cases.inputs import generator

    spec = PIPELINES[name]
    parts: dict[str, Any] = {}
    for part, model in spec.parts.items():
        make = transformers_model if diffusers_class(MODELS[model].class_name) is None else diffusers_model
        parts[part] = make(MODELS[model], generator(seed, "weights", part))
    parts |= {part: _tokenizer(length, spec.chat_template) for part, length in spec.tokenizers.items()}
    scheduler, arguments = spec.scheduler
    parts["scheduler"] = getattr(diffusers, scheduler)(**arguments)
    with quietly():
        getattr(diffusers, spec.class_name)(**parts, **spec.arguments).save_pretrained(folder)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep diffusers and transformers from showing progress and warnings: their own words are not the user's.

    Mochi's rotation asks torch for an autocast that it does not have on a processor.
    """
    import diffusers
    import transformers

    libraries = diffusers.utils.logging, transformers.utils.logging
    before = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity_error()
        library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "In CPU autocast")
            yield
    finally:
        for library, (verbosity, shown) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if shown:
                library.enable_progress_bar()


def _tokenizer(longest: int, chat_template: str | None) -> Any:
    """Make a tokenizer: one id per word, ``</s>`` behind, ``<pad>`` up to the length."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": chat_template}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest, **special)
