"""CogVideoX: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids --T5 (no mask)--> embeddings
    for every time step: transformer with guidance in fp32 --> scheduler (host) --> latents
    latents / scaling --> decoder, frames cut by rows (sp) and columns (tp) --> frames

Counterpart: diffusers' ``CogVideoXPipeline`` with its DDIM or DPM scheduler.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.checkpoint import Checkpoint
from refsim.errors import UserError
from refsim.models.cogvideox.transformer import CogVideoXTransformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.models.vae_cogvideox.decoder import CogVideoXVAEDecoder
from refsim.pipelines.host import HostScheduler, load_scheduler
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.pipelines.request import PipelineRequest, load_tokenizer
from refsim.runtime.device import Device

_FRAMES, _TEXT = 49, 226
_SCHEDULERS = ("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler")


class CogVideoXPipeline(Pipeline):
    """2b, 5b and 1.5."""

    transformer = CogVideoXTransformer
    fps = 8
    guidance_dtype = torch.float32

    def check(self, root: Path, device: Device) -> None:
        _, config = load_part(device, root, "transformer", self.transformer, meta=True)
        encoder, _ = load_part(device, root, "text_encoder", T5Encoder, meta=True)
        _, vae = load_part(device, root, "vae", CogVideoXVAEDecoder, meta=True)
        pairs = [
            ("text_embed_dim", config.text_embed_dim, "d_model of text_encoder", encoder.features),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        check_fit(root, "transformer", pairs)
        name = type(load_scheduler(root / "scheduler")).__name__
        if name not in _SCHEDULERS:
            raise UserError(f"pipeline '{root}' has a {name}; {' and '.join(_SCHEDULERS)} are supported.")

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return ``input_ids`` (2, L) and ``latents`` (1, F, C, H, W), F rounded up to whole patches; ``spare``, the
        frames too many, which are the first; ``generator``, the state that drew the noise, for a scheduler that
        draws more.
        """
        config = Checkpoint(root / "transformer").config
        vae = CogVideoXVAEConfig.from_dict(Checkpoint(root / "vae").config)
        scale, step = vae.scale, vae.scale * config.get("patch_size", 2)
        height, width = request.size(
            config.get("sample_height", 60) * scale, config.get("sample_width", 90) * scale, (step, step)
        )
        frames = request.latent_frames(config.get("sample_frames", _FRAMES), vae.temporal_compression_ratio)
        ids = load_tokenizer(root / "tokenizer")(
            self.texts(request),
            padding="max_length",
            max_length=request.max_text or config.get("max_text_seq_length", _TEXT),
            truncation=True,
            add_special_tokens=True,
            return_tensors="pt",
        ).input_ids
        spare = -frames % (config.get("patch_size_t") or 1)
        size = (frames + spare, config.get("in_channels", 16), height // scale, width // scale)
        generator = torch.Generator().manual_seed(request.seed)
        latents = torch.randn((1, *size), generator=generator)
        state = {"generator": generator.get_state(), "spare": torch.tensor(spare)}
        return {"latents": latents, "input_ids": ids, **state}

    def encode(self, run: Run) -> dict[str, Tensor]:
        encoder, _ = run.load("text_encoder", T5Encoder)
        return {"encoder_hidden_states": encoder(run.tensors["input_ids"][run.samples])}

    def schedule(self, run: Run) -> HostScheduler:
        generator = torch.Generator()
        generator.set_state(run.tensors["generator"])
        return HostScheduler(run.device, run.root / "scheduler", run.request.steps, generator=generator)

    def decode(self, run: Run, latents: Tensor) -> Tensor:
        decoder, config = run.load("vae", CogVideoXVAEDecoder)
        asked = latents[:, int(run.tensors["spare"]) :].permute(0, 2, 1, 3, 4)  # (1, C, F, h, w)
        return decoder(z=asked.to(run.storage) / config.scaling_factor)
