"""What the image autoencoders of Stable Diffusion 3.5 and Flux.1 are, as far as they decode."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKL"

SPEC = ModelSpec.of_folder(
    "vae",
    model="decoder:VAEDecoder",
    config="VAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="image",
    published=(
        Published("sd35-vae", parameters=83_819_683),
        Published("flux1-vae", parameters=83_819_683),
    ),
    vae_forms=("spatial", "tensor"),
)
