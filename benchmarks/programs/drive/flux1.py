"""Flux.1 of tt_dit beside diffusers: text, latents and picture of two steps."""

import sys

import torch
import ttnn
from common import arange_from_the_host, check, frequencies_in_bfloat16, noted, open_mesh, pcc, vae_in_torch
from diffusers import FluxPipeline

arange_from_the_host()
from models.tt_dit.pipelines.flux1 import pipeline_flux1 as module  # noqa: E402 - after what it takes is replaced

vae_in_torch(module)
CHECKPOINT = sys.argv[1]
SIZE = 128
STEPS = 2
PROMPT = "a red fox in snow"
mesh = open_mesh()
config = module.Flux1PipelineConfig.default(
    mesh_shape=mesh.shape, width=SIZE, height=SIZE, checkpoint_name=CHECKPOINT, use_torch_clip_text_encoder=False
)
pipeline = module.Flux1Pipeline(device=mesh, config=config)
texts: list = []
pictures: list = []
noted(pipeline._text_encoder, "encode_cfg", texts)
noted(pipeline._vae, "decode", pictures)
pipeline(prompts=[PROMPT], num_inference_steps=STEPS, seed=0, traced=False)
((_, (text, pooled)),) = texts
(((latents,), picture),) = pictures

reference = FluxPipeline.from_pretrained(CHECKPOINT, trust_remote_code=False)
embedded, pooled_there, _ = reference.encode_prompt(PROMPT, None)
check("T5 PCC", pcc(text, embedded))
check("CLIP PCC", pcc(pooled, pooled_there))
frequencies_in_bfloat16(reference.transformer)
torch.manual_seed(0)
noise = torch.randn([1, 16, SIZE // 8, SIZE // 8], dtype=torch.bfloat16).float()
packed = reference._pack_latents(noise, 1, 16, SIZE // 8, SIZE // 8)
packed = reference(
    PROMPT, height=SIZE, width=SIZE, num_inference_steps=STEPS, guidance_scale=0.0035, latents=packed,
    output_type="latent",
).images  # fmt: skip
expected = reference._unpack_latents(packed, SIZE, SIZE, reference.vae_scale_factor)
check("latents PCC", pcc(latents.permute(0, 3, 1, 2), expected))
scale = reference.vae.config.scaling_factor
shift = reference.vae.config.shift_factor
check("picture PCC", pcc(picture, reference.vae.decode(expected / scale + shift).sample.detach()))
ttnn.close_mesh_device(mesh)
