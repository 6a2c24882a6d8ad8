"""A tiny diffusers QwenImagePipeline: Qwen2.5-VL of two layers, an autoencoder of 16 channels, a tokenizer of words."""

from __future__ import annotations

import re

import torch

from tests.refsim.tiny.qwenimage import make_model
from tests.refsim.tiny.text import make_tokenizer


def make_text_encoder(seed: int = 0, **changes):
    """Qwen2.5-VL whose language model has two layers of two heads; without pictures their encoder is never asked."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048}
    text |= {"rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [2, 2, 2]}}
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 24}
    vision |= {"fullatt_block_indexes": [0]}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = Qwen2_5_VLConfig(text_config=text | tokens, vision_config=vision, **tokens, **changes)
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = p.ndim == 1 and name.endswith("weight")
            p.normal_(1.0 if norm else 0.0, 0.2 if p.ndim == 1 else p[0].numel() ** -0.5, generator=generator)
    return model


def make_vae(seed: int = 0):
    """A decoder whose picture is no flat grey."""
    from diffusers import AutoencoderKLQwenImage

    vae = AutoencoderKLQwenImage(base_dim=8, num_res_blocks=1).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in vae.named_parameters():
            fan_in = p[0].numel() if p.ndim > 1 else 25
            p.normal_(1.0 if name.endswith("gamma") else 0.0, fan_in**-0.5, generator=generator)
    return vae


def make_pipeline():
    """A scheduler that shifts by the number of tokens, as the published one."""
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline

    pipe = QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=make_vae(),
        text_encoder=make_text_encoder(),
        tokenizer=make_tokenizer(),
        transformer=make_model(in_channels=64, out_channels=16),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


class Processor:
    """transformers' ``Qwen2VLProcessor`` as far as pictures go; the whole one wants torchvision, for videos."""

    image_token = "<|image_pad|>"

    def __init__(self, image_processor, tokenizer) -> None:
        self.image_processor, self.tokenizer = image_processor, tokenizer

    def __call__(self, text, images, padding, return_tensors):
        from transformers import BatchFeature, Qwen2VLProcessor

        pixels = self.image_processor(images=images, return_tensors=return_tensors)
        places = (Qwen2VLProcessor.replace_image_token(self, pixels, i) for i in range(len(images)))
        (prompt,) = text
        filled = re.sub(re.escape(self.image_token), lambda _: next(places), prompt)
        return BatchFeature({**self.tokenizer([filled], padding=padding, return_tensors=return_tensors), **pixels})

    def save_pretrained(self, folder) -> None:
        for part in (self.image_processor, self.tokenizer):
            part.save_pretrained(folder)


def make_edit_pipeline():
    """Edit-2511: two time steps in the transformer, and a processor that puts a picture's tokens into the prompt."""
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageEditPlusPipeline
    from transformers import Qwen2VLImageProcessorPil

    tokenizer = make_tokenizer()
    marks = {"vision_start": "<|vision_start|>", "image": Processor.image_token, "vision_end": "<|vision_end|>"}
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks.values())})
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()}
    pipe = QwenImageEditPlusPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=make_vae(),
        text_encoder=make_text_encoder(**ids),
        tokenizer=tokenizer,
        processor=Processor(Qwen2VLImageProcessorPil(min_pixels=784, max_pixels=7840), tokenizer),
        transformer=make_model(in_channels=64, out_channels=16, zero_cond_t=True),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
