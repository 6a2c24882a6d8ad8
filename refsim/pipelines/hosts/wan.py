"""The host of Wan2.2 text-to-video: one tokenizer, the noise, which of two experts runs; UniPC."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Checkpoint
from refsim.models.inputs import SAMPLE
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.wan22.config import WanConfig
from refsim.pipelines.hosts.base import HostRun, PipelineHost, Sizes
from refsim.pipelines.request import PipelineRequest, read_index, tokenize

_HEIGHT = 480
_WIDTH = 832
_FRAMES = 81
_TEXT = 512


class WanHost(PipelineHost):
    """A14B with its two experts, or one transformer."""

    fps = 16

    def experts(self, root: Path) -> tuple[tuple[str, float], ...]:
        index = read_index(root)
        if index.get("expand_timesteps"):
            raise UserError(f"'{root}' is a TI2V pipeline (expand_timesteps); the T2V pipeline is supported.")
        boundary = index.get("boundary_ratio")
        return super().experts(root) if boundary is None else (("transformer", boundary), ("transformer_2", 0.0))

    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """See :meth:`PipelineHost.sizes`."""
        vae = Checkpoint(root / "vae").as_config(WanVAEConfig)
        transformer = Checkpoint(root / "transformer").as_config(WanConfig)
        temporal = vae.scale_factor_temporal
        spatial = vae.scale_factor_spatial
        _, rows, columns = (spatial * p for p in transformer.patch_size)
        height, width = request.size(_HEIGHT, _WIDTH, (rows, columns))
        frames = request.latent_frames(_FRAMES, temporal)
        latents = (1, transformer.in_channels, frames, height // spatial, width // spatial)
        return Sizes(latents, height, width, request.frames or _FRAMES, request.max_text or _TEXT)

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` (2, L), and ``latents`` (1, C, T, H, W)."""
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean

        sizes = self.sizes(root, request)
        tokens = tokenize(
            root / "tokenizer",
            [prompt_clean(text) for text in self.texts(request)],
            max_length=sizes.tokens,
            return_attention_mask=True,
        )
        latents = torch.randn(sizes.latents, generator=torch.Generator().manual_seed(request.seed))
        return {"latents": latents, "input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """See :meth:`PipelineHost.encode`; rows of padding are zero."""
        ids_BL, mask_BL = (run.tensors[name][run.samples] for name in ("input_ids", "attention_mask"))
        rows = run.answer("text_encoder", input_ids=ids_BL, attention_mask=mask_BL)[SAMPLE]
        return {"encoder_hidden_states": rows * mask_BL.unsqueeze(-1).to(rows.dtype)}

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """Return ``latents * std + mean`` per channel."""
        config = Checkpoint(run.root / "vae").as_config(WanVAEConfig)
        z = latents.to(run.storage)
        mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1).to(z) for x in (config.latents_mean, config.latents_std))
        return z / (1.0 / std) + mean  # not "* std": diffusers rounds this way
