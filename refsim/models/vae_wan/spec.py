"""What Wan's video autoencoder is, as far as it decodes; the means and spreads of its latents are left at 0 and 1."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLWan"

SPEC = ModelSpec.of_folder(
    "vae_wan",
    model="decoder:WanVAEDecoder",
    config="WanVAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="video",
    published=(Published("wan21-vae", parameters=126_892_531),),
)
