"""The host of Stable Diffusion 3 and 3.5: three tokenizers, the noise; Euler flow matching."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.checkpoint import Checkpoint
from refsim.errors import UserError
from refsim.models.vae.config import VAEConfig
from refsim.pipelines.hosts.base import PipelineHost
from refsim.pipelines.request import PipelineRequest, load_tokenizer, read_index

_TEXT, _MAX_TEXT = 256, 512
CLIPS, T5 = ("text_encoder", "text_encoder_2"), "text_encoder_3"


class StableDiffusion3Host(PipelineHost):
    """With or without T5."""

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return the ids by encoder: ``text_encoder`` (2, 77), ``text_encoder_2`` and, where there is a T5,
        ``text_encoder_3`` (2, L); ``latents`` (1, C, H, W); ``max_text``.
        """
        vae, transformer = VAEConfig.from_dict(Checkpoint(root / "vae").config), Checkpoint(root / "transformer").config
        if request.frames not in (None, 1):
            raise UserError(f"a picture has one frame, not {request.frames}; leave out --frames.")
        step, default = vae.scale * transformer.get("patch_size", 2), vae.scale * transformer.get("sample_size", 128)
        height, width = request.size(default, default, (step, step))
        max_text = request.max_text or _TEXT
        if max_text > _MAX_TEXT:
            raise UserError(f"--max-text is at most {_MAX_TEXT} for this pipeline, not {max_text}.")
        latents = torch.randn(
            (1, vae.latent_channels, height // vae.scale, width // vae.scale),
            generator=torch.Generator().manual_seed(request.seed),
        )
        tensors = {"latents": latents, "max_text": torch.tensor(max_text)}
        longest = None
        for encoder, folder in zip((*CLIPS, T5), ("tokenizer", "tokenizer_2", "tokenizer_3"), strict=True):
            if encoder == T5 and not has_t5(root):
                continue
            tokenizer = load_tokenizer(root / folder)
            longest = longest or tokenizer.model_max_length  # diffusers takes the first one's length for both CLIPs
            length = max_text if encoder == T5 else longest
            ids = tokenizer(
                self.texts(request), padding="max_length", max_length=length, truncation=True, return_tensors="pt"
            )
            tensors[encoder] = ids.input_ids
        return tensors


def has_t5(root: Path) -> bool:
    """Whether a folder has a third text encoder; without one its rows of the prompt are zeros."""
    return any(read_index(root).get(T5) or [None])
