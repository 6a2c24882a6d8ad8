"""What Wan's video autoencoder is, as far as it decodes; the means and spreads of its latents are left at 0 and 1."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLWan"
_WAN21 = {
    "_class_name": CLASS_NAME,
    "base_dim": 96,
    "z_dim": 16,
    "dim_mult": (1, 2, 4, 4),
    "num_res_blocks": 2,
    "temperal_downsample": (False, True, True),
    "latents_mean": (0.0,) * 16,
    "latents_std": (1.0,) * 16,
}

SPEC = ModelSpec.of_folder(
    "vae_wan",
    model="decoder:WanVAEDecoder",
    config="WanVAEConfig",
    class_names=(CLASS_NAME,),
    kind="vae_decoder",
    latent="video",
    published=(Published("wan21-vae", _WAN21, parameters=126_892_531),),
)
