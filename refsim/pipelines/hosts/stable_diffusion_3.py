"""The host of Stable Diffusion 3 and 3.5: three tokenizers, the noise; Euler flow matching."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.schema import short
from refsim.files.checkpoint import Checkpoint
from refsim.models.clip.config import CLIPTextConfig
from refsim.models.inputs import SAMPLE
from refsim.models.sd35.config import SD35Config
from refsim.models.vae.config import VAEConfig
from refsim.pipelines.hosts.base import HostRun, PipelineHost, Sizes
from refsim.pipelines.request import PipelineRequest, is_whole, load_tokenizer, read_index, tokenize

_TEXT = 256
_MAX_TEXT = 512
CLIPS = ("text_encoder", "text_encoder_2")
T5 = "text_encoder_3"


class StableDiffusion3Host(PipelineHost):
    """With or without T5."""

    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """See :meth:`PipelineHost.sizes`."""
        vae = Checkpoint(root / "vae").as_config(VAEConfig)
        transformer = Checkpoint(root / "transformer").as_config(SD35Config)
        sides = {"patch": transformer.patch_size, "side": transformer.sample_size}
        return Sizes.of_picture(request, vae, **sides, text=_TEXT, longest_text=_MAX_TEXT)

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return the ids by encoder: ``text_encoder`` (2, 77), ``text_encoder_2`` and, where there is a T5,
        ``text_encoder_3`` (2, L); ``latents`` (1, C, H, W); ``max_text``.
        """
        sizes = self.sizes(root, request)
        latents = torch.randn(sizes.latents, generator=torch.Generator().manual_seed(request.seed))
        tensors = {"latents": latents, "max_text": torch.tensor(sizes.tokens)}
        longest = None
        for encoder, folder in zip((*CLIPS, T5), ("tokenizer", "tokenizer_2", "tokenizer_3"), strict=True):
            if encoder == T5 and not has_t5(root):
                continue
            longest = longest or clip_length(root, folder, encoder)  # diffusers takes the first one's for both CLIPs
            length = sizes.tokens if encoder == T5 else longest
            tensors[encoder] = tokenize(root / folder, self.texts(request), max_length=length).input_ids
        return tensors

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """Return the prompt rows (B, 77 + L, joint) and pooled (B, P)."""
        clips = [run.answer(name, input_ids=run.tensors[name][run.samples]) for name in CLIPS]
        clip = torch.cat([answer["sequence"] for answer in clips], -1)
        if T5 in run.tensors:
            rest = run.answer(T5, input_ids=run.tensors[T5][run.samples])[SAMPLE]
        else:
            joint = Checkpoint(run.root / "transformer").as_config(SD35Config).joint_attention_dim
            rest = clip.new_zeros(clip.shape[0], int(run.tensors["max_text"]), joint)
        clip = F.pad(clip, (0, rest.shape[-1] - clip.shape[-1]))
        pooled = torch.cat([answer[SAMPLE] for answer in clips], -1)
        return {"encoder_hidden_states": torch.cat([clip, rest], -2), "pooled_projections": pooled}

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        config = Checkpoint(run.root / "vae").as_config(VAEConfig)
        return latents.to(run.storage) / config.scaling_factor + config.shift_factor


def clip_length(root: Path, tokenizer: str, encoder: str) -> int:
    """Return the length that a CLIP tokenizer pads to; ``UserError`` if the encoder has not so many positions."""
    length = load_tokenizer(root / tokenizer).model_max_length
    most = Checkpoint(root / encoder).as_config(CLIPTextConfig).max_position_embeddings
    if not is_whole(length) or not 1 <= length <= most:
        raise UserError(
            f"'{root / tokenizer}' has model_max_length = {short(length)}; {encoder} has {most} positions, so a whole "
            f"number from 1 to {most} would work."
        )
    return length


def has_t5(root: Path) -> bool:
    """Whether a folder has a third text encoder; without one its rows of the prompt are zeros."""
    return any(read_index(root).get(T5) or [None])
