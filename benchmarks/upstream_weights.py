"""A pytest plugin: random weights at published widths for upstream tests that load models from Hugging Face.

``pytest -p benchmarks.upstream_weights THEIR_TESTS``: ``from_pretrained`` of a diffusers or transformers class returns a
model of the published configuration, cut to two layers (one of each kind for FLUX.1), with the library's own random
initialisation from a seed. Nothing is downloaded. A model that is not in ``MODELS`` is refused as it would be without a
network. Tokenizers give seeded ids in the form of the real ones: words become numbers, so a prompt is one by length only.

What upstream's tests assert is untouched: both sides of their comparison get these weights.
"""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LAYERS = 2
CLIP_START, CLIP_END = 49406, 49407


def _published(model: str, name: str) -> dict[str, Any]:
    """A configuration of this project's own list of published models."""
    from refsim.models import registry

    config = next(p.config for p in registry.get(model).published if p.name == name)
    return {k: v for k, v in config.items() if k not in ("_class_name", "architectures", "model_type")}


def _flux(where: str) -> dict[str, Any]:
    name = "flux1-schnell" if "schnell" in where else "flux1-dev"
    return _published("flux1", name) | {"num_layers": 1, "num_single_layers": 1}


def _sd35(where: str) -> dict[str, Any]:
    return _published("sd35", "sd35-medium" if "medium" in where else "sd35-large") | {"num_layers": LAYERS}


def _clip(where: str) -> dict[str, Any]:
    published = _published("clip", "clip-g" if "text_encoder_2" in where else "clip-l")
    ends = {"bos_token_id": CLIP_START, "eos_token_id": CLIP_END}
    return published | ends | {"num_hidden_layers": LAYERS}


def _qwen25_vl(where: str) -> dict[str, Any]:
    """Qwen2.5-VL 7B, the text encoder of Qwen-Image, with one layer in its vision tower."""
    text = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "rope_type": "default"},
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
    }
    return {"text_config": text, "vision_config": {"depth": 1, "out_hidden_size": 3584}}


MODELS: dict[str, Callable[[str], dict[str, Any]]] = {
    "AutoencoderKL": lambda where: _published("vae", "flux1-vae" if "flux" in where.lower() else "sd35-vae"),
    "AutoencoderKLWan": lambda where: _published("vae_wan", "wan21-vae"),
    "CLIPTextModel": _clip,
    "CLIPTextModelWithProjection": _clip,
    "FluxTransformer2DModel": _flux,
    "MochiTransformer3DModel": lambda where: {"num_layers": LAYERS},
    "Qwen2_5_VLForConditionalGeneration": _qwen25_vl,
    "QwenImageTransformer2DModel": lambda where: {"num_layers": LAYERS},
    "SD3Transformer2DModel": _sd35,
    "T5EncoderModel": lambda where: _published("t5", "t5-xxl") | {"num_layers": LAYERS},
    "UMT5EncoderModel": lambda where: _published("t5", "umt5-xxl") | {"num_layers": LAYERS},
    "WanTransformer3DModel": lambda where: _published("wan22", "wan22-t2v-a14b") | {"num_layers": LAYERS},
}
"""Configurations by class; those that name nothing but layers are the defaults of diffusers, which are the published
ones. The argument tells where the test looks: repository and subfolder."""


def random_model(cls: type, where: str, dtype: torch.dtype | None) -> nn.Module:
    """A model of ``cls`` with seeded random weights, float32 unless a dtype is asked for.

    Raises:
        OSError: there is no configuration for it here, as a hub that cannot be reached would.
    """
    name = next((c.__name__ for c in cls.__mro__ if c.__name__ in MODELS), None)
    if name is None:
        raise OSError(f"the weights of {cls.__name__} ({where}) need a download.")
    config = MODELS[name](where)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(f"{name} {where}".encode()))
        known = getattr(cls, "config_class", None)
        model = cls(known(**config)) if known is not None else cls(**config)
    return model if dtype is None else model.to(dtype)


def _from_pretrained(cls: type, name: Any = "", *args: Any, **options: Any) -> nn.Module:
    dtype = options.get("torch_dtype", options.get("dtype"))
    where = f"{name} {options.get('subfolder') or ''}".strip()
    return random_model(cls, where, dtype if isinstance(dtype, torch.dtype) else None)


class SeededTokenizer:
    """Ids of the right form without a vocabulary: a start where the model has one, a number per word, an end, padding."""

    def __init__(self, words: int, start: int | None, end: int, pad: int) -> None:
        self.vocab_size, self.bos_token_id, self.eos_token_id, self.pad_token_id = words, start, end, pad
        self.model_max_length, self.padding_side, self.pad_token, self.eos_token = 512, "right", "<pad>", "</s>"

    def _ids(self, text: str) -> list[int]:
        words = [100 + zlib.crc32(word.encode()) % (self.vocab_size - 200) for word in text.split()]
        return [*([] if self.bos_token_id is None else [self.bos_token_id]), *words, self.eos_token_id]

    def __call__(self, text: str | list[str], *, max_length: int = 77, padding: Any = False, **options: Any) -> Any:
        """Tokenize as transformers does, with ``padding`` True (to the longest) or ``max_length``."""
        from transformers import BatchEncoding

        rows = [self._ids(t) for t in ([text] if isinstance(text, str) else text)]
        rows = [[*row[: max_length - 1], self.eos_token_id] if len(row) > max_length else row for row in rows]
        width = max_length if padding == "max_length" else max(map(len, rows))
        ids = torch.tensor([row + [self.pad_token_id] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return BatchEncoding({"input_ids": ids, "attention_mask": mask})


def _clip_tokenizer(*args: Any, **options: Any) -> SeededTokenizer:
    return SeededTokenizer(49408, CLIP_START, CLIP_END, CLIP_END)


def _t5_tokenizer(*args: Any, **options: Any) -> SeededTokenizer:
    return SeededTokenizer(32000, None, 1, 0)


def _install() -> None:
    """Replace ``from_pretrained`` of both libraries for the life of the process."""
    import transformers
    from diffusers.models.modeling_utils import ModelMixin
    from transformers.modeling_utils import PreTrainedModel

    for base in (ModelMixin, PreTrainedModel):
        base.from_pretrained = classmethod(_from_pretrained)
    transformers.CLIPTokenizer.from_pretrained = _clip_tokenizer
    transformers.AutoTokenizer.from_pretrained = _t5_tokenizer


def _stand_in_for_torchvision() -> list[str]:
    """An empty ``torchvision`` for the one conftest that imports it for fixtures of other models' tests.

    Only while conftests are imported: libraries that would use it look for it themselves, and must not find it.
    """
    try:
        import torchvision  # noqa: F401 - the real one is there
    except ImportError:
        module = types.ModuleType("torchvision")
        module.transforms = types.ModuleType("torchvision.transforms")  # type: ignore[attr-defined]
        stand_ins = {"torchvision": module, "torchvision.transforms": module.transforms}
        sys.modules.update(stand_ins)
        return list(stand_ins)
    return []


_install()
_stand_ins = _stand_in_for_torchvision()


def pytest_collection() -> None:
    """All conftests above the tests are imported by now."""
    while _stand_ins:
        sys.modules.pop(_stand_ins.pop(), None)
