"""Motif of tt_dit on two submeshes (guidance) beside its own reference in torch: text, latents, picture."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import torch
from common import NEGATIVE, PROMPT, SIZE, check, pcc
from diffusers import AutoencoderKL

from benchmarks.programs.checkpoints import filled

common.arange_from_the_host()
from models.tt_dit.models.transformers import transformer_motif  # noqa: E402 - after what it takes is replaced
from models.tt_dit.pipelines.motif import pipeline_motif as module  # noqa: E402
from models.tt_dit.pipelines.motif import text_encoder  # noqa: E402
from models.tt_dit.reference.motif import configuration_motifimage, modeling_dit  # noqa: E402

FOLDER = Path(common.checkpoint())
STEPS = 2
SCALE = 5.0
CLIP = 256
small = {"num_layers": 2, "modulation_dim": 256, "time_embed_dim": 256, "register_token_num": 4, "patch_size": 2}
reference: Any = filled(
    modeling_dit.MotifDiT(
        configuration_motifimage.MotifImageConfig(
            **small, hidden_dim=512, attn_embed_dim=4096, num_attention_heads=8, num_key_value_heads=8,
            mlp_hidden_dim=2048, additional_register_token_num=0, use_time_token_in_attn=True, attn_mode="flash",
            pos_emb_size=SIZE // 16, height=SIZE, width=SIZE, pooled_text_dim=2 * CLIP,
        )
    ),
    5,
)  # fmt: skip
transformer_motif.MOTIF_6B_CONFIG = transformer_motif.MotifTransformerConfig(
    **small, num_heads=8, head_dim=64, pooled_projection_dim=2 * CLIP, pos_embed_max_size=SIZE // 16
)


def weights(_: Any) -> dict[str, torch.Tensor]:
    """Return the reference's weights by the names of tt_dit."""
    state = reference.state_dict() | {"pos_embed": reference.pos_embed.float()}
    transformer_motif.convert_motif_transformer_state(state, num_layers=small["num_layers"])
    return state


transformer_motif.MotifCheckpoint._load_state_dict = weights
for name in ("CLIPTokenizerEncoderPair", "T5TokenizerEncoderPair"):
    pair = getattr(text_encoder, name)
    setattr(text_encoder, name, lambda path, *args, pair=pair, **how: pair(str(FOLDER / Path(path).name), *args, **how))
adapter = module.VAEDecoderAdapter
module.VAEDecoderAdapter = lambda **how: adapter(**how | {"checkpoint_name": str(FOLDER), "use_torch": True})
pipeline = module.MotifPipeline.create_pipeline(mesh_device=common.open_mesh(), width=SIZE, height=SIZE)
texts = common.noted(pipeline._text_encoder, "encode_cfg")
pictures = common.noted(pipeline._vae, "decode")
pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, cfg_scale=SCALE, seed=0, traced=False
)
((_, (context, pooled, *_)),) = texts
(((latents,), picture),) = pictures

encoder = pipeline._text_encoder
in_torch = text_encoder.TextEncoder(
    ccl_manager=encoder._ccl_manager, parallel_config=encoder._parallel_config, enable_t5=True,
    use_torch_clip_encoder=True, use_torch_t5_encoder=True,
)  # fmt: skip
whole, pooled_there, *_ = in_torch.encode_cfg(
    ([PROMPT],) * 3, ([NEGATIVE],) * 3, num_images_per_prompt=1, cfg_enabled=True, traced=False
)
check("text PCC", pcc(context, whole))
check("pooled PCC", pcc(pooled, pooled_there))
common.frequencies_in_bfloat16(reference.time_emb)
clip, t5 = whole.float().split([77, whole.shape[1] - 77], 1)
x = common.noise(1, 16, SIZE // 8, SIZE // 8).bfloat16().float()
sigmas = module._schedule(step_count=STEPS, linear_quadratic_emulating_steps=100)
with torch.no_grad():
    for sigma, following in pairwise(sigmas):
        time = torch.full((2,), 1000 * sigma)
        prompts = [t5, clip[..., :CLIP], clip[..., CLIP : 2 * CLIP]]
        unwanted, wanted = reference(torch.cat([x, x]), time, prompts, pooled_there.float())
        x = x + (following - sigma) * (unwanted + SCALE * (wanted - unwanted))
check("latents PCC", pcc(latents.permute(0, 3, 1, 2), x))
vae = AutoencoderKL.from_pretrained(FOLDER, subfolder="vae", trust_remote_code=False)
check("picture PCC", pcc(picture, vae.decode(x / vae.config.scaling_factor).sample.detach()))
