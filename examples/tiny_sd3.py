"""Save a small SD3 transformer with random weights and inputs for it: `checkpoint/` and `in.safetensors`.

python tiny_sd3.py
refsim run checkpoint --mesh t3k --parallel cfg2_sp2_tp2 --inputs in.safetensors --out out.safetensors \
    --check-against diffusers
"""

import torch
from diffusers import SD3Transformer2DModel
from safetensors.torch import save_file

torch.manual_seed(0)
SD3Transformer2DModel(
    sample_size=16,
    num_layers=2,
    num_attention_heads=3,
    attention_head_dim=16,
    joint_attention_dim=64,
    caption_projection_dim=48,
    pooled_projection_dim=40,
    pos_embed_max_size=24,
    qk_norm="rms_norm",
).save_pretrained("checkpoint")
inputs = {
    "hidden_states": torch.randn(2, 16, 12, 20),
    "encoder_hidden_states": torch.randn(2, 29, 64),
    "pooled_projections": torch.randn(2, 40),
    "timestep": torch.full((2,), 602.5),
}
save_file(inputs, "in.safetensors")
