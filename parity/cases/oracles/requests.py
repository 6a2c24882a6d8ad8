"""What diffusers' pipelines take for given: rows of a prompt, steps, guidance, size of a picture, encoders, decoder."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from parity.cases.oracles import oracle_of
from parity.cases.oracles.library import bare, defaults_of, library_class, pipeline_of
from refsim.models.registry import get_published
from refsim.models.spec import ModelSpec, Published

_RATIOS = (
    ("vae_scale_factor_temporal", "vae_temporal_scale_factor", "vae_temporal_compression_ratio"),
    ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_scale_factor", "vae_spatial_compression_ratio"),
)
"""What pipelines call the frames and the pixels per latent frame and row."""
_WIDTHS = ("joint_attention_dim", "text_dim", "text_embed_dim", "caption_channels")


def unlike_pipeline(spec: ModelSpec, published: Published) -> list[str]:
    """List what of a published transformer is not what its pipeline in diffusers takes for given, a clause each."""
    if spec.kind != "transformer":  # nobody asks it for anything
        return [name for name in ("steps", "text", "sizes", "encoders") if getattr(published, name)]
    pipeline = pipeline_of(published.class_name)
    if spec.pipeline_classes and pipeline.__name__ not in spec.pipeline_classes:
        return [f"{pipeline.__name__} runs it"]
    made = bare(pipeline)
    defaults = defaults_of(pipeline.__call__)
    parts = [name for name in inspect.signature(pipeline.__init__).parameters if name.startswith("transformer")]
    same = {"steps": published.steps == defaults["num_inference_steps"], "experts": published.experts == len(parts)}
    same["size"] = _is_known_size(published, made, defaults)
    wrong = sorted({name for name, is_same in same.items() if not is_same} ^ _known_to_differ(published))
    if len(_known_to_differ(spec.published[0])) > min(len(_known_to_differ(model)) for model in spec.published):
        wrong.append("the first published model, which folders are taken for")
    wrong += [] if published.branches == _branches(defaults) else ["branches"]
    return wrong + list(_prompt(published, made, defaults)) + list(_parts(published, pipeline, made))


def _known_to_differ(published: Published) -> set[str]:
    return set(oracle_of(published.class_name).other_than_pipeline.get(published.name, ()))


def _branches(defaults: dict[str, Any]) -> int:
    """Return 2 where there is a negative prompt and guidance by it as a default, else 1."""
    scale = defaults.get("true_cfg_scale", defaults["guidance_scale"])
    return 2 if "negative_prompt" in defaults and scale > 1 else 1


def ratios(made: Any) -> tuple[int, int]:
    """Return the frames and the pixels per latent frame and row of a pipeline's decoder."""
    frames, rows = (next((getattr(made, name) for name in names if hasattr(made, name)), 1) for names in _RATIOS)
    return frames, rows


def _is_known_size(published: Published, made: Any, defaults: dict[str, Any]) -> bool:
    """Whether the latent of the pipeline's own picture is one of those that predictions know."""
    per_frame, per_row = ratios(made)
    config = published.config
    side = getattr(made, "default_sample_size", None)
    height = defaults.get("height") or getattr(made, "default_height", None)
    width = defaults.get("width") or getattr(made, "default_width", None)
    rows = height // per_row if height else side or config["sample_height"]
    columns = width // per_row if width else side or config["sample_width"]
    if "num_frames" not in defaults:
        return (rows, columns) in published.sizes.values()
    frames = defaults["num_frames"] or config["sample_frames"]
    return ((frames - 1) // per_frame + 1, rows, columns) in published.sizes.values()


def _prompt(published: Published, made: Any, defaults: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the rows of the prompt, and of each of its encoders."""
    rows = defaults["max_sequence_length"]
    clip = getattr(made, "tokenizer_max_length", 0)
    if published.text != rows + (clip if oracle_of(published.class_name).clip_in_rows else 0):
        yield "text"
    for each in published.encoders:
        is_clip = get_published(each.published)[0].name == "clip"
        if each.tokens != (clip if is_clip else rows):
            yield f"tokens of {each.published}"
        if each.prompts != published.branches:
            yield f"prompts of {each.published}"


def _parts(published: Published, pipeline: Any, made: Any) -> Iterator[str]:
    """Yield where encoders and decoder are other classes than in the pipeline's own words, or hand over other sizes."""
    hints = {name: each.annotation for name, each in inspect.signature(pipeline, eval_str=True).parameters.items()}
    encoders = [get_published(each.published) for each in published.encoders]
    if encoders:
        wanted = [library_class(kind.__name__) for name, kind in hints.items() if name.startswith("text_encoder")]
        known = (map(library_class, spec.class_names) for spec, _ in encoders)
        if not all(kind in classes for kind, classes in zip(wanted, known, strict=True)):
            yield "classes of its encoders"
        last = encoders[-1][1].config["d_model"]
        if [last] != [published.config[key] for key in _WIDTHS if key in published.config]:
            yield f"rows of {last} numbers"
        pooled = sum(model.config["projection_dim"] for spec, model in encoders if spec.name == "clip")
        # Mochi's configuration has the width, too, of what its transformer makes of the prompt itself
        takes = "pooled_projections" in inspect.signature(library_class(published.class_name).forward).parameters
        if pooled != (published.config["pooled_projection_dim"] if takes else 0):
            yield f"{pooled} pooled numbers"
    yield from _decoder(published, hints["vae"], made)


def _decoder(published: Published, wanted: Any, made: Any) -> Iterator[str]:
    if published.decoder:
        spec, model = get_published(published.decoder)
        if library_class(model.class_name) not in (wanted, *get_args(wanted)):
            yield "class of its decoder"
        known = spec.config_class.from_dict(model.config).ratios
        # Qwen-Image makes single pictures by a decoder of videos: its pipeline has no frames
        has_frames = any(hasattr(made, name) for name in _RATIOS[0])
        if known[not has_frames :] != ratios(made)[not has_frames :]:
            yield f"{known} frames and pixels per latent frame and row"
