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

# One forward on a Blackhole chip in TT-Lang kernels and TTNN, as the document says that ``refsim.timing.drafter`` is
# compared with.
DOCUMENT = {  # context: wall, TT-Lang, TTNN in ms; context-only cache, 3 new rows, 5 timed runs, no trace
    2000: (48.2, 40.7, 7.5), 4000: (48.1, 40.7, 7.4), 8000: (51.0, 40.5, 10.6), 16000: (57.4, 40.4, 17.0),
    32000: (70.6, 40.9, 29.7), 64000: (95.9, 40.6, 55.3), 120000: (143.1, 43.0, 100.1),
}  # fmt: skip
DOCUMENT_OPS = {  # at 120,000: average ms, runs per forward, the document's verdict where it gives one
    "gate_up+silu": (1.640, 8, "96% compute bound"), "down+resadd": (0.837, 8, "2% memory bound"),
    "o_proj+resadd": (0.700, 8, ""), "q_proj": (0.664, 8, ""), "k_proj": (0.275, 8, ""), "pa_rmsnorm": (0.273, 8, ""),
    "qk_rmsnorm": (0.127, 16, ""), "v_proj": (0.244, 8, ""), "in_rmsnorm": (0.228, 8, ""), "q_rope": (0.136, 8, ""),
    "k_rope": (0.090, 8, ""), "fn_rmsnorm": (0.217, 1, ""),
}  # fmt: skip

SPEC = ModelSpec(
    name="dflash",
    class_names=(CLASS_NAME,),
    kind="drafter",
    model="refsim.models.dflash.draft:DFlashDraftModel",
    config="refsim.models.dflash.config:DFlashConfig",
    ttnn="tt_impl.models.dflash.draft:DFlashDraftModel",
    published=(Published("dflash-qwen3-coder", _QWEN3_CODER),),
)
