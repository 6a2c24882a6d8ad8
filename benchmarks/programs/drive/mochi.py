"""Mochi of tt_dit beside diffusers: latents of three steps."""

import sys

import torch
import ttnn
from common import check, noted, open_mesh, pcc
from diffusers import MochiPipeline
from models.tt_dit.pipelines.mochi import pipeline_mochi as module

decode = module.MochiVAEDecoderAdapter.decode
module.MochiVAEDecoderAdapter.decode = lambda self, latents, **options: decode(self, latents.float(), **options)
CHECKPOINT = sys.argv[1]
SIZE = 128
FRAMES = 7
STEPS = 3
PROMPT = "a red fox in snow"
NEGATIVE = "a dog"
mesh = open_mesh()
config = module.MochiPipelineConfig.default(
    mesh_shape=mesh.shape, checkpoint_name=CHECKPOINT, height=SIZE, width=SIZE, num_frames=FRAMES,
    reload_dit_model=False, use_reference_vae=True,
)  # fmt: skip
pipeline = module.MochiPipeline(device=mesh, config=config)
videos: list = []
noted(pipeline._vae, "decode", videos)
pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, guidance_scale=4.5, seed=0, traced=False
)
(((latents, *_), _),) = videos

reference = MochiPipeline.from_pretrained(CHECKPOINT, trust_remote_code=False)
torch.manual_seed(0)
noise = torch.randn(1, 12, (FRAMES - 1) // 6 + 1, SIZE // 8, SIZE // 8)
expected = reference(
    PROMPT, negative_prompt=NEGATIVE, height=SIZE, width=SIZE, num_frames=FRAMES, num_inference_steps=STEPS,
    guidance_scale=4.5, latents=noise, output_type="latent",
).frames  # fmt: skip
check("latents PCC", pcc(latents, expected))
ttnn.close_mesh_device(mesh)
