"""What the image autoencoders of Stable Diffusion 3.5 and Flux.1 are, as far as they decode."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKL"
_SD35 = {
    "_class_name": CLASS_NAME,
    "latent_channels": 16,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "scaling_factor": 1.5305,
    "shift_factor": 0.0609,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_FLUX1 = _SD35 | {"scaling_factor": 0.3611, "shift_factor": 0.1159}

SPEC = ModelSpec.of_folder(
    "vae",
    model="decoder:VAEDecoder",
    config="VAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="image",
    published=(
        Published("sd35-vae", _SD35, parameters=83_819_683),
        Published("flux1-vae", _FLUX1, parameters=83_819_683),
    ),
    vae_forms=("spatial", "tensor"),
)
