"""SD3.5 of tt_dit on two submeshes (guidance) beside diffusers: text, latents and picture of two steps."""

import sys

import torch
from common import arange_from_the_host, check, frequencies_in_bfloat16, noted, open_mesh, pcc, vae_in_torch
from diffusers import StableDiffusion3Pipeline

arange_from_the_host()
from models.tt_dit.pipelines.stable_diffusion_35_large import (  # noqa: E402 - after what it takes is replaced
    pipeline_stable_diffusion_35_large as module,
)

vae_in_torch(module)
CHECKPOINT = sys.argv[1]
SIZE = 128
STEPS = 2
PROMPT = "a red fox in snow"
NEGATIVE = "a dog"
pipeline = module.StableDiffusion3Pipeline.create_pipeline(
    mesh_device=open_mesh(), width=SIZE, height=SIZE, checkpoint_name=CHECKPOINT
)
texts: list = []
pictures: list = []
noted(pipeline._text_encoder, "encode_cfg", texts)
noted(pipeline._vae, "decode", pictures)
pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, seed=0, traced=False, guidance_scale=3.5
)
((_, (text, pooled)),) = texts
(((latents,), picture),) = pictures

reference = StableDiffusion3Pipeline.from_pretrained(CHECKPOINT, trust_remote_code=False)
length = 256 if pipeline.t5_enabled() else 77
if not pipeline.t5_enabled():
    reference.text_encoder_3 = None
embedded, unwanted, pooled_there, pooled_unwanted = reference.encode_prompt(
    PROMPT, None, None, negative_prompt=NEGATIVE, max_sequence_length=length
)
check("text PCC", pcc(text, torch.cat([unwanted, embedded])))
check("CLIP PCC", pcc(pooled, torch.cat([pooled_unwanted, pooled_there])))
frequencies_in_bfloat16(reference.transformer)
torch.manual_seed(0)
noise = torch.randn([1, SIZE // 8, SIZE // 8, 16], dtype=torch.float32).permute(0, 3, 1, 2)
expected = reference(
    PROMPT, negative_prompt=NEGATIVE, height=SIZE, width=SIZE, num_inference_steps=STEPS, guidance_scale=3.5,
    latents=noise, output_type="latent", max_sequence_length=length,
).images  # fmt: skip
check("latents PCC", pcc(latents.permute(0, 3, 1, 2), expected))
scale = reference.vae.config.scaling_factor
shift = reference.vae.config.shift_factor
check("picture PCC", pcc(picture, reference.vae.decode(expected / scale + shift).sample.detach()))
