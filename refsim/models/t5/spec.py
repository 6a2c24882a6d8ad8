"""What the text encoders T5 (v1.1) and UMT5 are, of size XXL as diffusers' pipelines use them."""

from __future__ import annotations

from refsim.models.spec import EncoderKeys, ModelSpec, Published

T5 = "T5EncoderModel"
UMT5 = "UMT5EncoderModel"

SPEC = ModelSpec.of_folder(
    "t5",
    model="encoder:T5Encoder",
    config="T5Config",
    class_names=(T5, UMT5),
    kind="text_encoder",
    published=(
        Published("t5-xxl", parameters=4_762_310_656),
        Published("umt5-xxl", parameters=5_680_910_336),
    ),
    encoder_keys=EncoderKeys(layers="num_layers", width="d_model", heads="num_heads", inner="d_ff", gated=True),
)
