"""A tiny Flux of diffusers: three heads that divide by nothing, every path random, ids that are not a plain grid."""

from __future__ import annotations

from pathlib import Path

import torch

CONFIG = {
    "in_channels": 12,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 3,
    "joint_attention_dim": 24,
    "pooled_projection_dim": 20,
    "guidance_embeds": True,
    "axes_dims_rope": (4, 6, 6),
}
_SMALL: tuple[str, ...] = ("x_embedder", "context_embedder", "to_q", "to_k", "add_q_proj", "add_k_proj")
_GATES = ("norm.linear", "norm1.linear", "norm1_context.linear")


def make_model(seed: int = 0, *, quiet: bool = False, **changes):
    """diffusers' model with weights that leave nothing inert (norm weights and biases too), activations of order 1.

    What goes into the first norms, and into those of queries and keys, is small, so that their epsilons matter;
    with ``quiet`` blocks add so little that the last norm's does too.
    """
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(**{**CONFIG, **changes}).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.normal_(1.0 if ".norm_" in name else 0.0, 0.2, generator=generator)
            else:
                p.normal_(0.0, 1.5 / p[0].numel() ** 0.5, generator=generator)
            if any(part in name for part in (*_SMALL, *(_GATES if quiet else ()))):
                p.mul_(0.01)
    return model


def make_inputs(
    seed: int = 1, batch: int = 2, grid: tuple[int, int] = (7, 11), text: int = 29, guidance: bool = True
) -> dict[str, torch.Tensor]:
    """Make inputs of diffusers' forward; the prompt has positions too, unlike in the pipeline, so that they matter."""
    g = torch.Generator().manual_seed(seed)
    rows, columns = grid
    img_ids = torch.zeros(rows, columns, 3)
    img_ids[..., 0] = 2.0
    img_ids[..., 1] += torch.arange(rows)[:, None]
    img_ids[..., 2] += 301 + torch.arange(columns)[None]  # which bf16 would round
    inputs = {
        "hidden_states": torch.randn(batch, rows * columns, CONFIG["in_channels"], generator=g),
        "encoder_hidden_states": torch.randn(batch, text, CONFIG["joint_attention_dim"], generator=g),
        "pooled_projections": torch.randn(batch, CONFIG["pooled_projection_dim"], generator=g),
        "timestep": torch.tensor([0.9371, 0.412])[:batch],
        "img_ids": img_ids.flatten(0, 1),
        "txt_ids": torch.randint(0, 40, (text, 3), generator=g).float(),
    }
    return inputs | ({"guidance": torch.tensor([3.5, 1.0])[:batch]} if guidance else {})


def save(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder
