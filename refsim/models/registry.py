"""Which model a checkpoint folder holds."""

from __future__ import annotations

from refsim.checkpoint import Checkpoint, Weights
from refsim.errors import UserError
from refsim.models.clip.config import CLIPTextConfig
from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.cogvideox.transformer import CogVideoXTransformer
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.models.qwen3_moe.decoder import Qwen3MoeForCausalLM
from refsim.models.sd35.config import SD35Config
from refsim.models.sd35.transformer import SD35Transformer
from refsim.models.t5.config import T5Config
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.config import VAEConfig
from refsim.models.vae.decoder import VAEDecoder
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.models.vae_cogvideox.decoder import CogVideoXVAEDecoder
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.models.wan22.config import WanConfig
from refsim.models.wan22.transformer import WanTransformer
from refsim.runtime.device import Device

_MODELS = {
    SD35Transformer.CLASS_NAME: (SD35Transformer, SD35Config),
    WanTransformer.CLASS_NAME: (WanTransformer, WanConfig),
    WanVAEDecoder.CLASS_NAME: (WanVAEDecoder, WanVAEConfig),
    CogVideoXTransformer.CLASS_NAME: (CogVideoXTransformer, CogVideoXConfig),
    CogVideoXVAEDecoder.CLASS_NAME: (CogVideoXVAEDecoder, CogVideoXVAEConfig),
    VAEDecoder.CLASS_NAME: (VAEDecoder, VAEConfig),
    CLIPTextEncoder.CLASS_NAME: (CLIPTextEncoder, CLIPTextConfig),
    "CLIPTextModel": (CLIPTextEncoder, CLIPTextConfig),
    Qwen3MoeForCausalLM.CLASS_NAME: (Qwen3MoeForCausalLM, Qwen3MoeConfig),
    "T5EncoderModel": (T5Encoder, T5Config),
    "UMT5EncoderModel": (T5Encoder, T5Config),
}


def find_model(checkpoint: Checkpoint):
    """(model class, its config) for the folder's ``_class_name``."""
    if checkpoint.class_name not in _MODELS:
        raise UserError(
            f"checkpoint '{checkpoint.folder}' is a {checkpoint.class_name}; supported: {', '.join(_MODELS)}."
        )
    model, config = _MODELS[checkpoint.class_name]
    return model, config.from_dict(checkpoint.config)


def load_model(checkpoint: Checkpoint, weights: Weights, device: Device):
    """The model of a checkpoint folder with this device's weights; strict about every key."""
    model, config = find_model(checkpoint)
    return model(weights, device, config)
