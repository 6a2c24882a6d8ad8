"""The program behind ``refsim run`` of a CogVideoX folder: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids --T5 (no mask)--> embeddings
    for every time step: transformer with guidance --> scheduler (host) --> latents
    latents / scaling --> decoder, frames cut by rows (sp) and columns (tp) --> frames

Counterpart: diffusers' ``CogVideoXPipeline`` with its DDIM or DPM scheduler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from refsim.checkpoint import Checkpoint, Weights
from refsim.errors import UserError
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.registry import load_model
from refsim.models.t5.config import T5Config
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.models.vae_cogvideox.decoder import CogVideoXVAEDecoder
from refsim.parallel.cfg import batch_range, gather_batch, guide
from refsim.pipelines.host import Clock, HostScheduler, load_scheduler
from refsim.pipelines.request import PipelineRequest, load_tokenizer
from refsim.pipelines.transformer import digest
from refsim.runtime.device import Device

FPS = 8
OPTIONS = ()
VAE_FORMS = ("spatial",)
_FRAMES, _TEXT = 49, 226
_SCHEDULERS = ("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler")


def prepare(root: Path, request: PipelineRequest) -> dict[str, Tensor]:
    """The host's part: ``input_ids`` (2, L) of [negative, positive] prompt (the positive one alone without guidance)
    and ``latents`` (1, F, C, H, W), the noise in fp32, F rounded up to whole patches; ``spare``, the frames too many,
    which are the first; ``generator``, the state that drew the noise, for a scheduler that draws more.

    Raises:
        UserError: a size that does not fit patches and autoencoder, or a folder that lacks something.
    """
    config = Checkpoint(root / "transformer").config
    vae = CogVideoXVAEConfig.from_dict(Checkpoint(root / "vae").config)
    scale, temporal = vae.scale, vae.temporal_compression_ratio
    height = request.height or config.get("sample_height", 60) * scale
    width = request.width or config.get("sample_width", 90) * scale
    frames, step = request.frames or config.get("sample_frames", _FRAMES), scale * config.get("patch_size", 2)
    if height % step or width % step:
        raise UserError(f"a picture of {height}x{width} does not divide into {step}x{step} pixels; choose multiples.")
    if (frames - 1) % temporal:
        near = max(frames // temporal, 1) * temporal + 1
        raise UserError(f"--frames is one more than a multiple of {temporal}, such as {near}, not {frames}.")
    texts = [request.negative_prompt, request.prompt] if request.guided else [request.prompt]
    ids = load_tokenizer(root / "tokenizer")(
        texts,
        padding="max_length",
        max_length=request.max_text or config.get("max_text_seq_length", _TEXT),
        truncation=True,
        add_special_tokens=True,
        return_tensors="pt",
    ).input_ids
    latent_frames = (frames - 1) // temporal + 1
    spare = -latent_frames % (config.get("patch_size_t") or 1)
    size = (latent_frames + spare, config.get("in_channels", 16), height // scale, width // scale)
    generator = torch.Generator().manual_seed(request.seed)
    latents = torch.randn((1, *size), generator=generator)
    state = {"generator": generator.get_state(), "spare": torch.tensor(spare)}
    return {"latents": latents, "input_ids": ids, **state}


def check(root: Path, device: Device) -> None:
    """``UserError`` if a part of the folder is missing, damaged or does not fit the others; reads headers only."""
    _transformer(device, root, torch.float32, meta=True)
    config = CogVideoXConfig.from_dict(Checkpoint(root / "transformer").config)
    features = _text_encoder(device, root, torch.float32, meta=True).features
    if features != config.text_embed_dim:
        raise UserError(
            f"pipeline '{root}' has text_embed_dim {config.text_embed_dim} in transformer but d_model of text_encoder "
            f"is {features}."
        )
    channels = _decoder(device, root, torch.float32, meta=True)[1].latent_channels
    if channels != config.in_channels:
        raise UserError(
            f"pipeline '{root}' has in_channels {config.in_channels} in transformer but latent_channels of vae is "
            f"{channels}."
        )
    name = type(load_scheduler(root / "scheduler")).__name__
    if name not in _SCHEDULERS:
        raise UserError(f"pipeline '{root}' has a {name}; {' and '.join(_SCHEDULERS)} are supported.")


def program(
    device: Device,
    *,
    folder: str,
    inputs: str,
    steps: int,
    guidance: float,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run this device's part; rank 0 returns the video and what every step gave.

    Args:
        inputs: what :func:`prepare` gave.

    Returns:
        ``frames`` (1, 3, F, H, W) in about -1..1 and ``steps`` (steps, 1, F, C, h, w), the latents after every step;
        seconds per stage and the frames' digest.
    """
    root, storage = Path(folder), device.options.storage
    tensors, clock = load_file(inputs), Clock()
    mine = slice(*batch_range(device, tensors["input_ids"].shape[0]))
    device.loading("the text encoder")
    prompt = _text_encoder(device, root, storage)(tensors["input_ids"][mine])
    clock.lap("encode")

    device.loading("the transformer")
    transformer = _transformer(device, root, storage)
    generator = torch.Generator()
    generator.set_state(tensors["generator"])
    scheduler = HostScheduler(device, root / "scheduler", steps, generator=generator)
    latents, kept = tensors["latents"], []
    for index, t in enumerate(scheduler.timesteps):
        device.progress(index, len(scheduler.timesteps))
        device.stage(step=index)
        batch = latents.to(storage).expand(prompt.shape[0], *latents.shape[1:])
        sample = transformer(
            hidden_states=batch, encoder_hidden_states=prompt, timestep=t.float().expand(prompt.shape[0])
        )
        sample = gather_batch(device, sample).float()
        if sample.shape[0] == 2:
            sample = guide(sample, guidance)
        latents = scheduler.step(sample, index, latents)
        kept.append(latents)
    del transformer
    device.progress(len(scheduler.timesteps), len(scheduler.timesteps))
    clock.lap("denoise")

    decoder, config = _decoder(device, root, storage)
    asked = latents[:, int(tensors["spare"]) :].permute(0, 2, 1, 3, 4)  # (1, C, F, h, w)
    frames = decoder(z=asked.to(storage) / config.scaling_factor)
    clock.lap("decode")
    result = {"digest": digest(frames), "seconds": clock.laps}
    return result, {"frames": frames, "steps": torch.stack(kept)}


def _text_encoder(device: Device, root: Path, storage: torch.dtype, *, meta: bool = False) -> T5Encoder:
    checkpoint = Checkpoint(root / "text_encoder")
    return T5Encoder(Weights(checkpoint, storage, meta=meta), device, T5Config.from_dict(checkpoint.config))


def _decoder(
    device: Device, root: Path, storage: torch.dtype, *, meta: bool = False
) -> tuple[CogVideoXVAEDecoder, CogVideoXVAEConfig]:
    checkpoint = Checkpoint(root / "vae")
    config = CogVideoXVAEConfig.from_dict(checkpoint.config)
    return CogVideoXVAEDecoder(Weights(checkpoint, storage, meta=meta), device, config), config


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
