"""The program behind ``refsim run`` of a Wan2.2 text-to-video folder: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids --UMT5--> embeddings, zero beyond the real tokens
    for every time step t:
        t >= boundary_ratio * 1000:  transformer   (high noise)  with guidance     --> scheduler (host) --> latents
        t <  boundary_ratio * 1000:  transformer_2 (low noise)   with guidance_2   --'
    latents * std + mean --> decoder, frames cut by rows (sp) and columns (tp) --> frames

One expert is held at a time; time only goes down, so each is loaded once. With cfg2 the two halves of the batch are on
two groups (CFG parallel), otherwise they are one batch (CFG fusion). A folder without ``boundary_ratio`` has one
transformer for all steps.

Counterpart: diffusers' ``WanPipeline``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from refsim.checkpoint import Checkpoint, Weights
from refsim.errors import UserError
from refsim.models.registry import load_model
from refsim.models.t5.config import T5Config
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.models.wan22.config import WanConfig
from refsim.parallel.cfg import batch_range, gather_batch, guide
from refsim.pipelines.host import Clock, HostScheduler
from refsim.pipelines.request import PipelineRequest, load_tokenizer, read_index
from refsim.pipelines.transformer import digest
from refsim.runtime.device import Device

FPS = 16
OPTIONS = ("guidance_2",)
VAE_FORMS = ("spatial",)
_HEIGHT, _WIDTH, _FRAMES, _TEXT = 480, 832, 81, 512


def prepare(root: Path, request: PipelineRequest) -> dict[str, Tensor]:
    """The host's part: ``input_ids`` and ``attention_mask`` (2, L) of [negative, positive] prompt (the positive one
    alone without guidance), and ``latents`` (1, C, T, H, W), the noise in fp32.

    Raises:
        UserError: a size that does not fit patches and autoencoder, or a folder that lacks something.
    """
    boundary_ratio(root)
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    vae, transformer = Checkpoint(root / "vae").config, Checkpoint(root / "transformer").config
    temporal, spatial = vae.get("scale_factor_temporal", 4), vae.get("scale_factor_spatial", 8)
    height, width, frames = request.height or _HEIGHT, request.width or _WIDTH, request.frames or _FRAMES
    _, rows, columns = (spatial * p for p in transformer.get("patch_size", (1, 2, 2)))
    if height % rows or width % columns:
        raise UserError(
            f"a picture of {height}x{width} does not divide into {rows}x{columns} pixels; choose multiples."
        )
    if (frames - 1) % temporal:
        near = max(frames // temporal, 1) * temporal + 1
        raise UserError(f"--frames is one more than a multiple of {temporal}, such as {near}, not {frames}.")
    texts = [request.negative_prompt, request.prompt] if request.guided else [request.prompt]
    tokens = load_tokenizer(root / "tokenizer")(
        [prompt_clean(text) for text in texts],
        padding="max_length",
        max_length=request.max_text or _TEXT,
        truncation=True,
        add_special_tokens=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    size = (transformer.get("in_channels", 16), (frames - 1) // temporal + 1, height // spatial, width // spatial)
    latents = torch.randn((1, *size), generator=torch.Generator().manual_seed(request.seed))
    return {"latents": latents, "input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}


def check(root: Path, device: Device) -> None:
    """``UserError`` if a part of the folder is missing, damaged or does not fit the others; reads headers only."""
    experts = _Experts(device, root, torch.float32, meta=True)
    encoder = _text_encoder(device, root, torch.float32, meta=True)
    decoder_config = _decoder(device, root, torch.float32, meta=True)[1]
    for name in ("transformer",) if experts.boundary is None else ("transformer", "transformer_2"):
        experts.load(name)
        config = WanConfig.from_dict(Checkpoint(root / name).config)
        pairs = (("text_dim", config.text_dim, "d_model of text_encoder", encoder.features),)
        pairs += (("in_channels", config.in_channels, "z_dim of vae", decoder_config.z_dim),)
        for mine, size, other, wanted in pairs:
            if size != wanted:
                raise UserError(f"pipeline '{root}' has {mine} {size} in {name} but {other} is {wanted}.")


def program(
    device: Device,
    *,
    folder: str,
    inputs: str,
    steps: int,
    guidance: float,
    guidance_2: float | None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run this device's part; rank 0 returns the video and what every step gave.

    Args:
        inputs: what :func:`prepare` gave.
        guidance_2: of the low-noise expert, by default ``guidance``.

    Returns:
        ``frames`` (1, 3, F, 8 H, 8 W) in -1..1 and ``steps`` (steps, 1, C, T, H, W), the latents after every step;
        seconds per stage, the expert of every step and the frames' digest.
    """
    root, storage = Path(folder), device.options.storage
    tensors = load_file(inputs)
    clock = Clock()
    experts = _Experts(device, root, storage)
    mine = slice(*batch_range(device, tensors["input_ids"].shape[0]))
    prompt = _encode(device, root, storage, tensors["input_ids"][mine], tensors["attention_mask"][mine])
    clock.lap("encode")
    latents, kept, used = tensors["latents"], [], []
    scheduler = HostScheduler(device, root / "scheduler", steps)
    scales = {"transformer": guidance, "transformer_2": guidance if guidance_2 is None else guidance_2}

    for index, t in enumerate(scheduler.timesteps):
        expert = experts.name(float(t), scheduler.num_train_timesteps)
        device.progress(index, len(scheduler.timesteps))
        device.stage(step=index, expert=expert)
        batch = latents.to(storage).expand(prompt.shape[0], *latents.shape[1:])
        sample = experts.load(expert)(
            hidden_states=batch, encoder_hidden_states=prompt, timestep=t.expand(prompt.shape[0])
        )
        sample = gather_batch(device, sample)
        if sample.shape[0] == 2:
            sample = guide(sample, scales[expert])
        latents = scheduler.step(sample, index, latents)
        kept.append(latents)
        used.append(expert)
    experts.drop()
    device.progress(len(scheduler.timesteps), len(scheduler.timesteps))
    clock.lap("denoise")

    decoder, config = _decoder(device, root, storage)
    frames = decoder(z=decoder.denormalize(latents.to(storage), config))
    clock.lap("decode")
    result = {"digest": digest(frames), "experts": used, "seconds": clock.laps}
    return result, {"frames": frames, "steps": torch.stack(kept)}


def _encode(device: Device, root: Path, storage: torch.dtype, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """(B, L) -> (B, L, text_dim), zero where the mask is."""
    device.loading("the text encoder")
    encoder = _text_encoder(device, root, storage)
    return encoder(ids_BL, mask_BL) * mask_BL.unsqueeze(-1).to(storage)


def _text_encoder(device: Device, root: Path, storage: torch.dtype, *, meta: bool = False) -> T5Encoder:
    checkpoint = Checkpoint(root / "text_encoder")
    return T5Encoder(Weights(checkpoint, storage, meta=meta), device, T5Config.from_dict(checkpoint.config))


def _decoder(
    device: Device, root: Path, storage: torch.dtype, *, meta: bool = False
) -> tuple[WanVAEDecoder, WanVAEConfig]:
    checkpoint = Checkpoint(root / "vae")
    config = WanVAEConfig.from_dict(checkpoint.config)
    return WanVAEDecoder(Weights(checkpoint, storage, meta=meta), device, config), config


class _Experts:
    """The transformer of each stretch of the schedule, one in memory at a time."""

    def __init__(
        self,
        device: Device,
        root: Path,
        storage: torch.dtype,
        *,
        meta: bool = False,
    ) -> None:
        self._device, self._root, self._storage, self._meta = device, root, storage, meta
        self.boundary = boundary_ratio(root)
        self._held: tuple[str, Any] | None = None

    def name(self, t: float, num_train_timesteps: int) -> str:
        """Which expert runs at time ``t``."""
        high = self.boundary is None or t >= self.boundary * num_train_timesteps
        return "transformer" if high else "transformer_2"

    def load(self, name: str) -> Any:
        if self._held is None or self._held[0] != name:
            self.drop()
            self._device.loading(name)
            folder = Checkpoint(self._root / name)
            weights = Weights(folder, self._storage, meta=self._meta)
            model = load_model(folder, weights, self._device)
            self._held = (name, model)
        return self._held[1]

    def drop(self) -> None:
        self._held = None


def boundary_ratio(root: Path) -> float | None:
    """``boundary_ratio`` of a pipeline folder; ``UserError`` for what this pipeline does not do."""
    index = read_index(root)
    if index.get("expand_timesteps"):
        raise UserError(f"'{root}' is a TI2V pipeline (expand_timesteps); the T2V pipeline is supported.")
    return index.get("boundary_ratio")
