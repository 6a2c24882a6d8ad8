"""What CogVideoX's video autoencoder is, as far as it decodes."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLCogVideoX"

SPEC = ModelSpec.of_folder(
    "vae_cogvideox",
    model="decoder:CogVideoXVAEDecoder",
    config="CogVideoXVAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="video",
    published=(Published("cogvideox-vae", parameters=215_583_907),),
    frames_per_pass=2,
)
