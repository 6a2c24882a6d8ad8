"""Mochi 1: the tiny transformer through every scheme, its decoder, and both in TTNN."""

from __future__ import annotations

from parity.cases import Layout, ModelShape, Registry
from parity.cases.checkpoints import RandomModel, register

# Three stages whose widths, times and sides all differ.
_VAE = RandomModel(
    {"decoder_block_out_channels": (32, 64, 32), "encoder_block_out_channels": (32, 32, 32), "latent_channels": 12}
    | {"layers_per_block": (1, 2, 1, 1), "temporal_expansions": (3, 2), "spatial_expansions": (1, 2)}
    | {"add_attention_block": (False, True, True, True)},
    class_name="AutoencoderKLMochi",
)
_MODELS = {
    "mochi_vae_tiny": _VAE,
}


def add(cases: Registry) -> None:
    """Add the cases of the transformer and of the decoder, on CPU ranks and in TTNN."""
    for name, model in _MODELS.items():
        register(name, model)
    for where, suite in ((("n300", "sp2"), "smoke"), (("t3k", "sp2_tp4"), "full"), (("galaxy", "sp8_tp4"), "full")):
        cases.make("vae_decoder", "mochi_vae_tiny", Layout(*where), ModelShape((3, 10, 13), 0, 2), suite=suite)
    for where, latent, suite in (
        (("n300", "sp2"), (2, 4, 6), "smoke"),
        (("bh-qb", "sp2_tp2"), (4, 5, 4), "smoke"),
        (("t3k", "sp2_tp4"), (3, 3, 7), "full"),
        (("galaxy", "sp8_tp4"), (2, 10, 7), "full"),
    ):
        cases.make(
            "ttnn_vae_decoder", "mochi_vae_tiny", Layout(*where), ModelShape(latent, 0, 1), dtype="bf16", suite=suite
        )
