"""What the CLIP text encoders are (OpenAI's L, OpenCLIP's G), as diffusers' image pipelines use them."""

from __future__ import annotations

from refsim.models.spec import EncoderKeys, ModelSpec, Published

PROJECTED = "CLIPTextModelWithProjection"
PLAIN = "CLIPTextModel"

SPEC = ModelSpec.of_folder(
    "clip",
    model="encoder:CLIPTextEncoder",
    config="CLIPTextConfig",
    class_names=(PROJECTED, PLAIN),
    kind="text_encoder",
    published=(
        Published("clip-l", parameters=123_650_304),
        Published("clip-g", parameters=694_659_840),
    ),
    encoder_keys=EncoderKeys(
        layers="num_hidden_layers", width="hidden_size", heads="num_attention_heads", inner="intermediate_size"
    ),
)
