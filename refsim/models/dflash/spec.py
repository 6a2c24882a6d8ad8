"""What the DFlash drafter is, as z-lab publishes it."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "DFlashDraftModel"
_QWEN3_CODER = {
    "architectures": [CLASS_NAME],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 12, 23, 34, 45]},
}

SPEC = ModelSpec.of_folder(
    "dflash",
    model="draft:DFlashDraftModel",
    config="DFlashConfig",
    class_names=(CLASS_NAME,),
    kind="drafter",
    published=(Published("dflash-qwen3-coder", _QWEN3_CODER),),
)
