"""Wan2.2 of tt_dit, both experts and its VAE in TTNN, beside diffusers: latents and video of three steps."""

import common
import torch
from common import NEGATIVE, PROMPT, SIZE, check, pcc
from diffusers import UniPCMultistepScheduler, WanPipeline
from models.tt_dit.pipelines.wan import pipeline_wan as module

FRAMES = 5
STEPS = 3
pipeline = module.WanPipeline.create_pipeline(
    mesh_device=common.open_mesh(), checkpoint_name=common.checkpoint(), height=SIZE, width=SIZE, num_frames=FRAMES,
    max_sequence_length=512,
)  # fmt: skip
video, latents = pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, guidance_scale=4.0, guidance_scale_2=3.0,
    seed=0, output_type="pt_with_last_latent", traced=False,
)  # fmt: skip

reference = common.reference(WanPipeline)
reference.scheduler = UniPCMultistepScheduler.from_config(reference.scheduler.config, flow_shift=12.0)
expected = reference(
    PROMPT, negative_prompt=NEGATIVE, height=SIZE, width=SIZE, num_frames=FRAMES, num_inference_steps=STEPS,
    guidance_scale=4.0, guidance_scale_2=3.0, output_type="latent",
    latents=common.noise(1, 16, (FRAMES - 1) // 4 + 1, SIZE // 8, SIZE // 8),
).frames  # fmt: skip
check("latents PCC", pcc(latents, expected))
mean, deviation = (
    torch.tensor(getattr(reference.vae.config, name)).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std")
)
with torch.no_grad():
    wanted = (reference.vae.decode(expected * deviation + mean).sample / 2 + 0.5).clamp(0, 1)
frames = torch.as_tensor(video)
check("video PCC", pcc(frames.permute(0, 2, 1, 3, 4) if frames.shape[2] == 3 else frames, wanted))
