"""Small random checkpoints of the forms that published programs load, made once into a folder.

Weights are normal with the deviation of 1 / sqrt(inputs), those of norms near one, so that activations keep their size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HUB = "hub"
"""Configurations alone: the mock draws the weights of the models that tests load by name."""
WORDS = "a the cat dog runs over green hills under snow slow fast red fox in".split()


def make(name: str, folder: Path) -> Path:
    """Make the checkpoint ``name`` in ``folder``, unless it is there."""
    done = folder / "complete"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _MAKERS[name](folder)
        done.touch()
    return folder


def filled(model: Any, seed: int) -> Any:
    """Give a model random weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = 1.0 if weight.ndim == 1 and "norm" in name and name.endswith("weight") else 0.0
            deviation = 0.1 if weight.ndim == 1 else weight[0].numel() ** -0.5
            weight.normal_(mean, deviation, generator=generator)
    return model.eval()


def _clip_tokenizer() -> Any:
    from transformers import CLIPTokenizer

    letters = [chr(code) for code in range(97, 123)]
    vocabulary = {piece: number for number, piece in enumerate([*letters, *(f"{letter}</w>" for letter in letters)])}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            pair = (pieces[0], pieces[1])
            pieces = [pair[0] + pair[1], *pieces[2:]]
            if pair not in merges:
                merges.append(pair)
            vocabulary.setdefault(pieces[0], len(vocabulary))
    for mark in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[mark] = len(vocabulary)
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=merges)
    tokenizer.model_max_length = 77
    return tokenizer


def _t5_tokenizer() -> Any:
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0) for word in WORDS] + [(chr(code), -8.0) for code in range(97, 123)]
    tokenizer = T5TokenizerFast(vocab=pieces, extra_ids=0)
    tokenizer.model_max_length = 512
    return tokenizer


def _tokenizer_of_words(*marks: str, unk_token: str, **others: str) -> Any:
    """Return a tokenizer of ``marks`` and of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate([*marks, *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unk_token))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unk_token, **others)


def _clip(seed: int, projected: bool, activation: str = "quick_gelu") -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=160, hidden_size=256, intermediate_size=1024, projection_dim=256, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=77, eos_token_id=2, bos_token_id=0, hidden_act=activation,
    )  # fmt: skip
    return filled((CLIPTextModelWithProjection if projected else CLIPTextModel)(config), seed)


def _t5(width: int = 256, kind: str = "T5", heads: int = 4, layers: int = 2) -> Any:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=128,
        d_model=width,
        d_kv=64,
        d_ff=512,
        num_layers=layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
    )
    return filled(getattr(transformers, f"{kind}EncoderModel")(config), 3)


def _vae() -> Any:
    from diffusers import AutoencoderKL

    return filled(
        AutoencoderKL(
            in_channels=3, out_channels=3, latent_channels=16, block_out_channels=(128, 128, 256, 256),
            layers_per_block=1, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            norm_num_groups=32, use_quant_conv=False, use_post_quant_conv=False, scaling_factor=0.3611,
            shift_factor=0.1159, sample_size=128, force_upcast=True,
        ),
        4,
    )  # fmt: skip


def _flux1(folder: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=2, num_single_layers=2, attention_head_dim=128, num_attention_heads=4,
        joint_attention_dim=256, pooled_projection_dim=256, guidance_embeds=True, axes_dims_rope=(16, 56, 56),
    )  # fmt: skip
    FluxPipeline(
        tokenizer=_clip_tokenizer(), tokenizer_2=_t5_tokenizer(), text_encoder=_clip(1, False), text_encoder_2=_t5(),
        vae=_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        transformer=filled(transformer, 5),
    ).save_pretrained(folder)  # fmt: skip


def _sd35(folder: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    transformer = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=16, out_channels=16, num_layers=2, attention_head_dim=64,
        num_attention_heads=8, caption_projection_dim=512, qk_norm="rms_norm", joint_attention_dim=512,
        pooled_projection_dim=512, pos_embed_max_size=24,
    )  # fmt: skip
    StableDiffusion3Pipeline(
        tokenizer=_clip_tokenizer(), tokenizer_2=_clip_tokenizer(), tokenizer_3=_t5_tokenizer(),
        text_encoder=_clip(1, True), text_encoder_2=_clip(2, True, "gelu"), text_encoder_3=_t5(512), vae=_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), transformer=filled(transformer, 5),
    ).save_pretrained(folder)  # fmt: skip


def _qwenimage(folder: Path) -> None:
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    text = {
        "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [16, 24, 24]},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 64, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 512}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = Qwen2_5_VLConfig(text_config=text | ends, vision_config=vision, **ends)
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=2, attention_head_dim=128, num_attention_heads=4,
        joint_attention_dim=512,
    )  # fmt: skip
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), tokenizer=tokenizer,
        vae=filled(AutoencoderKLQwenImage(base_dim=32, num_res_blocks=1), 4), transformer=filled(transformer, 5),
        text_encoder=filled(Qwen2_5_VLForConditionalGeneration(config), 3),
    ).save_pretrained(folder)  # fmt: skip


def _motif(folder: Path) -> None:
    """Make what Motif takes from other folders: its encoders and its VAE; tt_dit's own reference makes the rest."""
    for name, encoder, tokenizer in (
        ("clip-vit-large-patch14", _clip(1, True), _clip_tokenizer()),
        ("CLIP-ViT-bigG-14-laion2B-39B-b160k", _clip(2, True, "gelu"), _clip_tokenizer()),
        ("flan-t5-xxl", _t5(4096, heads=64, layers=1), _t5_tokenizer()),  # tt_dit has no heads of other widths
    ):
        encoder.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    _vae().save_pretrained(folder / "vae")


def _mochi(folder: Path) -> None:
    from diffusers import (
        AutoencoderKLMochi,
        FlowMatchEulerDiscreteScheduler,
        MochiPipeline,
        MochiTransformer3DModel,
    )

    transformer = MochiTransformer3DModel(
        patch_size=2, num_attention_heads=12, attention_head_dim=128, num_layers=2, pooled_projection_dim=384,
        in_channels=12, text_embed_dim=256, time_embed_dim=256, activation_fn="swiglu", max_sequence_length=256,
    )  # fmt: skip
    MochiPipeline(
        tokenizer=_t5_tokenizer(), text_encoder=_t5(), transformer=filled(transformer, 5),
        vae=filled(AutoencoderKLMochi(), 4),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, invert_sigmas=True),
    ).save_pretrained(folder)  # fmt: skip


def _wan(folder: Path) -> None:
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel

    experts = [
        WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=128, in_channels=16, out_channels=16,
            text_dim=256, freq_dim=256, ffn_dim=512, num_layers=40, cross_attn_norm=True,
            qk_norm="rms_norm_across_heads", rope_max_seq_len=1024,
        )
        for _ in range(2)
    ]  # fmt: skip
    vae = AutoencoderKLWan(
        base_dim=32, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=1, attn_scales=[],
        temperal_downsample=[False, True, True],
    )  # fmt: skip
    WanPipeline(
        tokenizer=_t5_tokenizer(), text_encoder=_t5(kind="UMT5"), transformer=filled(experts[0], 5),
        transformer_2=filled(experts[1], 6), vae=filled(vae, 4), boundary_ratio=0.875,
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=12.0, num_train_timesteps=1000
        ),
    ).save_pretrained(folder)  # fmt: skip


def _llama(folder: Path) -> None:
    """Make a Llama of the widths of Llama-3.2-1B, with one layer and few words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    begin = "<|begin_of_text|>"
    end = "<|eot_id|>"
    _tokenizer_of_words(begin, end, bos_token=begin, eos_token=end, unk_token=end).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=2048, intermediate_size=8192, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, rms_norm_eps=1e-5, max_position_embeddings=131072, rope_theta=500000.0,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        rope_scaling={
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
        },
    )  # fmt: skip
    filled(LlamaForCausalLM(config), 7).to(torch.bfloat16).save_pretrained(folder)


def _dflash(folder: Path) -> None:
    """Make a Qwen3-MoE target with an expert a tensor, as its checkpoints have them, and a drafter of two layers."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=1024, hidden_size=2048, intermediate_size=128, moe_intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=16, num_experts_per_tok=8,
        norm_topk_prob=True, decoder_sparse_step=1, rope_theta=1e7, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    weights = filled(Qwen3MoeForCausalLM(config), 0).to(torch.bfloat16).state_dict()
    for part in ("target", "draft"):
        (folder / part).mkdir(exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "target" / "whole.safetensors")
    config.save_pretrained(folder / "target")
    apart: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        experts, _, kind = name.partition(".experts.")
        for expert, rows in enumerate(weight if kind else ()):
            parts = zip(("gate_proj", "up_proj"), rows.chunk(2), strict=True)
            parts = parts if kind == "gate_up_proj" else [("down_proj", rows)]
            apart |= {f"{experts}.experts.{expert}.{part}.weight": value.contiguous() for part, value in parts}
        if not kind:
            apart[name] = weight.contiguous()
    save_file(apart, folder / "target" / "model.safetensors")
    index = {"weight_map": dict.fromkeys(apart, "model.safetensors")}
    (folder / "target" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    save_file(_draft(), folder / "draft" / "model.safetensors")


def _hub(folder: Path) -> None:
    """Make a cache of Hugging Face with published configurations and no weights, and words for text encoders."""
    revision = "0" * 40
    for repository, files in json.loads(Path(__file__).with_name("hub.json").read_text(encoding="utf-8")).items():
        cached = folder / "hub" / f"models--{repository.replace('/', '--')}"
        (cached / "refs").mkdir(parents=True, exist_ok=True)
        (cached / "refs" / "main").write_text(revision, encoding="utf-8")
        for path, values in files.items():
            place = cached / "snapshots" / revision / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(values), encoding="utf-8")
        if "CLIPTokenizer" in files.get("model_index.json", {}).get("tokenizer", ()):
            _clip_tokenizer().save_pretrained(cached / "snapshots" / revision / "tokenizer")
        elif "text_encoder/config.json" in files:
            marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
            tokenizer = _tokenizer_of_words(*marks, pad_token=marks[0], unk_token=marks[0])
            tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
            tokenizer.save_pretrained(cached / "snapshots" / revision / "tokenizer")
            kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_type": "qwen3"}
            for name in ("tokenizer_config.json", "config.json"):
                place = cached / "snapshots" / revision / "tokenizer" / name
                known = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
                place.write_text(json.dumps(known | kind), encoding="utf-8")


def _draft() -> dict[str, torch.Tensor]:
    width = 2048
    queries = 4096
    keys = 512
    inner = 6144
    shapes: dict[str, tuple[int, ...]] = {"fc": (width, 5 * width), "hidden_norm": (width,), "norm": (width,)}
    for layer in range(2):
        of_layer = {
            "input_layernorm": (width,), "post_attention_layernorm": (width,), "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width), "self_attn.o_proj": (width, queries),
            "self_attn.q_norm": (128,), "self_attn.k_norm": (128,), "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    generator = torch.Generator().manual_seed(1)
    return {
        f"{name}.weight": (
            torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        ).bfloat16()
        for name, shape in shapes.items()
    }


_MAKERS: dict[str, Callable[[Path], None]] = {
    "dflash": _dflash,
    "flux1": _flux1,
    HUB: _hub,
    "llama/Llama-3.2-1B-Instruct": _llama,
    "mochi": _mochi,
    "motif": _motif,
    "qwenimage": _qwenimage,
    "sd35": _sd35,
    "wan": _wan,
}


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
