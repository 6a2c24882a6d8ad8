"""What CogVideoX's video autoencoder is, as far as it decodes."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLCogVideoX"
_BOTH = {
    "_class_name": CLASS_NAME,
    "latent_channels": 16,
    "block_out_channels": (128, 256, 256, 512),
    "layers_per_block": 3,
    "norm_num_groups": 32,
    "temporal_compression_ratio": 4,
}

SPEC = ModelSpec.of_folder(
    "vae_cogvideox",
    model="decoder:CogVideoXVAEDecoder",
    config="CogVideoXVAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="video",
    published=(Published("cogvideox-vae", _BOTH, parameters=215_583_907),),
    frames_per_pass=2,
)
