"""What the CLIP text encoders are (OpenAI's L, OpenCLIP's G), as diffusers' image pipelines use them."""

from __future__ import annotations

from refsim.models.spec import EncoderKeys, ModelSpec, Published

PROJECTED, PLAIN = "CLIPTextModelWithProjection", "CLIPTextModel"


def _clip(width: int, layers: int, heads: int, activation: str) -> dict[str, object]:
    return {
        "architectures": [PROJECTED],
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "projection_dim": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": activation,
    }


SPEC = ModelSpec.of_folder(
    "clip",
    model="encoder:CLIPTextEncoder",
    config="CLIPTextConfig",
    class_names=(PROJECTED, PLAIN),
    kind="text_encoder",
    published=(
        Published("clip-l", _clip(768, 12, 12, "quick_gelu"), parameters=123_650_304),
        Published("clip-g", _clip(1280, 32, 20, "gelu"), parameters=694_659_840),
    ),
    encoder_keys=EncoderKeys(
        layers="num_hidden_layers", width="hidden_size", heads="num_attention_heads", inner="intermediate_size"
    ),
)
