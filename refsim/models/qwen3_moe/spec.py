"""What Qwen3's mixture-of-experts decoder is."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "Qwen3MoeForCausalLM"

SPEC = ModelSpec.of_folder(
    "qwen3_moe",
    model="decoder:Qwen3MoeForCausalLM",
    config="Qwen3MoeConfig",
    class_names=(CLASS_NAME,),
    kind="causal_lm",
    published=(Published("qwen3-30b-a3b", parameters=30_532_122_624),),
)
