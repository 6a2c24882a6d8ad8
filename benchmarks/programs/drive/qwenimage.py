"""Qwen-Image of tt_dit on two submeshes (guidance), its VAE in TTNN, beside diffusers: text, latents, picture."""

from typing import Any

import common
import numpy as np
import torch
from common import NEGATIVE, PROMPT, SIZE, check, pcc
from diffusers import QwenImagePipeline
from torch import Tensor

common.arange_from_the_host()
from models.tt_dit.pipelines.qwenimage import pipeline_qwenimage as module  # noqa: E402 - after what it takes


class Positions:
    """Rotary positions of diffusers 0.42 by the arguments of the version that tt_dit is made for."""

    def __init__(self, embed: Any) -> None:
        self._embed = embed

    def forward(self, shapes: Any, lengths: list[int], device: str) -> Any:
        """Return those of pixels and of the longest prompt."""
        return self._embed.forward(shapes, device=torch.device(device), max_txt_seq_len=max(lengths))


class Checkpoint(module.QwenImageCheckpoint):
    """The same, with such positions."""

    pos_embed: Any

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pos_embed = Positions(self.pos_embed)


module.QwenImageCheckpoint = Checkpoint
STEPS = 2
SCALE = 4.0
mesh = common.open_mesh()
config = module.QwenImagePipelineConfig.default(
    mesh_shape=mesh.shape, width=SIZE, height=SIZE, checkpoint_name=common.checkpoint(), dynamic_load_encoder=False,
    dynamic_load_vae=False,
)  # fmt: skip
pipeline = module.QwenImagePipeline(device=mesh, config=config)
texts = common.noted(pipeline._text_encoder, "encode_cfg")
pictures = common.noted(pipeline._vae, "decode")
pipeline(
    prompts=[PROMPT], negative_prompts=[NEGATIVE], num_inference_steps=STEPS, cfg_scale=SCALE, seed=0, traced=False
)
((_, (text, mask)),) = texts
(((latents,), picture),) = pictures

reference = common.reference(QwenImagePipeline)
embedded, _ = reference.encode_prompt(PROMPT)
count = embedded.shape[1]
check("text PCC", pcc(text[1, :count], embedded[0]))
common.frequencies_in_bfloat16(reference.transformer.time_text_embed, scale=1000.0)
noise = reference._pack_latents(common.noise(1, 16, SIZE // 8, SIZE // 8)[:, None], 1, 16, SIZE // 8, SIZE // 8)
shapes = [[(1, SIZE // 16, SIZE // 16)]]


@torch.no_grad()
def denoised(prompts: list[Tensor], rescaled: bool) -> Tensor:
    """Take the steps of QwenImagePipeline of diffusers, with guidance whose norm is ``rescaled`` there."""
    mu = module._calculate_shift(noise.shape[1], reference.scheduler)
    reference.scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / STEPS, STEPS), mu=mu)
    x = noise
    for time in reference.scheduler.timesteps:
        unwanted, wanted = (
            reference.transformer(
                hidden_states=x, timestep=time[None] / 1000, encoder_hidden_states=prompt,
                encoder_hidden_states_mask=torch.ones(prompt.shape[:2], dtype=torch.long), img_shapes=shapes,
                return_dict=False,
            )[0]
            for prompt in prompts
        )  # fmt: skip
        velocity = unwanted + SCALE * (wanted - unwanted)
        if rescaled:
            velocity = velocity * wanted.norm(dim=-1, keepdim=True) / velocity.norm(dim=-1, keepdim=True)
        x = reference.scheduler.step(velocity, time, x, return_dict=False)[0]
    return reference._unpack_latents(x, SIZE, SIZE, 8)[:, :, 0]


prompts = [reference.encode_prompt(prompt)[0] for prompt in (NEGATIVE, PROMPT)]
padded = [torch.nn.functional.pad(x, (0, 0, 0, text.shape[1] - x.shape[1])) for x in prompts]
expected = denoised(padded, rescaled=False)
taken = latents.permute(0, 3, 1, 2)
check("latents PCC", pcc(taken, expected))
check("with diffusers' guidance", pcc(taken, denoised(padded, rescaled=True)))
check("with diffusers' prompts", pcc(taken, denoised(prompts, rescaled=False)))
vae = reference.vae
mean, deviation = (
    torch.tensor(values).view(1, -1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
)
with torch.no_grad():
    check("picture PCC", pcc(picture, vae.decode((expected * deviation + mean)[:, :, None]).sample[:, :, 0]))
