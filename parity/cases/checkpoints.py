"""The random models that cases run, in exact architectures; :mod:`parity.cases.model_folders` writes their checkpoint
folders.

Every parameter is random: norm weights and biases (which start as 1 and 0) and modulation too, so that no path
through the model is inert. Matrices have spread 1/sqrt(inputs), which keeps activations of order 1 at any width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from refsim.base.errors import UserError
from refsim.models.registry import get_published

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class RandomModel:
    """The configuration of a random model, and how its folder is written.

    Attributes:
        class_name: of the model in diffusers or transformers.
        float64_noise: whether fp32's own noise is measured by a float64 forward, which at real widths would cost more
            than everything else together.
        target: of a drafter, the model it drafts for.
        block: only the weights of this block, in bf16, for programs that run nothing else.
        in_bf16: of a diffusers model, weights are stored in bf16 but for what diffusers keeps in fp32.
        rounded: of a transformers model, all weights are numbers that bf16 has, as published ones are.
        left_aside: of a diffusers model, names of weights that published folders hold and the class leaves aside.
        gains: (part of a name, factor): weights whose names contain the part are multiplied by the factor.
    """

    config: dict[str, Any]
    max_shard_size: str = "10GB"
    float64_noise: bool = False
    block: int | None = None
    class_name: str = "SD3Transformer2DModel"
    target: str | None = None
    in_bf16: bool = False
    rounded: bool = False
    left_aside: tuple[str, ...] = ()
    gains: tuple[tuple[str, float], ...] = ()

    def random(self, name: str, shape: torch.Size, g: torch.Generator) -> Tensor:
        """Draw the value of a parameter."""
        return _random(name, shape, g).mul_(self.gain(name))

    def gain(self, name: str) -> float:
        """Return what a parameter is multiplied by."""
        return next((factor for part, factor in self.gains if part in name), 1.0)

    def but(self, **changes: Any) -> RandomModel:
        """Return this model with ``changes``: fields of this class, or else keys of its configuration."""
        changed_fields = {f.name: changes.pop(f.name) for f in fields(self) if f.name in changes}
        return replace(self, config=self.config | changes, **changed_fields)


def quiet(*parts: str) -> tuple[tuple[str, float], ...]:
    """Make what norms see as small as the root of their epsilon, 1e-6, which then counts as much, by gains.

    Args:
        parts: of the names of whatever writes into the residual stream, and of the projections whose results are
            normed.
    """
    return tuple((part, 1e-3) for part in parts)


SHARP = (("attn.norm", 2.0), ("attn.to_out", 2.0))
"""Gains that make attention's scores four times as large, and give more of its answers, so that a place too far and a
single token count in bf16."""


def _widths(name: str, *keys: str) -> dict[str, Any]:
    return {key: get_published(name)[1].config[key] for key in keys}


def published(name: str, **changes: Any) -> RandomModel:
    """Return a random model of a published configuration with ``changes``, see :meth:`RandomModel.but`."""
    model = get_published(name)[1]
    names = ("_class_name", "architectures", "model_type")
    config = {key: value for key, value in model.config.items() if key not in names}
    return RandomModel(config, class_name=model.class_name).but(**changes)


DRAFTER = "MuseGlimmerAssistantModel"
"""transformers' name of the architecture that z-lab publishes as DFlashDraftModel."""

_SD35 = published(
    "sd35-medium",
    **{"num_attention_heads": 3, "dual_attention_layers": (0,), "joint_attention_dim": 64, "pooled_projection_dim": 40},
    **{"pos_embed_max_size": 24, "sample_size": 16},
)
_SD35_64 = _SD35.but(attention_head_dim=64, num_layers=3, caption_projection_dim=192)
_MEDIUM = published("sd35-medium", num_layers=2, dual_attention_layers=(0,), pos_embed_max_size=96)
_LARGE = published("sd35-large", num_layers=2, pos_embed_max_size=96)
_WAN = published("wan22-t2v-a14b", num_layers=3, num_attention_heads=3, attention_head_dim=20, ffn_dim=112).but(
    text_dim=24, freq_dim=32
)
_WAN_64 = _WAN.but(num_layers=2, num_attention_heads=4, attention_head_dim=64, ffn_dim=224, text_dim=40, freq_dim=64)
_COGVIDEOX = RandomModel(
    {"num_attention_heads": 3, "attention_head_dim": 16, "time_embed_dim": 12, "text_embed_dim": 32}
    | {"num_layers": 3, "sample_width": 12, "sample_height": 8, "sample_frames": 9, "max_text_seq_length": 13}
    | {"use_rotary_positional_embeddings": True, "temporal_interpolation_scale": 1.5},
    class_name="CogVideoXTransformer3DModel",
)
_T5 = RandomModel(
    {"vocab_size": 64, "d_model": 24, "d_kv": 10, "d_ff": 50, "num_layers": 3, "num_heads": 3}
    | {"feed_forward_proj": "gated-gelu"},
    class_name="T5EncoderModel",
)
_T5_64 = _T5.but(d_model=96, d_kv=64, d_ff=112)
_CLIP = RandomModel(
    {"vocab_size": 64, "hidden_size": 30, "intermediate_size": 50, "projection_dim": 20, "num_hidden_layers": 3}
    | {"num_attention_heads": 3, "max_position_embeddings": 77, "eos_token_id": 1, "bos_token_id": 0},
    class_name="CLIPTextModelWithProjection",
)
_CLIP_64 = _CLIP.but(hidden_size=192, intermediate_size=112)
_QWEN3 = RandomModel(
    {"vocab_size": 40, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 8}
    | {"num_key_value_heads": 4, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 40, "norm_topk_prob": True, "bos_token_id": None, "eos_token_id": None},
    class_name="Qwen3MoeForCausalLM",
)
_QWEN3_32 = _QWEN3.but(hidden_size=128, head_dim=32, rounded=True)
_DFLASH = RandomModel(
    {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "block_size": 16, "mask_token_id": 39}
    | {"target_layer_ids": [0, 1], "layer_types": ["full_attention"] * 2, "rms_norm_eps": 1e-6}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
    | {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
    class_name=DRAFTER,
    target="qwen3_moe_tiny",
)
_DFLASH_32 = _DFLASH.but(hidden_size=128, head_dim=32, rounded=True)
_UNSAID = {"num_target_layers": 6}
"""What stands in a drafter's config.json in place of ``target_layer_ids``."""
_HEADS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
_VIDEO_BLOCKS = {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "up_block_types": ("CogVideoXUpBlock3D",) * 4}


def _picture_blocks(count: int) -> dict[str, Any]:
    return {"down_block_types": ("DownEncoderBlock2D",) * count, "up_block_types": ("UpDecoderBlock2D",) * count}


_SD35_VAE = RandomModel(
    {"block_out_channels": (16, 24, 32), **_picture_blocks(3), "latent_channels": 16, "norm_num_groups": 8}
    | {"use_quant_conv": False, "use_post_quant_conv": False, "scaling_factor": 1.5305, "shift_factor": 0.0609},
    class_name="AutoencoderKL",
)


def _left_aside(blocks: int) -> tuple[str, ...]:
    """Name a norm of queries that Wan2.1's image-to-video checkpoints hold: an image has keys, but no queries."""
    return tuple(f"blocks.{index}.attn2.norm_added_q.weight" for index in range(blocks))


MODELS: dict[str, RandomModel] = {
    # Three heads divide by nothing, dual attention in blocks 0 and 1, ordinary block 2, context_pre_only block 3;
    # written in several files, so that the index is read as well.
    "sd35_tiny": _SD35.but(
        **{"attention_head_dim": 16, "num_layers": 4, "caption_projection_dim": 48, "dual_attention_layers": (0, 1)},
        max_shard_size="400KB",
        float64_noise=True,
    ),
    # The same with whole tiles per head, as TTNN wants it: 192 features, padded to 256 over four devices.
    "sd35_tiny64": _SD35_64,
    # Real widths, two blocks: the first one as in the real model, the last one as the real model's last.
    # A smaller positional table than the real 384 and 192, cropped by the same rule.
    "sd35_medium": _MEDIUM.but(max_shard_size="400MB"),
    "sd35_large": _LARGE,
    # Beside tiny text encoders, in a pipeline.
    "sd35_medium_width": _MEDIUM.but(joint_attention_dim=64, pooled_projection_dim=40),
    # One block: the first of medium (dual attention) and of large; the second of the tiny one is an ordinary one.
    "sd35_medium_block": _MEDIUM.but(block=0),
    "sd35_large_block": _LARGE.but(block=0),
    "sd35_tiny64_block": _SD35_64.but(block=1),
    "sd35_tiny64_dual_block": _SD35_64.but(block=0),
    # Three heads whose 20 features are turned 8 by time, 6 by height, 6 by width.
    "wan22_tiny": _WAN.but(max_shard_size="200KB"),
    # An image to video: among the channels of the latent (A14B), by features of its own (2.1), by time steps of the
    # tokens (TI2V-5B).
    "wan22_i2v_tiny": _WAN.but(in_channels=36),
    "wan21_i2v_tiny": _WAN.but(in_channels=36, image_dim=28, added_kv_proj_dim=60, left_aside=_left_aside(3)),
    "wan22_ti2v_tiny": _WAN.but(in_channels=48, out_channels=48),
    # Whole tiles per head, as TTNN wants them: four heads of 64 features as the published ones divide, over four
    # devices; and three, of which a fourth is padding, as are 64 of 256 features.
    "wan22_tiny64": _WAN_64,
    "wan22_tiny64_block": _WAN_64.but(block=1),
    "wan22_uneven64": _WAN_64.but(num_attention_heads=3),
    "wan21_i2v_tiny64": _WAN_64.but(in_channels=36, image_dim=160, added_kv_proj_dim=256, left_aside=_left_aside(2)),
    "wan22_ti2v_tiny64": _WAN_64.but(num_attention_heads=3, in_channels=48, out_channels=48),
    "wan22_uneven64_block": _WAN_64.but(num_attention_heads=3, block=1),
    "wan_vae_tiny": RandomModel(
        {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}, class_name="AutoencoderKLWan"
    ),
    "cogvideox_2b_tiny": _COGVIDEOX.but(use_rotary_positional_embeddings=False),
    "cogvideox_5b_tiny": _COGVIDEOX,
    # 1.5: patches two frames deep.
    "cogvideox_15_tiny": _COGVIDEOX.but(patch_size_t=2, patch_bias=False, sample_frames=17),
    "sd35_vae_tiny": _SD35_VAE,
    # Whole tiles of channels on each of two devices, as ttnn.group_norm wants them; and latents through a convolution.
    "sd35_vae_tiny64": _SD35_VAE.but(block_out_channels=(64, 64), **_picture_blocks(2), use_post_quant_conv=True),
    # The published decoders, 128 to 512 channels, three times doubled.
    "sd35_vae": published("sd35-vae", **_picture_blocks(4)),
    "wan_vae": published("wan21-vae", dim_mult=[1, 2, 4, 4], temperal_downsample=[False, True, True]),
    "cogvideox_vae": published("cogvideox-vae", **_VIDEO_BLOCKS),
    # Parts of pipelines: text encoders as wide as the transformers beside them ask for.
    "clip_l_tiny": _CLIP,
    "clip_g_tiny": _CLIP.but(hidden_act="gelu"),
    "t5_64_tiny": _T5.but(d_model=64),
    "t5_32_tiny": _T5.but(d_model=32),
    "cogvideox_vae_tiny": RandomModel(
        {"block_out_channels": (8, 8, 8, 8), "latent_channels": 16, "layers_per_block": 1, "norm_num_groups": 4}
        | {"temporal_compression_ratio": 4, **_VIDEO_BLOCKS},
        class_name="AutoencoderKLCogVideoX",
    ),
    "t5_tiny": _T5,
    "umt5_tiny": _T5.but(class_name="UMT5EncoderModel"),
    # Whole tiles per head, as TTNN wants them; three heads, and 96 or 192 features, divide by nothing over four.
    "t5_tiny64": _T5_64,
    "umt5_tiny64": _T5_64.but(class_name="UMT5EncoderModel"),
    "clip_l_tiny64": _CLIP_64,
    "clip_g_tiny64": _CLIP_64.but(hidden_act="gelu"),
    "clip_plain_tiny64": _CLIP_64.but(class_name="CLIPTextModel"),
    # 40 tokens over two devices are 32 and 8, over four the last two hold padding only.
    "qwen3_moe_tiny": _QWEN3,
    "dflash_tiny": _DFLASH,
    # Six tokens, whose logits now and then are all below that of padding, which is 0.
    "qwen3_moe_six_tiny": _QWEN3.but(vocab_size=6),
    "dflash_six_tiny": _DFLASH.but(vocab_size=6, mask_token_id=5, target="qwen3_moe_six_tiny"),
    # Which layers of the target it reads its folder leaves to z-lab's rule: one in the middle, or from the second on to
    # the third last.
    # In this target every expert runs, and no head shares its keys.
    "qwen3_moe_six_layers_tiny": _QWEN3.but(num_hidden_layers=6, num_experts_per_tok=6, num_key_value_heads=8),
    "dflash_one_tiny": _DFLASH.but(
        **_UNSAID | {"num_hidden_layers": 1, "layer_types": ["full_attention"], "target_layer_ids": [3]},
        target="qwen3_moe_six_layers_tiny",
    ),
    "dflash_spread_tiny": _DFLASH.but(**_UNSAID, target_layer_ids=[1, 3], target="qwen3_moe_six_layers_tiny"),
    # Whole tiles per head and whole tiles of features per device, as TTNN wants them.
    "qwen3_moe_tiny32": _QWEN3_32,
    "dflash_tiny32": _DFLASH_32.but(target="qwen3_moe_tiny32"),
    # Real widths of one expert, two of its 40 blocks, which are all alike, or one.
    "wan22_a14b_block": published("wan22-t2v-a14b", num_layers=1, block=0),
    # Two experts whose choice is seldom close, so that long prompts are clear.
    "qwen3_moe_two_tiny32": _QWEN3_32.but(num_experts=2, num_experts_per_tok=1),
    "dflash_two_tiny32": _DFLASH_32.but(target="qwen3_moe_two_tiny32"),
    # A target at its published width that fits into a test's memory: fewer layers, experts and tokens.
    "qwen3_moe_wide": _QWEN3.but(
        **_widths("qwen3-30b-a3b", *_HEADS, "moe_intermediate_size"),
        **{"vocab_size": 1024, "num_hidden_layers": 2, "num_experts": 8},
        rounded=True,
    ),
    "dflash_wide": _DFLASH.but(
        **_widths("dflash-qwen3-coder", *_HEADS, "intermediate_size"),
        **{"vocab_size": 1024, "mask_token_id": 1023, "num_hidden_layers": 1, "target_layer_ids": [0]},
        layer_types=["full_attention"],
        target="qwen3_moe_wide",
        rounded=True,
    ),
    "wan22_a14b": published("wan22-t2v-a14b", num_layers=2, max_shard_size="1GB"),
}


def register(name: str, model: RandomModel) -> None:
    """Add a model of a package of your own, to be used by its cases.

    Raises:
        UserError: the name is taken.
    """
    if MODELS.get(name, model) != model:
        raise UserError(f"two models of parity are called '{name}'; rename one of them.")
    MODELS[name] = model


def _random(name: str, shape: torch.Size, g: torch.Generator) -> Tensor:
    import torch

    if name.endswith("scale_shift_table"):
        return torch.randn(shape, generator=g).mul_(0.3)
    if len(shape) == 1 or name.endswith("gamma"):
        x = torch.randn(shape, generator=g).mul_(0.2)
        return x.add_(1.0) if name.endswith(("weight", "gamma")) else x
    if name.endswith("relative_attention_bias.weight"):  # an addition to scores, which are of order 1
        return torch.randn(shape, generator=g)
    fan_in = shape[-1] if ".experts." in name else shape[1:].numel()  # experts are stacked
    if name.endswith("SelfAttention.q.weight"):  # T5 has its 1 / sqrt(64) in the weights
        fan_in *= 64
    if name.startswith("decoder.conv_out"):  # little of the picture is to be clamped, which would hide errors
        fan_in *= 16
    return torch.empty(shape).uniform_(-1.0, 1.0, generator=g).mul_((3.0 / fan_in) ** 0.5)
