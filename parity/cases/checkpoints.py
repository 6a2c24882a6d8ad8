"""The random models that cases run, in exact architectures; :mod:`parity.cases.model_folders` writes their checkpoint
folders.

Every parameter is random: norm weights and biases (which start as 1 and 0) and modulation too, so that no path
through the model is inert. Matrices have spread 1/sqrt(inputs), which keeps activations of order 1 at any width.
"""

from __future__ import annotations

from dataclasses import dataclass
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
        """The value of a parameter."""
        return _random(name, shape, g).mul_(self.gain(name))

    def gain(self, name: str) -> float:
        """What a parameter is multiplied by."""
        return next((factor for part, factor in self.gains if part in name), 1.0)


def quiet(*parts: str) -> tuple[tuple[str, float], ...]:
    """Gains that make what norms see as small as the root of their epsilon, 1e-6, which then counts as much.

    Args:
        parts: of the names of whatever writes into the residual stream, and of the projections whose results are
            normed.
    """
    return tuple((part, 1e-3) for part in parts)


def _published(name: str, **changes: Any) -> dict[str, Any]:
    """A published configuration as the class in diffusers takes it, with ``changes``."""
    config = get_published(name)[1].config
    return {key: value for key, value in config.items() if key not in ("_class_name", "architectures")} | changes


def _widths(name: str, *keys: str) -> dict[str, Any]:
    """Sizes of a published configuration."""
    return {key: get_published(name)[1].config[key] for key in keys}


def _sd35(heads: int, head_dim: int, layers: int, dual: tuple[int, ...], **more: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {"num_attention_heads": heads, "attention_head_dim": head_dim, "num_layers": layers}
    sizes |= {"caption_projection_dim": heads * head_dim, "dual_attention_layers": dual, "pos_embed_max_size": 96}
    return _published("sd35-medium", **sizes | more)


_COGVIDEOX = "CogVideoXTransformer3DModel"
_WAN = "WanTransformer3DModel"
_T5 = {
    "vocab_size": 64,
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 50,
    "num_layers": 3,
    "num_heads": 3,
    "feed_forward_proj": "gated-gelu",
}

_CLIP = {
    "vocab_size": 64,
    "hidden_size": 30,
    "intermediate_size": 50,
    "projection_dim": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 77,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
_T5_TILED = {"d_model": 96, "d_kv": 64, "d_ff": 112}
_CLIP_TILED = {"hidden_size": 192, "intermediate_size": 112}
_QWEN3_MOE = {
    "vocab_size": 40,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
_DFLASH = {
    "vocab_size": 40,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "block_size": 16,
    "mask_token_id": 39,
    "target_layer_ids": [0, 1],
    "layer_types": ["full_attention"] * 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_UNSAID = {"num_target_layers": 6}
"""What stands in a drafter's config.json in place of ``target_layer_ids``."""
_HEADS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
_WIDE = {"vocab_size": 1024, "num_hidden_layers": 2, "num_experts": 8}
"""Of a target at its published width that fits into a test's memory: fewer layers, experts and tokens."""
_TILED = {"hidden_size": 128, "head_dim": 32}
_TWO = {"num_experts": 2, "num_experts_per_tok": 1}
_ONE_LAYER = {
    "vocab_size": 1024,
    "mask_token_id": 1023,
    "num_hidden_layers": 1,
    "target_layer_ids": [0],
    "layer_types": ["full_attention"],
}
DRAFTER = "MuseGlimmerAssistantModel"
"""transformers' name of the architecture that z-lab publishes as DFlashDraftModel."""


def _cogvideox(*, rotary: bool, **more: Any) -> dict[str, Any]:
    return {
        "num_attention_heads": 3,
        "attention_head_dim": 16,
        "time_embed_dim": 12,
        "text_embed_dim": 32,
        "num_layers": 3,
        "sample_width": 12,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": 13,
        "use_rotary_positional_embeddings": rotary,
        "temporal_interpolation_scale": 1.5,
        **more,
    }


def _cogvideox_vae(widths: tuple[int, ...], groups: int, layers: int) -> dict[str, Any]:
    return {
        "block_out_channels": widths,
        "latent_channels": 16,
        "layers_per_block": layers,
        "norm_num_groups": groups,
        "temporal_compression_ratio": 4,
        "down_block_types": ("CogVideoXDownBlock3D",) * len(widths),
        "up_block_types": ("CogVideoXUpBlock3D",) * len(widths),
    }


def _sd35_vae(widths: tuple[int, ...], groups: int, **more: Any) -> dict[str, Any]:
    return {
        "block_out_channels": widths,
        "down_block_types": ("DownEncoderBlock2D",) * len(widths),
        "up_block_types": ("UpDecoderBlock2D",) * len(widths),
        "latent_channels": 16,
        "norm_num_groups": groups,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        **more,
    }


_MEDIUM = _published("sd35-medium", num_layers=2, dual_attention_layers=(0,), pos_embed_max_size=96)
_LARGE = _published("sd35-large", num_layers=2, pos_embed_max_size=96)
_IMAGE_BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
_VIDEO_BLOCKS = {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "up_block_types": ("CogVideoXUpBlock3D",) * 4}
_WAN_TINY = {"num_attention_heads": 3, "attention_head_dim": 20, "num_layers": 3, "ffn_dim": 112, "text_dim": 24}
_WAN_TINY |= {"freq_dim": 32}
_WAN_IMAGE = {"in_channels": 36, "image_dim": 28, "added_kv_proj_dim": 60}
_WAN_64 = {"attention_head_dim": 64, "num_layers": 2, "ffn_dim": 224, "text_dim": 40, "freq_dim": 64}
_TINY = {"joint_attention_dim": 64, "pooled_projection_dim": 40, "pos_embed_max_size": 24, "sample_size": 16}


def _wan(heads: int, block: int | None = None, left_aside: tuple[str, ...] = (), **more: Any) -> RandomModel:
    config = _published("wan22-t2v-a14b", num_attention_heads=heads, **_WAN_64, **more)
    return RandomModel(config, class_name=_WAN, block=block, left_aside=left_aside)


def _left_aside(blocks: int) -> tuple[str, ...]:
    """A norm of queries that Wan2.1's image-to-video checkpoints hold: there are keys of an image, but no queries."""
    return tuple(f"blocks.{index}.attn2.norm_added_q.weight" for index in range(blocks))


MODELS: dict[str, RandomModel] = {
    # Three heads divide by nothing, dual attention in blocks 0 and 1, ordinary block 2, context_pre_only block 3;
    # written in several files, so that the index is read as well.
    "sd35_tiny": RandomModel(_sd35(3, 16, 4, (0, 1), **_TINY), max_shard_size="400KB", float64_noise=True),
    # The same with whole tiles per head, as TTNN wants it: 192 features, padded to 256 over four devices.
    "sd35_tiny64": RandomModel(_sd35(3, 64, 3, (0,), **_TINY)),
    # Real widths, two blocks: the first one as in the real model, the last one as the real model's last.
    # A smaller positional table than the real 384 and 192, cropped by the same rule.
    "sd35_medium": RandomModel(_MEDIUM, max_shard_size="400MB"),
    "sd35_large": RandomModel(_LARGE),
    # One block: the first of medium (dual attention) and of large; the second of the tiny one is an ordinary one.
    "sd35_medium_block": RandomModel(_MEDIUM, block=0),
    "sd35_large_block": RandomModel(_LARGE, block=0),
    "sd35_tiny64_block": RandomModel(_sd35(3, 64, 3, (0,), **_TINY), block=1),
    "sd35_tiny64_dual_block": RandomModel(_sd35(3, 64, 3, (0,), **_TINY), block=0),
    # Three heads whose 20 features are turned 8 by time, 6 by height, 6 by width.
    "wan22_tiny": RandomModel(_published("wan22-t2v-a14b", **_WAN_TINY), max_shard_size="200KB", class_name=_WAN),
    # An image to video: among the channels of the latent (A14B), by features of its own (2.1), by time steps of the
    # tokens (TI2V-5B).
    "wan22_i2v_tiny": RandomModel(_published("wan22-t2v-a14b", **_WAN_TINY, in_channels=36), class_name=_WAN),
    "wan21_i2v_tiny": RandomModel(
        _published("wan22-t2v-a14b", **_WAN_TINY, **_WAN_IMAGE), class_name=_WAN, left_aside=_left_aside(3)
    ),
    "wan22_ti2v_tiny": RandomModel(
        _published("wan22-t2v-a14b", **_WAN_TINY, in_channels=48, out_channels=48), class_name=_WAN
    ),
    # Whole tiles per head, as TTNN wants them: four heads of 64 features as the published ones divide, over four
    # devices; and three, of which a fourth is padding, as are 64 of 256 features.
    "wan22_tiny64": _wan(4),
    "wan22_tiny64_block": _wan(4, block=1),
    "wan22_uneven64": _wan(3),
    "wan21_i2v_tiny64": _wan(4, in_channels=36, image_dim=160, added_kv_proj_dim=256, left_aside=_left_aside(2)),
    "wan22_ti2v_tiny64": _wan(3, in_channels=48, out_channels=48),
    "wan22_uneven64_block": _wan(3, block=1),
    "wan_vae_tiny": RandomModel(
        {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}, class_name="AutoencoderKLWan"
    ),
    "cogvideox_2b_tiny": RandomModel(_cogvideox(rotary=False), class_name=_COGVIDEOX),
    "cogvideox_5b_tiny": RandomModel(_cogvideox(rotary=True), class_name=_COGVIDEOX),
    # 1.5: patches two frames deep.
    "cogvideox_15_tiny": RandomModel(
        _cogvideox(rotary=True, patch_size_t=2, patch_bias=False, sample_frames=17), class_name=_COGVIDEOX
    ),
    "sd35_vae_tiny": RandomModel(
        _sd35_vae((16, 24, 32), 8, scaling_factor=1.5305, shift_factor=0.0609), class_name="AutoencoderKL"
    ),
    # Whole tiles of channels on each of two devices, as ttnn.group_norm wants them; and latents through a convolution.
    "sd35_vae_tiny64": RandomModel(
        _sd35_vae((64, 64), 8, scaling_factor=1.5305, shift_factor=0.0609) | {"use_post_quant_conv": True},
        class_name="AutoencoderKL",
    ),
    # The published decoders, 128 to 512 channels, three times doubled.
    "sd35_vae": RandomModel(_published("sd35-vae", **_IMAGE_BLOCKS), class_name="AutoencoderKL"),
    "wan_vae": RandomModel(
        _published("wan21-vae", dim_mult=[1, 2, 4, 4], temperal_downsample=[False, True, True]),
        class_name="AutoencoderKLWan",
    ),
    "cogvideox_vae": RandomModel(_published("cogvideox-vae", **_VIDEO_BLOCKS), class_name="AutoencoderKLCogVideoX"),
    # Parts of pipelines: text encoders as wide as the transformers beside them ask for.
    "clip_l_tiny": RandomModel(_CLIP, class_name="CLIPTextModelWithProjection"),
    "clip_g_tiny": RandomModel(_CLIP | {"hidden_act": "gelu"}, class_name="CLIPTextModelWithProjection"),
    "t5_64_tiny": RandomModel(_T5 | {"d_model": 64}, class_name="T5EncoderModel"),
    "t5_32_tiny": RandomModel(_T5 | {"d_model": 32}, class_name="T5EncoderModel"),
    "cogvideox_vae_tiny": RandomModel(_cogvideox_vae((8, 8, 8, 8), 4, 1), class_name="AutoencoderKLCogVideoX"),
    "t5_tiny": RandomModel(_T5, class_name="T5EncoderModel"),
    "umt5_tiny": RandomModel(_T5, class_name="UMT5EncoderModel"),
    # Whole tiles per head, as TTNN wants them; three heads, and 96 or 192 features, divide by nothing over four.
    "t5_tiny64": RandomModel(_T5 | _T5_TILED, class_name="T5EncoderModel"),
    "umt5_tiny64": RandomModel(_T5 | _T5_TILED, class_name="UMT5EncoderModel"),
    "clip_l_tiny64": RandomModel(_CLIP | _CLIP_TILED, class_name="CLIPTextModelWithProjection"),
    "clip_g_tiny64": RandomModel(
        _CLIP | _CLIP_TILED | {"hidden_act": "gelu"}, class_name="CLIPTextModelWithProjection"
    ),
    "clip_plain_tiny64": RandomModel(_CLIP | _CLIP_TILED, class_name="CLIPTextModel"),
    # 40 tokens over two devices are 32 and 8, over four the last two hold padding only.
    "qwen3_moe_tiny": RandomModel(_QWEN3_MOE, class_name="Qwen3MoeForCausalLM"),
    "dflash_tiny": RandomModel(_DFLASH, class_name=DRAFTER, target="qwen3_moe_tiny"),
    # Six tokens, whose logits now and then are all below that of padding, which is 0.
    "qwen3_moe_six_tiny": RandomModel(_QWEN3_MOE | {"vocab_size": 6}, class_name="Qwen3MoeForCausalLM"),
    "dflash_six_tiny": RandomModel(
        _DFLASH | {"vocab_size": 6, "mask_token_id": 5}, class_name=DRAFTER, target="qwen3_moe_six_tiny"
    ),
    # Which layers of the target it reads its folder leaves to z-lab's rule: one in the middle, or from the second on to
    # the third last.
    # In this target every expert runs, and no head shares its keys.
    "qwen3_moe_six_layers_tiny": RandomModel(
        _QWEN3_MOE | {"num_hidden_layers": 6, "num_experts_per_tok": 6, "num_key_value_heads": 8},
        class_name="Qwen3MoeForCausalLM",
    ),
    "dflash_one_tiny": RandomModel(
        _DFLASH | _UNSAID | {"num_hidden_layers": 1, "layer_types": ["full_attention"], "target_layer_ids": [3]},
        class_name=DRAFTER,
        target="qwen3_moe_six_layers_tiny",
    ),
    "dflash_spread_tiny": RandomModel(
        _DFLASH | _UNSAID | {"target_layer_ids": [1, 3]}, class_name=DRAFTER, target="qwen3_moe_six_layers_tiny"
    ),
    # Whole tiles per head and whole tiles of features per device, as TTNN wants them.
    "qwen3_moe_tiny32": RandomModel(_QWEN3_MOE | _TILED, class_name="Qwen3MoeForCausalLM", rounded=True),
    "dflash_tiny32": RandomModel(_DFLASH | _TILED, class_name=DRAFTER, target="qwen3_moe_tiny32", rounded=True),
    # Real widths of one expert, two of its 40 blocks, which are all alike, or one.
    "wan22_a14b_block": RandomModel(_published("wan22-t2v-a14b", num_layers=1), class_name=_WAN, block=0),
    # Two experts whose choice is seldom close, so that long prompts are clear.
    "qwen3_moe_two_tiny32": RandomModel(_QWEN3_MOE | _TILED | _TWO, class_name="Qwen3MoeForCausalLM", rounded=True),
    "dflash_two_tiny32": RandomModel(_DFLASH | _TILED, class_name=DRAFTER, target="qwen3_moe_two_tiny32", rounded=True),
    "qwen3_moe_wide": RandomModel(
        _QWEN3_MOE | _widths("qwen3-30b-a3b", *_HEADS, "moe_intermediate_size") | _WIDE,
        class_name="Qwen3MoeForCausalLM",
        rounded=True,
    ),
    "dflash_wide": RandomModel(
        _DFLASH | _widths("dflash-qwen3-coder", *_HEADS, "intermediate_size") | _ONE_LAYER,
        class_name=DRAFTER,
        target="qwen3_moe_wide",
        rounded=True,
    ),
    "wan22_a14b": RandomModel(_published("wan22-t2v-a14b", num_layers=2), max_shard_size="1GB", class_name=_WAN),
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
