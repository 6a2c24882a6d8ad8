"""The host of Flux.1: two tokenizers, noise packed two by two, positions; Euler flow matching, shifted by the size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.schema import Real, check
from refsim.files.checkpoint import Checkpoint
from refsim.models.flux1.config import FluxConfig
from refsim.models.inputs import SAMPLE
from refsim.models.vae.config import VAEConfig
from refsim.pipelines.hosts.base import HostRun, PipelineHost, Sizes
from refsim.pipelines.hosts.schedule import Schedule
from refsim.pipelines.hosts.scheduler import read_scheduler_config
from refsim.pipelines.hosts.stable_diffusion_3 import clip_length
from refsim.pipelines.request import PipelineRequest, tokenize

_PACKED = 2
_TRAIN_TIMESTEPS = 1000
_LONGEST_TEXT = 512
_SAMPLE_SIZE = 128
_SHIFT = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}


class FluxHost(PipelineHost):
    """Dev (guidance as a number) and schnell."""

    classifier_free = False
    autoencoder: ClassVar[type[VAEConfig]] = VAEConfig

    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """See :meth:`PipelineHost.sizes`; the latents before they are packed."""
        vae = Checkpoint(root / "vae").as_config(self.autoencoder)
        if request.negative_prompt:
            raise UserError("Flux has no negative prompt; leave out --negative-prompt.")
        text = {"text": _LONGEST_TEXT, "longest_text": _LONGEST_TEXT}
        return Sizes.of_picture(request, vae, patch=_PACKED, side=_SAMPLE_SIZE, **text)

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Tokens ``clip`` (1, 77) and ``t5`` (1, L), ``latents`` (1, N, 64) and ``grid``, their rows and columns."""
        sizes = self.sizes(root, request)
        noise = torch.randn(sizes.latents, generator=torch.Generator().manual_seed(request.seed))
        grid = [sizes.latents[2] // _PACKED, sizes.latents[3] // _PACKED]
        tensors = {"latents": pack(noise), "grid": torch.tensor(grid)}
        longest = clip_length(root, "tokenizer", "text_encoder")
        for name, folder, length in (("clip", "tokenizer", longest), ("t5", "tokenizer_2", sizes.tokens)):
            tensors[name] = tokenize(root / folder, self.texts(request), max_length=length).input_ids
        return tensors

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """Return both encoders' answers, positions of both streams, and guidance where the transformer takes it."""
        pooled = run.answer("text_encoder", input_ids=run.tensors["clip"])[SAMPLE]
        prompt = run.answer("text_encoder_2", input_ids=run.tensors["t5"])[SAMPLE]
        rows, columns = run.tensors["grid"].tolist()
        conditions = {
            "encoder_hidden_states": prompt,
            "pooled_projections": pooled,
            "img_ids": positions(rows, columns),
            "txt_ids": torch.zeros(prompt.shape[1], 3),
        }
        if Checkpoint(run.root / "transformer").as_config(FluxConfig).guidance_embeds:
            conditions["guidance"] = torch.full((1,), run.request.guidance)
        return conditions

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """See :meth:`PipelineHost.decoder_input`; tokens are unpacked."""
        config = Checkpoint(run.root / "vae").as_config(VAEConfig)
        z = unpack(latents, *run.tensors["grid"].tolist())
        return z.to(run.storage) / config.scaling_factor + config.shift_factor

    def scheduler(self, root: Path, request: PipelineRequest, tensors: dict[str, Tensor]) -> Schedule:
        """Sigmas from 1 down to 1 / steps, shifted by ``mu``, which grows with the number of tokens."""
        config = read_scheduler_config(root / "scheduler")
        steps = request.steps
        more: dict[str, Any] = {"mu": self.shift(config, tensors["latents"].shape[1], steps)}
        if not config.get("use_flow_sigmas"):
            spacing = (1 / steps - 1.0) / max(steps - 1, 1)
            more["sigmas"] = [1.0 + i * spacing for i in range(steps)]
        return Schedule(root / "scheduler", steps, **more)

    def shift(self, config: dict[str, Any], tokens: int, steps: int) -> float:
        """Return ``mu`` of the scheduler."""
        return _shift(config, tokens)

    def timestep(self, t: Tensor) -> Tensor:
        """In 0..1; the transformer multiplies by 1000 again."""
        return t.float() / _TRAIN_TIMESTEPS


def _shift(config: dict[str, Any], tokens: int) -> float:
    """``mu`` on the line through (base_image_seq_len, base_shift) and (max_image_seq_len, max_shift)."""
    values = [config.get(name, default) for name, default in _SHIFT.items()]
    for name, value in zip(_SHIFT, values, strict=True):
        check(Real, value, name, "the scheduler's configuration")
    if values[0] == values[1]:
        values_text = ", ".join(f"{name} {value!r}" for name, value in zip(_SHIFT, values, strict=True))
        raise UserError(f"the scheduler's {values_text} make no line; the lengths must be two different numbers.")
    few, many, low, high = values
    slope = (high - low) / (many - few)
    return tokens * slope + (low - slope * few)


def pack(latent_BCHW: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H/2 * W/2, 4 C), tokens row-major, the four values of a channel side by side."""
    x = latent_BCHW.unflatten(3, (-1, _PACKED)).unflatten(2, (-1, _PACKED))
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens_BNC: Tensor, rows: int, columns: int) -> Tensor:
    """Undo :func:`pack`, back to (B, C, H, W); ``rows`` and ``columns`` of tokens."""
    x = tokens_BNC.unflatten(2, (-1, _PACKED, _PACKED)).unflatten(1, (rows, columns))
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def positions(rows: int, columns: int) -> Tensor:
    """(rows * columns, 3) in fp32: [0, row, column] of every image token."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([torch.zeros_like(row), row, column], -1).flatten(0, 1).float()
