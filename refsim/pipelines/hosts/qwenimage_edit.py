"""What Qwen-Image-Edit-2511's host does besides Qwen-Image's: the pictures that a picture is made from.

    picture --384 x 384 of area--> processor --with the prompt--> Qwen2.5-VL --> states, the template's 64 left out
            --1024 x 1024 of area--> the autoencoder's encoder --> latents, packed, behind those of the noise

All of it runs here, by transformers and diffusers, as the pipeline of Edit-2511 in diffusers has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError, first_line
from refsim.files.checkpoint import Checkpoint
from refsim.pipelines.request import load_tokenizer

_READ_AREA = 384 * 384
_DRAWN_AREA = 1024 * 1024
_STEP = 32
"""Pixels that both sides of a resized picture are a multiple of."""
_PLACE = "<|image_pad|>"
"""What stands in a prompt for each token of a picture."""
_PICTURE = f"Picture {{}}: <|vision_start|>{_PLACE}<|vision_end|>"
_TEMPLATE = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
_TEMPLATE_TOKENS = 64
"""Tokens of the template before the pictures, of Qwen's own tokenizer."""


def open_pictures(paths: tuple[str, ...]) -> list[Any]:
    """Return the pictures (PIL, RGB); ``UserError`` for a file that is none."""
    from PIL import Image

    pictures = []
    for path in paths:
        refuse_unreadable(Path(path), "picture")
        try:
            pictures.append(Image.open(path).convert("RGB"))
        except (OSError, ValueError, Image.DecompressionBombError) as e:
            raise UserError(f"'{path}' is no picture that can be read ({first_line(e)}).") from e
    return pictures


def sides(picture: Any, area: int) -> tuple[int, int]:
    """Return (height, width) of about ``area`` pixels, shaped as the picture."""
    ratio = picture.width / picture.height
    width = (area * ratio) ** 0.5
    return round(width / ratio / _STEP) * _STEP, round(width / _STEP) * _STEP


def read_with(folder: Path, encoder: Any, texts: list[str], pictures: list[Any]) -> list[Tensor]:
    """Return the last states (L, D) of each prompt behind all pictures, in fp32."""
    from diffusers.image_processor import VaeImageProcessor

    resized = [VaeImageProcessor().resize(picture, *sides(picture, _READ_AREA)) for picture in pictures]
    before = "".join(_PICTURE.format(i + 1) for i in range(len(pictures)))
    tokenizer = load_tokenizer(folder)
    patches = _image_processor(folder)
    pixels = patches(images=resized, return_tensors="pt")
    states = []
    for text in texts:
        parts = _TEMPLATE.format(before + text).split(_PLACE)
        counts = [int(grid.prod()) // patches.merge_size**2 for grid in pixels["image_grid_thw"]]
        filled = parts[0] + "".join(_PLACE * n + part for n, part in zip(counts, parts[1:], strict=True))
        tokens = tokenizer([filled], return_tensors="pt")
        inputs = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}
        with torch.inference_mode():
            out = encoder(**inputs, **pixels, output_hidden_states=True)
        states.append(out.hidden_states[-1][0, _TEMPLATE_TOKENS:].float())
    return states


def encode_pictures(folder: Path, pictures: list[Any]) -> list[Tensor]:
    """Return the latents (1, C, height, width) of each picture, in the middle of what the encoder gives, scaled."""
    import diffusers
    from diffusers.image_processor import VaeImageProcessor

    how = {"local_files_only": True, "use_safetensors": True}
    try:
        kind = getattr(diffusers, Checkpoint(folder).class_name)
        vae = kind.from_pretrained(folder, trust_remote_code=False, **how).eval()
    except Exception as e:  # diffusers passes on whatever odd values lead to
        raise UserError(f"'{folder}' holds no autoencoder that diffusers can read ({first_line(e)}).") from e
    mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std))
    latents = []
    for picture in pictures:
        pixels = VaeImageProcessor().preprocess(picture, *sides(picture, _DRAWN_AREA)).unsqueeze(2)
        with torch.inference_mode():
            latents.append(((vae.encode(pixels.to(vae.dtype)).latent_dist.mode() - mean) / std)[:, :, 0].float())
    return latents


def _image_processor(folder: Path) -> Any:
    """Load transformers' processor of pictures, the one without torchvision, which would ask for videos as well."""
    from transformers import Qwen2VLImageProcessorPil

    try:
        return Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # transformers passes on whatever odd values lead to
        raise UserError(f"'{folder}' holds no processor that transformers can read ({first_line(e)}).") from e
