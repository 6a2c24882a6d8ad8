"""The host of CogVideoX: one tokenizer, the noise, frames that only fill a patch; DDIM, or a DPM that draws noise."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.files.checkpoint import Checkpoint
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.inputs import SAMPLE
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.pipelines.hosts.base import HostRun, PipelineHost, Sizes
from refsim.pipelines.hosts.schedule import Schedule
from refsim.pipelines.request import PipelineRequest, tokenize

_TEXT = 226


class CogVideoXHost(PipelineHost):
    """2b, 5b and 1.5."""

    fps = 8
    guidance_dtype = torch.float32

    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """See :meth:`PipelineHost.sizes`; the latents' frames are those of whole patches."""
        config = Checkpoint(root / "transformer").as_config(CogVideoXConfig)
        vae = Checkpoint(root / "vae").as_config(CogVideoXVAEConfig)
        scale = vae.scale
        step = vae.scale * config.patch_size
        height, width = request.size(config.sample_height * scale, config.sample_width * scale, (step, step))
        frames = request.latent_frames(config.sample_frames, vae.temporal_compression_ratio)
        whole = frames + -frames % (config.patch_size_t or 1)
        latents = (1, whole, config.in_channels, height // scale, width // scale)
        tokens = request.max_text or _TEXT
        return Sizes(latents, height, width, request.frames or config.sample_frames, tokens)

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return ``input_ids`` (2, L) and ``latents`` (1, F, C, H, W), F rounded up to whole patches; ``spare``, the
        frames too many, which are the first; ``generator``, the state that drew the noise, to draw more from.
        """
        vae = Checkpoint(root / "vae").as_config(CogVideoXVAEConfig)
        sizes = self.sizes(root, request)
        ids = tokenize(root / "tokenizer", self.texts(request), max_length=sizes.tokens).input_ids
        spare = sizes.latents[1] - request.latent_frames(sizes.frames, vae.temporal_compression_ratio)
        generator = torch.Generator().manual_seed(request.seed)
        latents = torch.randn(sizes.latents, generator=generator)
        state = {"generator": generator.get_state(), "spare": torch.tensor(spare)}
        return {"latents": latents, "input_ids": ids, **state}

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """See :meth:`PipelineHost.encode`; the encoder is given no mask."""
        ids = run.tensors["input_ids"][run.samples]
        return {"encoder_hidden_states": run.answer("text_encoder", input_ids=ids)[SAMPLE]}

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """See :meth:`PipelineHost.decoder_input`; frames that only filled a patch are left out."""
        config = Checkpoint(run.root / "vae").as_config(CogVideoXVAEConfig)
        asked = latents[:, int(run.tensors["spare"]) :].permute(0, 2, 1, 3, 4)  # (1, C, F, h, w)
        return asked.to(run.storage) / config.scaling_factor

    def scheduler(self, root: Path, request: PipelineRequest, tensors: dict[str, Tensor]) -> Schedule:
        """See :meth:`PipelineHost.scheduler`; the generator goes on where the first latents left it."""
        generator = torch.Generator()
        generator.set_state(tensors["generator"])
        return Schedule(root / "scheduler", request.steps, generator=generator)
