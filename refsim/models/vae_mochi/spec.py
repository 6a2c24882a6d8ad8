"""What Mochi's video autoencoder is, as far as it decodes."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLMochi"

SPEC = ModelSpec.of_folder(
    "vae_mochi",
    model="decoder:MochiVAEDecoder",
    config="MochiVAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="video",
    published=(Published("mochi-vae", parameters=459_748_611),),
    frames_per_pass=2,
)
