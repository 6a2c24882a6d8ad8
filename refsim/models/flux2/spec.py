"""What Flux.2 dev is, to predictions: diffusers' class and tt_dit's pipeline_flux2.py@f3a15341."""

from __future__ import annotations

from refsim.models.flux1.spec import block_counts, more_dims, with_block_counts
from refsim.models.spec import ModelSpec, Published, TtDit

CLASS_NAME = "Flux2Transformer2DModel"

SPEC = ModelSpec.of_folder(
    "flux2",
    model="refsim.models.outline:OutlinedTransformer",
    config="Flux2Config",
    class_names=(CLASS_NAME,),
    kind="transformer",
    published=(
        Published("flux2-dev", parameters=32_223_281_152, sizes={"1024": (128, 128)}, text=512, steps=50, branches=1),
    ),
    timing_only=True,
    latent="image",
    tt_dit=TtDit(cfg=False, fsdp=False, pads_heads=True),
    block_counts=block_counts,
    with_block_counts=with_block_counts,
    more_dims=more_dims,
)
