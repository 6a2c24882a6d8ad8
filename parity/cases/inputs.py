"""Seeded inputs: the same seed gives the same bits, whatever else has run.

Families of attention inputs, and what each one shows that the others hide:
    normal          N(0, 1): every key counts about the same, so a key too many or too few barely moves the answer
    large_logits    q and k times 3, scores of spread 9: nearly one-hot rows, log-sum-exps far apart between shards;
                    an unstable merge overflows, a base-2 log-sum-exp weighs shards wrongly
    fa_rand         N(0, 1) + 10 N(0, 1) Bernoulli(0.001): rare outliers, as flash attention's own tests use
    outlier_text    prompt keys times 3 and prompt values plus 1: attention sits on the prompt, so a prompt counted
                    twice, dropped or attended at the wrong step changes everything
    constant_rows   even heads: every token is one value repeated over its features; odd heads: all keys are the same
                    row, the softmax is exactly uniform and one key too many changes every output

Rows from ``logical_n`` on are padding: they hold values a hundred times larger, so that one that is not masked shows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parity.cases import FAMILIES, AttentionShape, ModelShape

_PADDING_SCALE = 100.0


def generator(*parts: int | str) -> torch.Generator:
    """Make a generator seeded by all parts, such as a case's seed and a name."""
    state = 0
    for byte in "/".join(map(str, parts)).encode():
        state = (state * 257 + byte + 1) % (2**61 - 1)
    return torch.Generator().manual_seed(state)


def attention_inputs(shape: AttentionShape, family: str, seed: int) -> dict[str, Tensor]:
    """Draw ``q``, ``k``, ``v`` (B, H, N, E) and, of a prompt, ``joint_q``, ``joint_k``, ``joint_v`` (B, H, L, E), fp32.

    Raises:
        ValueError: the family does not exist.
    """
    if family not in FAMILIES:
        raise ValueError(f"input family '{family}' does not exist")
    g = generator(seed, "attention", family)
    rows = {"": shape.n, "joint_": shape.text}
    tensors = {
        f"{prefix}{name}": _draw(family, (shape.batch, shape.heads, n, shape.head_dim), g)
        for prefix, n in rows.items()
        if n
        for name in ("q", "k", "v")
    }
    if family == "large_logits":
        for name, x in tensors.items():
            if not name.endswith("v"):
                x *= 3.0
    if family == "outlier_text" and shape.text:
        tensors["joint_k"] *= 3.0
        tensors["joint_v"] += 1.0
    if family == "constant_rows":
        _make_rows_constant(tensors, shape.head_dim)
    for name in ("q", "k", "v"):
        tensors[name][:, :, shape.rows :] *= _PADDING_SCALE
    return tensors


def model_inputs(
    shape: ModelShape, joint_dim: int, pooled_dim: int | None, family: str, seed: int, *, channels: int = 16
) -> dict[str, Tensor]:
    """Draw the arguments of a diffusers transformer's ``forward`` in fp32.

    ``hidden_states`` (B, channels, [T,] H, W), ``encoder_hidden_states`` (B, L, joint_dim), ``pooled_projections``
    (B, pooled_dim) unless that is None, ``timestep`` (B,) in 0..1000. Samples differ in everything, the timestep too,
    so that a sample on the wrong cfg group shows.
    """
    g = generator(seed, "model", family)
    b = shape.batch
    tensors = {
        "hidden_states": _draw(family, (b, channels, *shape.latent), g),
        "encoder_hidden_states": _draw(family, (b, shape.text, joint_dim), g),
    }
    if pooled_dim is not None:
        tensors["pooled_projections"] = _draw(family, (b, pooled_dim), g)
    return tensors | {"timestep": torch.tensor([857.69, 602.15, 8.93, 1000.0])[torch.arange(b) % 4]}


def decoder_inputs(shape: ModelShape, z_dim: int, family: str, seed: int) -> dict[str, Tensor]:
    """Draw ``z`` (B, z_dim, [T,] H, W) in fp32, the argument of diffusers' ``decode``."""
    return {"z": _draw(family, (shape.batch, z_dim, *shape.latent), generator(seed, "decoder", family))}


def encoder_inputs(shape: ModelShape, vocabulary: int, seed: int) -> dict[str, Tensor]:
    """Draw ``input_ids`` and ``attention_mask`` (B, L) in int64; sample 0 has padding behind a third of its tokens."""
    size = (shape.batch, shape.text)
    mask = torch.ones(size, dtype=torch.int64)
    mask[0, shape.text // 3 :] = 0
    return {"input_ids": torch.randint(vocabulary, size, generator=generator(seed, "ids")), "attention_mask": mask}


def rounded(tensors: dict[str, Tensor], dtype: str, exact: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Round fp32 tensors to values that ``dtype`` (``fp32`` or ``bf16``) can hold.

    ``timestep`` (one dim) stays as it is: pipelines hand it over in fp32, it is a place in time and no activation. So
    do whole numbers and those named in ``exact``.
    """
    if dtype == "fp32":
        return tensors
    activations = {name for name, x in tensors.items() if x.ndim > 1 and x.is_floating_point()} - {*exact}
    return {name: x.bfloat16().float() if name in activations else x for name, x in tensors.items()}


def _draw(family: str, size: tuple[int, ...], g: torch.Generator) -> Tensor:
    x = torch.randn(size, generator=g)
    if family == "fa_rand":
        outlier = torch.rand(size, generator=g) < 0.001
        x += 10.0 * torch.randn(size, generator=g) * outlier
    return x


def _make_rows_constant(tensors: dict[str, Tensor], head_dim: int) -> None:
    """Make rows constant, in place; queries and keys of a repeated value are scaled to keep scores of order 1."""
    shared = tensors["k"][:, :, :1]
    for name, x in tensors.items():
        even = x[:, 0::2]
        even.copy_(even[..., :1].expand_as(even) * (1.0 if name.endswith("v") else head_dim**-0.25))
        if name.endswith("k"):
            x[:, 1::2] = shared[:, 1::2]
