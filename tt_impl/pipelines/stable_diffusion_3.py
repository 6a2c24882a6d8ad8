"""Stable Diffusion 3 and 3.5 in TTNN; counterpart of ``refsim.pipelines.stable_diffusion_3``.

ids --CLIP-L, CLIP-G, T5, one after the other--> rows and pooled features, joined on the host
rows:    CLIP-L and CLIP-G side by side, features zero-padded to T5's, then T5's rows
latents / scaling + shift (host) --> decoder --> picture
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from refsim.files.checkpoint import Checkpoint
from refsim.models.sd35.config import SD35Config
from refsim.models.vae.config import VAEConfig
from refsim.pipelines.hosts.stable_diffusion_3 import CLIPS, T5, StableDiffusion3Host, has_t5
from tt_impl.pipelines.pipeline import Pipeline, Run, decode_latents


class StableDiffusion3Pipeline(StableDiffusion3Host, Pipeline):
    """With or without T5."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return (*CLIPS, *((T5,) if has_t5(root) else ()), "transformer", "vae")

    def encode(self, run: Run) -> dict[str, torch.Tensor]:
        """Prompt rows (B, 77 + L, joint) and pooled (B, P)."""
        sequences, pooled = [], []
        for name in CLIPS:
            sequence, end = encode_clip(run, name, run.tensors[name][run.samples])
            sequences.append(sequence)
            pooled.append(end)
        clip = torch.cat(sequences, -1)
        if T5 in run.tensors:
            t5 = run.load(T5)
            rest = t5.fetch(t5.model.encode(run.tensors[T5][run.samples]))
        else:
            joint = Checkpoint(run.root / "transformer").as_config(SD35Config).joint_attention_dim
            rest = clip.new_zeros(clip.shape[0], int(run.tensors["max_text"]), joint)
        clip = F.pad(clip, (0, rest.shape[-1] - clip.shape[-1]))
        return {"encoder_hidden_states": torch.cat([clip, rest], -2), "pooled_projections": torch.cat(pooled, -1)}

    def decode(self, run: Run, latents: torch.Tensor) -> torch.Tensor:
        """See :meth:`Pipeline.decode`."""
        config = Checkpoint(run.root / "vae").as_config(VAEConfig)
        z = latents.to(run.storage) / config.scaling_factor + config.shift_factor
        return decode_latents(run, z).unsqueeze(2)


def encode_clip(run: Run, name: str, ids_BL: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (B, L, D) and pooled features (B, P) of a CLIP, which is let go of afterwards."""
    clip = run.load(name)
    rows, pooled = clip.model.encode(ids_BL)
    return clip.fetch(rows), clip.fetch(pooled).flatten(1)
