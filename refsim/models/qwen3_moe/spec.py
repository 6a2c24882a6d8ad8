"""What Qwen3's mixture-of-experts decoder is."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "Qwen3MoeForCausalLM"
_30B_A3B = {
    "architectures": [CLASS_NAME],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}

SPEC = ModelSpec.of_folder(
    "qwen3_moe",
    model="decoder:Qwen3MoeForCausalLM",
    config="Qwen3MoeConfig",
    class_names=(CLASS_NAME,),
    kind="causal_lm",
    published=(Published("qwen3-30b-a3b", _30B_A3B, parameters=30_532_122_624),),
)
