"""The program behind ``refsim run`` of a Stable Diffusion 3 or 3.5 folder: prompt and noise in, a picture out.

    prompt, negative prompt --three tokenizers (host)--> ids
        CLIP-L, CLIP-G  penultimate states (77 rows) side by side, features zero-padded to T5's --.
        T5 (or zeros where the folder has none) ----------------------------------------------------+--> prompt (rows)
        CLIP-L, CLIP-G  projected end tokens side by side --------------------------------------------> pooled
    for every time step: transformer with guidance --> scheduler (host) --> latents
    latents / scaling + shift --> decoder, picture cut by rows (sp) and columns or channels (tp) --> picture

With cfg2 the two halves of the batch are on two groups (CFG parallel), otherwise they are one batch (CFG fusion).
An encoder is held only while it runs.

Counterpart: diffusers' ``StableDiffusion3Pipeline``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from refsim.checkpoint import Checkpoint, Weights
from refsim.errors import UserError
from refsim.models.clip.config import CLIPTextConfig
from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.registry import load_model
from refsim.models.t5.config import T5Config
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.config import VAEConfig
from refsim.models.vae.decoder import VAEDecoder
from refsim.parallel.cfg import batch_range, gather_batch, guide
from refsim.pipelines.host import Clock, HostScheduler
from refsim.pipelines.request import PipelineRequest, load_tokenizer, read_index
from refsim.pipelines.transformer import digest
from refsim.runtime.device import Device

FPS = 1
OPTIONS = ()
VAE_FORMS = ("spatial", "tensor")
_TEXT, _MOST_TEXT = 256, 512
_CLIPS = ("text_encoder", "text_encoder_2")


def prepare(root: Path, request: PipelineRequest) -> dict[str, Tensor]:
    """The host's part: ids of [negative, positive] prompt (the positive one alone without guidance) by encoder,
    ``text_encoder`` (2, 77), ``text_encoder_2`` and, where there is a T5, ``text_encoder_3`` (2, L); ``latents``
    (1, C, H, W), the noise in fp32; ``max_text``.

    Raises:
        UserError: a size that does not fit patches and autoencoder, or a folder that lacks something.
    """
    vae, transformer = VAEConfig.from_dict(Checkpoint(root / "vae").config), Checkpoint(root / "transformer").config
    if request.frames not in (None, 1):
        raise UserError(f"a picture has one frame, not {request.frames}; leave out --frames.")
    step, default = vae.scale * transformer.get("patch_size", 2), vae.scale * transformer.get("sample_size", 128)
    height, width = request.height or default, request.width or default
    if height % step or width % step:
        raise UserError(f"a picture of {height}x{width} does not divide into {step}x{step} pixels; choose multiples.")
    max_text = request.max_text or _TEXT
    if max_text > _MOST_TEXT:
        raise UserError(f"--max-text is at most {_MOST_TEXT} for this pipeline, not {max_text}.")
    texts = [request.negative_prompt, request.prompt] if request.guided else [request.prompt]
    latents = torch.randn(
        (1, vae.latent_channels, height // vae.scale, width // vae.scale),
        generator=torch.Generator().manual_seed(request.seed),
    )
    tensors = {"latents": latents, "max_text": torch.tensor(max_text)}
    longest = None
    for encoder, folder in zip((*_CLIPS, "text_encoder_3"), ("tokenizer", "tokenizer_2", "tokenizer_3"), strict=True):
        if encoder == "text_encoder_3" and not _has_t5(root):
            continue
        tokenizer = load_tokenizer(root / folder)
        longest = longest or tokenizer.model_max_length  # diffusers takes the first tokenizer's length for both CLIPs
        length = max_text if encoder == "text_encoder_3" else longest
        ids = tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        tensors[encoder] = ids.input_ids
    return tensors


def check(root: Path, device: Device) -> None:
    """``UserError`` if a part of the folder is missing, damaged or does not fit the others; reads headers only."""
    config = Checkpoint(root / "transformer").config
    _transformer(device, root, torch.float32, meta=True)
    clips = [_clip(device, root, name, torch.float32, meta=True)[1] for name in _CLIPS]
    vae = _decoder(device, root, torch.float32, meta=True)[1]
    pairs = [
        ("pooled_projection_dim", "the sum of the projections of both CLIPs", sum(c.projection_dim for c in clips)),
        ("in_channels", "latent_channels of vae", vae.latent_channels),
    ]
    if _has_t5(root):
        features = _t5(device, root, torch.float32, meta=True).features
        pairs.append(("joint_attention_dim", "d_model of text_encoder_3", features))
    for name, other, wanted in pairs:
        if config.get(name) != wanted:
            raise UserError(f"pipeline '{root}' has {name} {config.get(name)} in transformer but {other} is {wanted}.")
    width = sum(c.hidden_size for c in clips)
    if width > config["joint_attention_dim"]:
        raise UserError(
            f"pipeline '{root}' has joint_attention_dim {config['joint_attention_dim']} in transformer but both CLIPs "
            f"side by side are {width} wide."
        )


def program(
    device: Device,
    *,
    folder: str,
    inputs: str,
    steps: int,
    guidance: float,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run this device's part; rank 0 returns the picture and what every step gave.

    Args:
        inputs: what :func:`prepare` gave.

    Returns:
        ``frames`` (1, 3, 1, H, W) in about -1..1 and ``steps`` (steps, 1, C, h, w), the latents after every step;
        seconds per stage and the picture's digest.
    """
    root, storage = Path(folder), device.options.storage
    tensors, clock = load_file(inputs), Clock()
    mine = slice(*batch_range(device, tensors[_CLIPS[0]].shape[0]))
    prompt, pooled = _encode(device, root, storage, tensors, mine)
    clock.lap("encode")

    device.loading("the transformer")
    transformer = _transformer(device, root, storage)
    scheduler = HostScheduler(device, root / "scheduler", steps)
    latents, kept = tensors["latents"], []
    for index, t in enumerate(scheduler.timesteps):
        device.progress(index, len(scheduler.timesteps))
        device.stage(step=index)
        batch = latents.to(storage).expand(prompt.shape[0], *latents.shape[1:])
        sample = transformer(
            hidden_states=batch,
            encoder_hidden_states=prompt,
            pooled_projections=pooled,
            timestep=t.float().expand(prompt.shape[0]),
        )
        sample = gather_batch(device, sample)
        if sample.shape[0] == 2:
            sample = guide(sample, guidance)
        latents = scheduler.step(sample, index, latents)
        kept.append(latents)
    del transformer
    device.progress(len(scheduler.timesteps), len(scheduler.timesteps))
    clock.lap("denoise")

    decoder, config = _decoder(device, root, storage)
    picture = decoder(z=latents.to(storage) / config.scaling_factor + config.shift_factor)
    clock.lap("decode")
    result = {"digest": digest(picture), "seconds": clock.laps}
    return result, {"frames": picture.unsqueeze(2), "steps": torch.stack(kept)}


def _encode(
    device: Device, root: Path, storage: torch.dtype, tensors: dict[str, Tensor], mine: slice
) -> tuple[Tensor, Tensor]:
    """Prompt rows (B, 77 + L, joint) and pooled (B, P) of this cfg group's samples."""
    sequences, pooled = [], []
    for name in _CLIPS:
        device.loading(name)
        sequence, end = _clip(device, root, name, storage)[0].encode(tensors[name][mine])
        sequences.append(sequence)
        pooled.append(end)
    clip = torch.cat(sequences, -1)
    if "text_encoder_3" in tensors:
        device.loading("text_encoder_3")
        rest = _t5(device, root, storage)(tensors["text_encoder_3"][mine])
    else:
        joint = Checkpoint(root / "transformer").config["joint_attention_dim"]
        rest = clip.new_zeros(clip.shape[0], int(tensors["max_text"]), joint)
    clip = F.pad(clip, (0, rest.shape[-1] - clip.shape[-1]))
    return torch.cat([clip, rest], -2), torch.cat(pooled, -1)


def _has_t5(root: Path) -> bool:
    return any(read_index(root).get("text_encoder_3") or [None])


def _clip(
    device: Device, root: Path, name: str, storage: torch.dtype, *, meta: bool = False
) -> tuple[CLIPTextEncoder, CLIPTextConfig]:
    checkpoint = Checkpoint(root / name)
    config = CLIPTextConfig.from_dict(checkpoint.config)
    return CLIPTextEncoder(Weights(checkpoint, storage, meta=meta), device, config), config


def _t5(device: Device, root: Path, storage: torch.dtype, *, meta: bool = False) -> T5Encoder:
    checkpoint = Checkpoint(root / "text_encoder_3")
    return T5Encoder(Weights(checkpoint, storage, meta=meta), device, T5Config.from_dict(checkpoint.config))


def _transformer(
    device: Device,
    root: Path,
    storage: torch.dtype,
    *,
    meta: bool = False,
) -> Any:
    checkpoint = Checkpoint(root / "transformer")
    weights = Weights(checkpoint, storage, meta=meta)
    return load_model(checkpoint, weights, device)


def _decoder(device: Device, root: Path, storage: torch.dtype, *, meta: bool = False) -> tuple[VAEDecoder, VAEConfig]:
    checkpoint = Checkpoint(root / "vae")
    config = VAEConfig.from_dict(checkpoint.config)
    return VAEDecoder(Weights(checkpoint, storage, meta=meta), device, config), config
