"""Tiny text encoders of transformers and a tokenizer of whole words, made here."""

from __future__ import annotations

import torch

WORDS = "a the cat dog runs over green hills under snow slow fast".split()


def make_encoder(family: str, seed: int = 0, **changes):
    """``t5`` or ``umt5`` of three layers and three heads, every weight random."""
    import transformers

    config, model = {
        "t5": (transformers.T5Config, transformers.T5EncoderModel),
        "umt5": (transformers.UMT5Config, transformers.UMT5EncoderModel),
    }[family]
    sizes = {"vocab_size": 64, "d_model": 24, "d_kv": 10, "d_ff": 50, "num_layers": 3, "num_heads": 3, **changes}
    encoder = model(config(**sizes, feed_forward_proj="gated-gelu")).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in encoder.named_parameters():
            norm = "norm" in name
            p.normal_(1.0 if norm else 0.0, 0.2 if norm else p.shape[-1] ** -0.5, generator=generator)
    return encoder


def make_tokenizer():
    """One id per word, ``</s>`` behind, ``<pad>`` up to the length."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def make_clip(seed: int = 0, *, projected: bool = True, **changes):
    """CLIP text encoder, with projection or without: three layers, three heads, every weight random."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    sizes = {"vocab_size": 64, "hidden_size": 30, "intermediate_size": 50, "projection_dim": 20, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 3, "max_position_embeddings": 77, "eos_token_id": 1, "bos_token_id": 0}
    model = CLIPTextModelWithProjection if projected else CLIPTextModel
    encoder = model(CLIPTextConfig(**{**sizes, **changes})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in encoder.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            p.normal_(1.0 if norm else 0.0, 0.2 if norm or p.ndim == 1 else p.shape[-1] ** -0.5, generator=generator)
    return encoder
