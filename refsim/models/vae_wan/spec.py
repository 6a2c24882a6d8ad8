"""What Wan's video autoencoder is, as far as it decodes; the means and spreads of its latents are left at 0 and 1.

Qwen-Image's is the same, trained on further and decoding pictures, which are videos of one frame.
"""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "AutoencoderKLWan"
QWEN_IMAGE = "AutoencoderKLQwenImage"

SPEC = ModelSpec.of_folder(
    "vae_wan",
    model="decoder:WanVAEDecoder",
    config="WanVAEConfig",
    class_names=(CLASS_NAME, QWEN_IMAGE),
    kind="vae_decoder",
    latent="video",
    published=(
        Published("wan21-vae", parameters=126_892_531),
        Published("qwen-image-vae", parameters=126_892_531),
    ),
)
