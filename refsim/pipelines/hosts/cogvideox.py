"""The host of CogVideoX: one tokenizer, the noise, frames that only fill a patch; DDIM, or a DPM that draws noise."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.checkpoint import Checkpoint
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.pipelines.hosts.base import PipelineHost
from refsim.pipelines.hosts.schedule import Schedule
from refsim.pipelines.request import PipelineRequest, load_tokenizer

_FRAMES, _TEXT = 49, 226


class CogVideoXHost(PipelineHost):
    """2b, 5b and 1.5."""

    fps = 8
    guidance_dtype = torch.float32

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

    def scheduler(self, root: Path, request: PipelineRequest, tensors: dict[str, Tensor]) -> Schedule:
        """See :meth:`PipelineHost.scheduler`; the generator goes on where the first latents left it."""
        generator = torch.Generator()
        generator.set_state(tensors["generator"])
        return Schedule(root / "scheduler", request.steps, generator=generator)
