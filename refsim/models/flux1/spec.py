"""What Flux.1 is: its classes, its published configurations, and what runs around its transformer.

Guidance is an input of dev's transformer and schnell has none, so a step is one prediction of one prompt.

Sources: the models' cards and diffusers' class; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.spec import Companion, Config, ModelSpec, Published, TtDit

CLASS_NAME = "FluxTransformer2DModel"
_SIZES = {"512": (64, 64), "1024": (128, 128)}
_TEXT = 512  # tokens of T5; CLIP gives one row of features
_PACKED = 2  # latent rows and columns that become one token


def block_counts(config: Config) -> dict[str, int]:
    """Double blocks, then single ones; the last block stands by itself: what follows it is read as part of it."""
    double = config["num_layers"]
    single = config["num_single_layers"]
    counts = {"double": double - (single == 0), "single": single - (single > 0), "last": 1}
    return {kind: count for kind, count in counts.items() if count}


def with_block_counts(config: Config, counts: dict[str, int]) -> Config:
    """Return the configuration with other numbers of blocks of each kind; the last block keeps its kind."""
    double = counts.get("double", 0)
    single = counts.get("single", 0)
    if config["num_single_layers"]:
        return config | {"num_layers": double, "num_single_layers": single + 1}
    return config | {"num_layers": double + 1, "num_single_layers": 0}


def more_dims(config: Config, size: tuple[int, ...]) -> dict[str, int]:
    """Tokens of a latent (height, width)."""
    return {"image tokens": (size[0] // _PACKED) * (size[1] // _PACKED)}


def _published(name: str, parameters: int, steps: int) -> Published:
    return Published(
        name,
        parameters=parameters,
        sizes=_SIZES,
        text=_TEXT,
        steps=steps,
        branches=1,
        encoders=(Companion("clip_l", "clip-l", tokens=77, prompts=1), Companion("t5", "t5-xxl", _TEXT, prompts=1)),
        decoder="flux1-vae",
        reported=("1024",),
    )


SPEC = ModelSpec.of_folder(
    "flux1",
    model="transformer:FluxTransformer",
    config="FluxConfig",
    pipeline="flux:FluxPipeline",
    class_names=(CLASS_NAME,),
    kind="transformer",
    latent="image",
    channel_dim=2,
    figures="refsim.models.flux1.figures:FIGURES",
    published=(
        _published("flux1-dev", 11_901_408_320, steps=28),
        _published("flux1-schnell", 11_891_178_560, steps=4),
    ),
    tt_dit=TtDit(cfg=False, fsdp=False, pads_heads=True),
    block_counts=block_counts,
    with_block_counts=with_block_counts,
    more_dims=more_dims,
)
