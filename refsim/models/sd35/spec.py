"""What Stable Diffusion 3.5 is: its classes, its published sizes, and what runs around its transformer.

Sources: the models' cards and diffusers' classes; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.spec import Companion, Config, DiffusersParts, ModelSpec, Published, TtDit, with_num_layers

CLASS_NAME = "SD3Transformer2DModel"
_SIZES = {"512": (64, 64), "1024": (128, 128)}
_TEXT = 333  # 77 rows of the CLIPs and 256 of T5
_ENCODERS = (
    Companion("clip_l", "clip-l", tokens=77),
    Companion("clip_g", "clip-g", tokens=77),
    Companion("t5", "t5-xxl", tokens=256),
)


def block_counts(config: Config) -> dict[str, int]:
    """Count the blocks of each kind: those with a second attention come first, the last leaves out the prompt."""
    dual = len(config.get("dual_attention_layers", ()))
    counts = {"dual": dual, "block": config["num_layers"] - 1 - dual, "last": 1}
    return {kind: count for kind, count in counts.items() if count}


def with_block_counts(config: Config, counts: dict[str, int]) -> Config:
    """Return the configuration with other numbers of blocks of each kind."""
    return with_num_layers(config, counts) | {"dual_attention_layers": tuple(range(counts.get("dual", 0)))}


SPEC = ModelSpec.of_folder(
    "sd35",
    model="transformer:SD35Transformer",
    config="SD35Config",
    pipeline="stable_diffusion_3:StableDiffusion3Pipeline",
    single_file="refsim.models.sd35.single_file:read",
    class_names=(CLASS_NAME,),
    kind="transformer",
    latent="image",
    figures="refsim.models.sd35.figures:FIGURES",
    published=(
        Published(
            "sd35-medium",
            parameters=2_243_171_520,
            sizes=_SIZES,
            text=_TEXT,
            steps=20,
            encoders=_ENCODERS,
            decoder="sd35-vae",
        ),
        Published(
            "sd35-large",
            parameters=8_056_627_520,
            sizes=_SIZES,
            text=_TEXT,
            steps=20,
            encoders=_ENCODERS,
            decoder="sd35-vae",
            reported=("1024",),
        ),
    ),
    diffusers=DiffusersParts("transformer_blocks", ("attn", "attn2"), prompt_first=False),
    tt_dit=TtDit(cfg=True, fsdp=False, pads_heads=True),
    block_counts=block_counts,
    with_block_counts=with_block_counts,
)
