"""Stable Diffusion 3 and 3.5: prompt and noise in, a picture out.

    prompt, negative prompt --three tokenizers (host)--> ids
        CLIP-L, CLIP-G  penultimate states (77 rows) side by side, features zero-padded to T5's --.
        T5 (or zeros where the folder has none) ----------------------------------------------------+--> prompt (rows)
        CLIP-L, CLIP-G  projected end tokens side by side --------------------------------------------> pooled
    for every time step: transformer with guidance --> scheduler (host) --> latents
    latents / scaling + shift --> decoder, picture cut by rows (sp) and columns or channels (tp) --> picture

Counterpart: diffusers' ``StableDiffusion3Pipeline``.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.checkpoint import Checkpoint
from refsim.errors import UserError
from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.sd35.transformer import SD35Transformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.config import VAEConfig
from refsim.models.vae.decoder import VAEDecoder
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.pipelines.request import PipelineRequest, load_tokenizer, read_index
from refsim.runtime.device import Device

_TEXT, _MAX_TEXT = 256, 512
_CLIPS, _T5 = ("text_encoder", "text_encoder_2"), "text_encoder_3"


class StableDiffusion3Pipeline(Pipeline):
    """With or without T5."""

    transformer = SD35Transformer

    def check(self, root: Path, device: Device) -> None:
        _, config = load_part(device, root, "transformer", self.transformer, meta=True)
        clips = [load_part(device, root, name, CLIPTextEncoder, meta=True)[1] for name in _CLIPS]
        _, vae = load_part(device, root, "vae", VAEDecoder, meta=True)
        pooled, width = sum(c.projection_dim for c in clips), sum(c.hidden_size for c in clips)
        pairs = [
            ("pooled_projection_dim", config.pooled_projection_dim, "the sum of the projections of both CLIPs", pooled),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        if _has_t5(root):
            t5, _ = load_part(device, root, _T5, T5Encoder, meta=True)
            pairs.append(("joint_attention_dim", config.joint_attention_dim, f"d_model of {_T5}", t5.features))
        check_fit(root, "transformer", pairs)
        if width > config.joint_attention_dim:
            raise UserError(
                f"pipeline '{root}' has joint_attention_dim {config.joint_attention_dim} in transformer but both "
                f"CLIPs side by side are {width} wide."
            )

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
        for encoder, folder in zip((*_CLIPS, _T5), ("tokenizer", "tokenizer_2", "tokenizer_3"), strict=True):
            if encoder == _T5 and not _has_t5(root):
                continue
            tokenizer = load_tokenizer(root / folder)
            longest = longest or tokenizer.model_max_length  # diffusers takes the first one's length for both CLIPs
            length = max_text if encoder == _T5 else longest
            ids = tokenizer(
                self.texts(request), padding="max_length", max_length=length, truncation=True, return_tensors="pt"
            )
            tensors[encoder] = ids.input_ids
        return tensors

    def encode(self, run: Run) -> dict[str, Tensor]:
        """Return the prompt rows (B, 77 + L, joint) and pooled (B, P)."""
        sequences, pooled = [], []
        for name in _CLIPS:
            clip_encoder, _ = run.load(name, CLIPTextEncoder)
            sequence, end = clip_encoder.encode(run.tensors[name][run.samples])
            sequences.append(sequence)
            pooled.append(end)
            del clip_encoder
        clip = torch.cat(sequences, -1)
        if _T5 in run.tensors:
            t5, _ = run.load(_T5, T5Encoder)
            rest = t5(run.tensors[_T5][run.samples])
        else:
            joint = Checkpoint(run.root / "transformer").config["joint_attention_dim"]
            rest = clip.new_zeros(clip.shape[0], int(run.tensors["max_text"]), joint)
        clip = F.pad(clip, (0, rest.shape[-1] - clip.shape[-1]))
        return {"encoder_hidden_states": torch.cat([clip, rest], -2), "pooled_projections": torch.cat(pooled, -1)}

    def decode(self, run: Run, latents: Tensor) -> Tensor:
        decoder, config = run.load("vae", VAEDecoder)
        return decoder(z=latents.to(run.storage) / config.scaling_factor + config.shift_factor).unsqueeze(2)


def _has_t5(root: Path) -> bool:
    return any(read_index(root).get(_T5) or [None])
