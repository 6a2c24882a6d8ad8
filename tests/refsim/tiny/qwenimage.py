"""A tiny Qwen-Image of diffusers: three heads that divide by nothing, every path random, a mask with holes."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import torch

CONFIG: dict[str, Any] = {
    "in_channels": 12,
    "out_channels": 3,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 3,
    "joint_attention_dim": 24,
    "axes_dims_rope": (4, 6, 6),
}
_SMALL = ("img_in", "txt_in", "to_q", "to_k", "add_q_proj", "add_k_proj")
ONE = ((1, 7, 11),)
SEVERAL = ((1, 5, 9), (1, 3, 4), (1, 4, 7))
"""A picture to be made and two that it is made from."""


def make_model(seed: int = 0, **changes: Any):
    """diffusers' model with weights that leave nothing inert (norm weights and biases too), activations of order 1.

    What goes into the first norms, and into those of queries and keys, is small, so that their epsilons matter.
    """
    from diffusers import QwenImageTransformer2DModel

    model = QwenImageTransformer2DModel(**{**CONFIG, **changes}).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2, generator=generator)
            else:
                p.normal_(0.0, 1.5 / p[0].numel() ** 0.5, generator=generator)
            if any(part in name for part in _SMALL):
                p.mul_(0.01)
    return model


def make_inputs(seed: int = 1, batch: int = 2, images=ONE, text: int = 29, masked: bool = True) -> dict:
    """Inputs as ``refsim run`` takes them; the second sample's prompt is shorter, and both have holes."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.ones(batch, text, dtype=torch.bool)
    if masked:
        mask = torch.rand(batch, text, generator=g) > 0.3
        mask[-1, text // 2 :] = False
    return {
        "hidden_states": torch.randn(batch, sum(map(prod, images)), CONFIG["in_channels"], generator=g),
        "encoder_hidden_states": torch.randn(batch, text, CONFIG["joint_attention_dim"], generator=g),
        "encoder_hidden_states_mask": mask,
        "timestep": torch.tensor([0.9371, 0.412])[:batch],
        "img_shapes": torch.tensor(images),
    }


def answer(model, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask diffusers, whose sizes of images are lists."""
    sizes = [[tuple(one) for one in inputs["img_shapes"].tolist()]] * len(inputs["hidden_states"])
    with torch.no_grad():
        return model(**inputs | {"img_shapes": sizes}, return_dict=False)[0]


def save(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder
