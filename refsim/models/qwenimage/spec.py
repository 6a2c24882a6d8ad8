"""What Qwen-Image is: its class, its published configurations, and its pipeline's defaults (steps, prompt).

Edit-2511 is the same class with ``zero_cond_t``: a picture that it starts from stands behind the one it makes, as
tokens of the same stream that are modulated by time step 0.

Sources: the models' cards and diffusers' class; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.flux1.spec import more_dims as tokens_of
from refsim.models.spec import Config, ModelSpec, Published, TtDit

CLASS_NAME = "QwenImageTransformer2DModel"


def more_dims(config: Config, size: tuple[int, ...]) -> dict[str, int]:
    """Tokens of a latent (height, width), twice as many where as large a picture is edited."""
    images = 2 if config.get("zero_cond_t") else 1
    return {"image tokens": images * tokens_of(config, size)["image tokens"], "images": images}


def _published(name: str, steps: int) -> Published:
    sizes = {"1024": (128, 128)}
    return Published(name, parameters=20_430_401_088, sizes=sizes, text=512, steps=steps, decoder="qwen-image-vae")


SPEC = ModelSpec.of_folder(
    "qwenimage",
    model="transformer:QwenImageTransformer",
    config="QwenImageConfig",
    pipeline="qwenimage:QwenImagePipeline",
    pipeline_classes=("QwenImagePipeline", "QwenImageEditPlusPipeline"),
    class_names=(CLASS_NAME,),
    kind="transformer",
    figures="refsim.models.qwenimage.figures:FIGURES",
    published=(_published("qwen-image", steps=50), _published("qwen-image-edit-2511", steps=40)),
    latent="image",
    channel_dim=2,
    tt_dit=TtDit(cfg=True, fsdp=True, pads_heads=True),
    more_dims=more_dims,
)
