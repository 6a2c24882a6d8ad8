"""What FLUX.2 is: its class, its published configuration, and what runs around its transformer.

Guidance is an input of dev's transformer, so a step is one prediction of one prompt. Sources: the model's card,
diffusers' class and tt_dit's pipeline_flux2.py@f3a15341; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.flux1.spec import block_counts, more_dims, with_block_counts
from refsim.models.spec import ModelSpec, Published, TtDit

CLASS_NAME = "Flux2Transformer2DModel"

SPEC = ModelSpec.of_folder(
    "flux2",
    model="transformer:Flux2Transformer",
    config="Flux2Config",
    class_names=(CLASS_NAME,),
    kind="transformer",
    latent="image",
    channel_dim=2,
    pipeline="flux2:Flux2Pipeline",
    published=(
        Published(
            "flux2-dev",
            parameters=32_223_281_152,
            sizes={"1024": (128, 128)},
            text=512,
            steps=50,
            branches=1,
            decoder="flux2-vae",
        ),
    ),
    tt_dit=TtDit(cfg=False, fsdp=False, pads_heads=True),
    block_counts=block_counts,
    with_block_counts=with_block_counts,
    more_dims=more_dims,
)
