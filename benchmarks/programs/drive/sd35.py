"""SD3.5 of tt_dit on two submeshes (guidance) beside diffusers: text, latents and picture of two steps."""

import common
import torch
from common import NEGATIVE, PROMPT, SIZE, check, pcc
from diffusers import StableDiffusion3Pipeline

common.arange_from_the_host()
from models.tt_dit.pipelines.stable_diffusion_35_large import (  # noqa: E402 - after what it takes is replaced
    pipeline_stable_diffusion_35_large as module,
)

common.vae_in_torch(module)
STEPS = 2
pipeline = module.StableDiffusion3Pipeline.create_pipeline(
    mesh_device=common.open_mesh(), width=SIZE, height=SIZE, checkpoint_name=common.checkpoint()
)
texts = common.noted(pipeline._text_encoder, "encode_cfg")
pictures = common.noted(pipeline._vae, "decode")
pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, seed=0, traced=False, guidance_scale=3.5
)
((_, (text, pooled)),) = texts

reference = common.reference(StableDiffusion3Pipeline)
length = 256 if pipeline.t5_enabled() else 77
if not pipeline.t5_enabled():
    reference.text_encoder_3 = None
embedded, unwanted, pooled_there, pooled_unwanted = reference.encode_prompt(
    PROMPT, None, None, negative_prompt=NEGATIVE, max_sequence_length=length
)
check("text PCC", pcc(text, torch.cat([unwanted, embedded])))
check("CLIP PCC", pcc(pooled, torch.cat([pooled_unwanted, pooled_there])))
common.frequencies_in_bfloat16(reference.transformer.time_text_embed)
expected = reference(
    PROMPT, negative_prompt=NEGATIVE, height=SIZE, width=SIZE, num_inference_steps=STEPS, guidance_scale=3.5,
    latents=common.noise(1, SIZE // 8, SIZE // 8, 16).permute(0, 3, 1, 2), output_type="latent",
    max_sequence_length=length,
).images  # fmt: skip
common.check_picture(pictures, expected, reference.vae)
