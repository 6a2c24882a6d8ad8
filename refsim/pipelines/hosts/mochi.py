"""The host of Mochi 1: one tokenizer with a mask, the noise; Euler flow matching in small, then in large steps."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.schema import Flag, check
from refsim.files.checkpoint import Checkpoint
from refsim.models.inputs import SAMPLE
from refsim.models.mochi.config import MochiConfig
from refsim.models.vae_mochi.config import MochiVAEConfig
from refsim.pipelines.hosts.base import HostRun, PipelineHost, Sizes
from refsim.pipelines.hosts.schedule import Schedule
from refsim.pipelines.request import PipelineRequest, read_index, tokenize

_HEIGHT = 480
_WIDTH = 848
_FRAMES = 19
_TEXT = 256
_THRESHOLD = 0.025
"""Of noise, down to which the first half of the steps go in a line."""


class MochiHost(PipelineHost):
    """Mochi 1, with guidance by a negative prompt, whose valid tokens are others."""

    fps = 30
    guidance_dtype = torch.float32

    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """See :meth:`PipelineHost.sizes`."""
        vae = Checkpoint(root / "vae").as_config(MochiVAEConfig)
        transformer = Checkpoint(root / "transformer").as_config(MochiConfig)
        if request.steps < 2:
            raise UserError("--steps is 2 or more for Mochi, whose steps are first small and then large.")
        temporal, spatial = vae.ratios
        step = spatial * transformer.patch_size
        height, width = request.size(_HEIGHT, _WIDTH, (step, step))
        frames = request.latent_frames(_FRAMES, temporal)
        latents = (1, transformer.in_channels, frames, height // spatial, width // spatial)
        return Sizes(latents, height, width, request.frames or _FRAMES, request.max_text or _TEXT)

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` (2, L), and ``latents`` (1, C, T, H, W).

        A folder may ask for zeros in place of the ids and the mask of an empty prompt.
        """
        sizes = self.sizes(root, request)
        texts = self.texts(request)
        tokens = tokenize(root / "tokenizer", texts, max_length=sizes.tokens, return_attention_mask=True)
        zeros = read_index(root).get("force_zeros_for_empty_prompt")
        empty = check(Flag | None, zeros, "force_zeros_for_empty_prompt", "model_index.json")
        nonzero_B1 = torch.tensor([not (empty and text == "") for text in texts])[:, None]
        latents = torch.randn(sizes.latents, generator=torch.Generator().manual_seed(request.seed))
        masked = {name: getattr(tokens, name) * nonzero_B1 for name in ("input_ids", "attention_mask")}
        return {"latents": latents, **masked}

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """See :meth:`PipelineHost.encode`; the transformer is given the mask, too."""
        ids_BL, mask_BL = (run.tensors[name][run.samples] for name in ("input_ids", "attention_mask"))
        rows = run.answer("text_encoder", input_ids=ids_BL, attention_mask=mask_BL)[SAMPLE]
        return {"encoder_hidden_states": rows, "encoder_attention_mask": mask_BL.bool()}

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """Return ``latents * std / scaling + mean`` per channel."""
        config = Checkpoint(run.root / "vae").as_config(MochiVAEConfig)
        z = latents.to(run.storage)
        mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1).to(z) for x in (config.latents_mean, config.latents_std))
        return z * std / config.scaling_factor + mean

    def scheduler(self, root: Path, request: PipelineRequest, tensors: dict[str, Tensor]) -> Schedule:
        """See :meth:`PipelineHost.scheduler`; the steps are those of :func:`linear_then_quadratic`."""
        return Schedule(root / "scheduler", request.steps, sigmas=linear_then_quadratic(request.steps))


def linear_then_quadratic(steps: int) -> list[float]:
    """Return the sigmas of so many steps: half of them in a line from 1 down to 1 - 0.025, the others on a parabola
    that goes on from there as steeply and ends at 0 behind the last step.
    """
    linear = steps // 2
    rest = steps - linear
    slope = _THRESHOLD / linear
    bend = (linear - _THRESHOLD * steps) / (linear * rest**2)
    noise = [slope * i for i in range(linear)]
    noise += [_THRESHOLD + slope * i + bend * i**2 for i in range(rest)]
    return [1.0 - x for x in noise]
