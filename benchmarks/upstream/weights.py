"""A pytest plugin: random weights at published widths for upstream tests that load models from Hugging Face.

``pytest -p benchmarks.upstream.weights THEIR_TESTS``: ``from_pretrained`` of a diffusers or transformers class returns
a model of the published configuration, cut to two layers (one of each kind for FLUX.1), with the library's own random
initialisation from a seed. Nothing is downloaded. A model of unknown configuration is refused as it would be
without a network. Tokenizers give seeded ids in the form of the real ones: words become numbers.

What upstream's tests assert is untouched: both sides of their comparison get these weights.
"""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.upstream.published import CLIP_END, CLIP_START, published
from benchmarks.upstream.stand_ins import forget, stand_in_for_torchvision

LAYERS = 2
WHOLE = (
    ("models.tt_dit.models.transformers.transformer_sd35", "SD35Transformer2DModel"),
    ("models.tt_dit.models.transformers.transformer_mochi", "MochiTransformer3DModel"),
)
"""Modules and classes of tt_dit whose tests make all published layers."""


def _qwen25_vl() -> dict[str, Any]:
    """Qwen2.5-VL 7B, the text encoder of Qwen-Image, with few of its words and one layer of its vision tower."""
    text = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 8192,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "rope_type": "default"},
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
    }
    return {"text_config": text, "vision_config": {"depth": 1, "out_hidden_size": 3584}}


MODELS: dict[str, Callable[[], dict[str, Any]]] = {
    "MochiTransformer3DModel": lambda: {"num_layers": LAYERS},
    "Qwen2_5_VLForConditionalGeneration": _qwen25_vl,
    "QwenImageTransformer2DModel": lambda: {"num_layers": LAYERS},
}
"""Configurations of classes that this project has no model of; where nothing but layers are named, the defaults of
diffusers are the published ones."""


def random_model(cls: type, where: str, dtype: torch.dtype | None) -> nn.Module:
    """Return a model of ``cls`` with seeded random weights, float32 unless a dtype is asked for.

    Raises:
        OSError: there is no configuration for it here, as a hub that cannot be reached would.
    """
    name = cls.__name__
    config = MODELS[name]() if name in MODELS else published(name, where, LAYERS)
    if config is None:
        raise OSError(f"the weights of {name} ({where}) need a download.")
    known = getattr(cls, "config_class", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(f"{name} {where}".encode()))
        model = cls(known(**config)) if known is not None else cls(**config)
    for key, value in config.get("text_config", {}).items():  # where transformers 4 kept them, and these tests look
        for place in (model.config, model.config.text_config):
            if not hasattr(place, key):
                setattr(place, key, value)
    return model if dtype is None else model.to(dtype)


def _from_pretrained(cls: type, name: Any = "", *args: Any, **options: Any) -> nn.Module:
    dtype = options.get("torch_dtype", options.get("dtype"))
    where = f"{name} {options.get('subfolder') or ''}".strip()
    return random_model(cls, where, dtype if isinstance(dtype, torch.dtype) else None)


class SeededTokenizer:
    """Ids of the right form without a vocabulary: a start where there is one, a number per word, an end, padding."""

    def __init__(self, words: int, start: int | None, end: int, pad: int) -> None:
        self.vocab_size = words
        self.bos_token_id = start
        self.eos_token_id = end
        self.pad_token_id = pad
        self.model_max_length = 512
        self.padding_side = "right"
        self.pad_token = "<pad>"
        self.eos_token = "</s>"

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


_install()
_stand_ins = stand_in_for_torchvision()


def _cut_layers() -> None:
    """Cap the layers of tt_dit's models whose tests name the published number themselves."""
    for path, name in WHOLE:
        model = getattr(sys.modules.get(path), name, None)
        if model is not None and not hasattr(model.__init__, "__wrapped__"):
            model.__init__ = _capped(model.__init__)


def _capped(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def capped(*args: Any, **options: Any) -> None:
        if "num_layers" in options:
            options["num_layers"] = min(options["num_layers"], LAYERS)
        function(*args, **options)

    return capped


def pytest_collection_modifyitems() -> None:
    """All test modules, and so the models they import, are imported by now."""
    _cut_layers()


def pytest_collection() -> None:
    """All conftests above the tests are imported by now."""
    forget(_stand_ins)
