"""What FLUX.2's image autoencoder is, as far as it decodes: the decoder of Stable Diffusion 3.5 and Flux.1."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLFlux2"

SPEC = ModelSpec.of_folder(
    "vae_flux2",
    model="refsim.models.vae.decoder:VAEDecoder",
    ttnn="tt_impl.models.vae.decoder:VAEDecoder",
    config="Flux2VAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="image",
    published=(Published("flux2-vae", parameters=84_046_115),),
    vae_forms=("spatial", "tensor"),
)
