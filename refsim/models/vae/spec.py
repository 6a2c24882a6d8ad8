"""What the image autoencoder of Stable Diffusion 3.5 is, as far as it decodes."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKL"
_SD35 = {
    "_class_name": CLASS_NAME,
    "latent_channels": 16,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "scaling_factor": 1.5305,
    "shift_factor": 0.0609,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}

SPEC = ModelSpec(
    name="vae",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    model="refsim.models.vae.decoder:VAEDecoder",
    config="refsim.models.vae.config:VAEConfig",
    latent="image",
    published=(Published("sd35-vae", _SD35),),
    vae_forms=("spatial", "tensor"),
)
