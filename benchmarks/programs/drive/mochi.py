"""Mochi of tt_dit beside diffusers: latents of three steps."""

import common
from common import NEGATIVE, PROMPT, SIZE
from diffusers import MochiPipeline
from models.tt_dit.pipelines.mochi import pipeline_mochi as module

decode = module.MochiVAEDecoderAdapter.decode
module.MochiVAEDecoderAdapter.decode = lambda self, latents, **options: decode(self, latents.float(), **options)
FRAMES = 7
STEPS = 3
mesh = common.open_mesh()
config = module.MochiPipelineConfig.default(
    mesh_shape=mesh.shape, checkpoint_name=common.checkpoint(), height=SIZE, width=SIZE, num_frames=FRAMES,
    reload_dit_model=False, use_reference_vae=True,
)  # fmt: skip
pipeline = module.MochiPipeline(device=mesh, config=config)
videos = common.noted(pipeline._vae, "decode")
pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, guidance_scale=4.5, seed=0, traced=False
)
(((latents, *_), _),) = videos

expected = common.reference(MochiPipeline)(
    PROMPT, negative_prompt=NEGATIVE, height=SIZE, width=SIZE, num_frames=FRAMES, num_inference_steps=STEPS,
    guidance_scale=4.5, latents=common.noise(1, 12, (FRAMES - 1) // 6 + 1, SIZE // 8, SIZE // 8), output_type="latent",
).frames  # fmt: skip
common.check("latents PCC", common.pcc(latents, expected))
