"""What diffusers' pipelines take for given: rows of a prompt, steps, guidance, size of a picture, encoders, decoder."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from parity.cases.oracles import oracle_of
from parity.cases.oracles.library import bare, given_by, library_class, pipeline_of
from refsim.models.registry import get_published
from refsim.models.spec import ModelSpec, Published

_RATIOS = (
    ("vae_scale_factor_temporal", "vae_temporal_scale_factor", "vae_temporal_compression_ratio"),
    ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_scale_factor", "vae_spatial_compression_ratio"),
)
"""What pipelines call the frames and the pixels per latent frame and row."""
_WIDTHS = ("joint_attention_dim", "text_dim", "text_embed_dim", "caption_channels")


def unlike_pipeline(spec: ModelSpec, published: Published) -> list[str]:
    """What of a published transformer is not what its pipeline in diffusers takes for given, a clause each."""
    if spec.kind != "transformer":  # nobody asks it for anything
        return [name for name in ("steps", "text", "sizes", "encoders") if getattr(published, name)]
    pipeline = pipeline_of(published.class_name)
    if spec.pipeline_classes and spec.pipeline_classes != (pipeline.__name__,):
        return [f"{pipeline.__name__} runs it"]
    made, given = bare(pipeline), given_by(pipeline.__call__)
    known = {"steps": _steps(published, given), "size": _size(published, made, given)}
    parts = [name for name in inspect.signature(pipeline.__init__).parameters if name.startswith("transformer")]
    known["experts"] = published.experts == len(parts)
    differ = {name for name, same in known.items() if not same}
    wrong = sorted(differ ^ _known_to_differ(published))
    wrong += [] if _is_first_like(spec) else ["the first published model, which folders are taken for"]
    wrong += [] if published.branches == _branches(given) else ["branches"]
    return wrong + list(_prompt(published, made, given)) + list(_parts(published, pipeline, made))


def _is_first_like(spec: ModelSpec) -> bool:
    """Whether no other published model is asked for what the pipeline takes for given in more respects."""
    unlike = [len(_known_to_differ(published)) for published in spec.published]
    return unlike[0] == min(unlike)


def _known_to_differ(published: Published) -> set[str]:
    return set(oracle_of(published.class_name).other_than_pipeline.get(published.name, ()))


def _steps(published: Published, given: dict[str, Any]) -> bool:
    return published.steps == given["num_inference_steps"]


def _branches(given: dict[str, Any]) -> int:
    """2 where there is a negative prompt and guidance by it as a default."""
    scale = given.get("true_cfg_scale", given["guidance_scale"])
    return 2 if "negative_prompt" in given and scale > 1 else 1


def ratios(made: Any) -> tuple[int, int]:
    """The frames and the pixels per latent frame and row of a pipeline's decoder."""
    found = [next((getattr(made, name) for name in names if hasattr(made, name)), 1) for names in _RATIOS]
    return found[0], found[1]


def _size(published: Published, made: Any, given: dict[str, Any]) -> bool:
    """Whether the latent of the pipeline's own picture is the first of those that predictions know, or one of them."""
    (per_frame, per_row), config = ratios(made), published.config
    side = getattr(made, "default_sample_size", None)
    height = given.get("height") or getattr(made, "default_height", None)
    width = given.get("width") or getattr(made, "default_width", None)
    rows = height // per_row if height else side or config["sample_height"]
    columns = width // per_row if width else side or config["sample_width"]
    if "num_frames" not in given:
        return (rows, columns) in published.sizes.values()
    frames = given["num_frames"] or config["sample_frames"]
    return ((frames - 1) // per_frame + 1, rows, columns) in published.sizes.values()


def _prompt(published: Published, made: Any, given: dict[str, Any]) -> Iterator[str]:
    """Rows of the prompt, and of each of its encoders."""
    rows, clip = given["max_sequence_length"], getattr(made, "tokenizer_max_length", 0)
    if published.text != rows + (clip if oracle_of(published.class_name).clip_in_rows else 0):
        yield "text"
    for each in published.encoders:
        is_clip = get_published(each.published)[0].name == "clip"
        if each.tokens != (clip if is_clip else rows):
            yield f"tokens of {each.published}"
        if each.prompts != published.branches:
            yield f"prompts of {each.published}"


def _parts(published: Published, pipeline: Any, made: Any) -> Iterator[str]:
    """Classes of the encoders and of the decoder in the pipeline's own words, and what they hand over."""
    hints = {name: each.annotation for name, each in inspect.signature(pipeline, eval_str=True).parameters.items()}
    encoders = [get_published(each.published) for each in published.encoders]
    wanted = [kind for name, kind in hints.items() if name.startswith("text_encoder")]
    if encoders and not all(
        library_class(name) in map(library_class, spec.class_names)
        for spec, name in zip((s for s, _ in encoders), (kind.__name__ for kind in wanted), strict=True)
    ):
        yield "classes of its encoders"
    if encoders:
        last, width = encoders[-1][1].config["d_model"], [published.config[k] for k in _WIDTHS if k in published.config]
        if [last] != width:
            yield f"rows of {last} numbers"
        pooled = sum(model.config["projection_dim"] for spec, model in encoders if spec.name == "clip")
        if pooled != published.config.get("pooled_projection_dim", 0):
            yield f"{pooled} pooled numbers"
    yield from _decoder(published, hints["vae"], made)


def _decoder(published: Published, wanted: Any, made: Any) -> Iterator[str]:
    if published.decoder:
        spec, model = get_published(published.decoder)
        if library_class(model.class_name) not in (wanted, *get_args(wanted)):
            yield "class of its decoder"
        config = spec.config_class.from_dict(model.config)
        if config.ratios != ratios(made):
            yield f"{config.ratios} frames and pixels per latent frame and row"
