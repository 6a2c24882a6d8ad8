"""Flux.1 of tt_dit beside diffusers: text, latents and picture of two steps."""

import common
import torch
from common import PROMPT, SIZE, check, pcc
from diffusers import FluxPipeline

common.arange_from_the_host()
from models.tt_dit.pipelines.flux1 import pipeline_flux1 as module  # noqa: E402 - after what it takes is replaced

common.vae_in_torch(module)
STEPS = 2
mesh = common.open_mesh()
config = module.Flux1PipelineConfig.default(
    mesh_shape=mesh.shape, width=SIZE, height=SIZE, checkpoint_name=common.checkpoint(),
    use_torch_clip_text_encoder=False,
)  # fmt: skip
pipeline = module.Flux1Pipeline(device=mesh, config=config)
texts = common.noted(pipeline._text_encoder, "encode_cfg")
pictures = common.noted(pipeline._vae, "decode")
pipeline(prompts=[PROMPT], num_inference_steps=STEPS, seed=0, traced=False)
((_, (text, pooled)),) = texts

reference = common.reference(FluxPipeline)
embedded, pooled_there, _ = reference.encode_prompt(PROMPT, None)
check("T5 PCC", pcc(text, embedded))
check("CLIP PCC", pcc(pooled, pooled_there))
common.frequencies_in_bfloat16(reference.transformer.time_text_embed)
noise = common.noise(1, 16, SIZE // 8, SIZE // 8, dtype=torch.bfloat16)
packed = reference(
    PROMPT, height=SIZE, width=SIZE, num_inference_steps=STEPS, guidance_scale=0.0035,
    latents=reference._pack_latents(noise, 1, 16, SIZE // 8, SIZE // 8), output_type="latent",
).images  # fmt: skip
expected = reference._unpack_latents(packed, SIZE, SIZE, reference.vae_scale_factor)
common.check_picture(pictures, expected, reference.vae)
