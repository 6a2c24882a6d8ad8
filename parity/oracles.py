"""The answers to compare with, computed in this process by code that is not ours.

    attention   torch.nn.functional.scaled_dot_product_attention on float64, the plain math kernel (the simulator's
                blocks use the fused one); log-sum-exp by torch.logsumexp on float64 scores
    model       the diffusers transformer in fp32, same folder, same inputs
    noise       the same oracle in the storage dtype, judged like an answer: what rounding alone costs

Where storage is bf16, the reference gets the same bf16 values (weights and inputs) but computes on float64 or fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.cases import AttentionShape, Case
from parity.checkpoints import COGVIDEOX, MODELS, CheckpointStore, load_oracle
from parity.inputs import decoder_inputs, encoder_inputs, model_inputs, rounded

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SCORES_BYTES = 256 * 2**20
"""Scores held at a time; more of them are computed by blocks of queries."""


def joint_rows(tensors: dict[str, Tensor], name: str, rows: int) -> Tensor:
    """The real image rows with the prompt's behind them: (B, H, rows + L, E)."""
    image = tensors[name][:, :, :rows]
    return torch.cat([image, tensors[f"joint_{name}"]], 2) if f"joint_{name}" in tensors else image


def attention_float64(tensors: dict[str, Tensor], shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """(out (B, H, rows + L, E), lse (B, H, rows + L)) in float64 over all real keys."""
    q, k, v = (joint_rows(tensors, name, shape.rows).double() for name in ("q", "k", "v"))
    out, lse = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float64)
    block = max(1, _SCORES_BYTES // (8 * k.shape[2]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for start in range(0, q.shape[2], block):
                at = (slice(b, b + 1), slice(h, h + 1))
                rows = (*at, slice(start, start + block))
                with sdpa_kernel(SDPBackend.MATH):
                    out[rows] = F.scaled_dot_product_attention(q[rows], k[at], v[at])
                lse[rows] = torch.logsumexp(q[rows] @ k[at].transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
    return out, lse


def attention_noise(tensors: dict[str, Tensor], shape: AttentionShape, dtype: str) -> Tensor:
    """One call of torch's attention in the storage dtype, (B, H, rows + L, E)."""
    q, k, v = (joint_rows(tensors, name, shape.rows).to(DTYPES[dtype]) for name in ("q", "k", "v"))
    return F.scaled_dot_product_attention(q, k, v)


@dataclass
class ModelOracle:
    """Samples of the diffusers model, each computed once per checkpoint, inputs and arithmetic."""

    store: CheckpointStore
    _samples: dict[tuple, Tensor] = field(default_factory=dict)

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        """The case's inputs, holding only values of its storage dtype."""
        config = MODELS[case.model].config
        if case.kind == "encoder":
            tensors = encoder_inputs(case.shape, config["vocab_size"], seed)
            name = MODELS[case.model].class_name
            if name.startswith("CLIP"):  # which answers with the row of the first end token, and pads with it
                ids, mask, end = tensors["input_ids"], tensors["attention_mask"], config["eos_token_id"]
                ids[ids == end] = end + 1
                mask[:, -1] = 0
                ids[mask == 0] = end
            if name.startswith("CLIP") or name.endswith("ForCausalLM"):  # rows see those before them, padding or not
                del tensors["attention_mask"]
            return tensors
        if case.kind == "decoder":
            return rounded(
                decoder_inputs(case.shape, config.get("z_dim") or config["latent_channels"], case.family, seed),
                case.dtype,
            )
        joint_dim = next(config[n] for n in ("joint_attention_dim", "text_dim", "text_embed_dim") if n in config)
        tensors = model_inputs(case.shape, joint_dim, config.get("pooled_projection_dim"), case.family, seed)
        tensors["hidden_states"] = channels_first(case.model, tensors["hidden_states"]).contiguous()
        return rounded(tensors, case.dtype)

    def reference(self, case: Case, seed: int) -> Tensor:
        """The fp32 sample (B, 16, H, W) of the weights as storage holds them."""
        return self._sample(case, seed, torch.float32)

    def noise(self, case: Case, seed: int) -> Tensor | None:
        """The same sample computed in bf16; for fp32 in float64, whose distance is fp32's noise, or None (too slow)."""
        if case.dtype == "bf16":
            return self._sample(case, seed, torch.bfloat16)
        return self._sample(case, seed, torch.float64) if MODELS[case.model].float64_noise else None

    def drop(self, model: str, seed: int) -> None:
        """Forget the samples of one checkpoint."""
        self._samples = {key: x for key, x in self._samples.items() if (key[0], key[3]) != (model, seed)}

    def _sample(self, case: Case, seed: int, arithmetic: torch.dtype) -> Tensor:
        key = (case.model, case.shape, case.family, seed, case.dtype, arithmetic)
        if key not in self._samples:
            model = load_oracle(self.store.folder(case.model, seed), arithmetic, rounded=case.dtype == "bf16")
            tensors = {
                n: x.to(arithmetic) if x.ndim > 1 and x.is_floating_point() else x
                for n, x in self.inputs(case, seed).items()
            }
            if MODELS[case.model].config.get("use_rotary_positional_embeddings"):
                tensors["image_rotary_emb"] = rotary_tables(model, tensors["hidden_states"])
            with torch.inference_mode():
                run = model.decode if case.kind == "decoder" else model
                self._samples[key] = run(**tensors, return_dict=False)[0]
        return self._samples[key]


def channels_first(model: str, x: Tensor) -> Tensor:
    """(B, C, [T,] H, W) from or to a model's own order; CogVideoX has frames before channels."""
    return x.transpose(1, 2) if MODELS[model].class_name == COGVIDEOX else x


def rotary_tables(model: Any, latent_BFCHW: Tensor) -> tuple[Tensor, Tensor]:
    """What diffusers' CogVideoX pipeline hands its transformer, made by the pipeline's own code."""
    from diffusers import CogVideoXPipeline

    pipe = CogVideoXPipeline.__new__(CogVideoXPipeline)
    pipe.transformer, pipe.vae_scale_factor_spatial = model, 1
    frames, height, width = (latent_BFCHW.shape[i] for i in (1, 3, 4))
    make = CogVideoXPipeline._prepare_rotary_positional_embeddings
    return make(pipe, height, width, frames, torch.device("cpu"))


def guided(sample: Tensor, scale: float) -> Tensor:
    """``uncond + scale * (cond - uncond)`` in float64 of a sample whose first half is the negative one."""
    uncond, cond = sample.double().chunk(2)
    return uncond + scale * (cond - uncond)


def tokens_of(sample: Tensor, patch: int = 2) -> Tensor:
    """(B, C, [T,] H, W) -> (B, [T *] H/p * W/p, p * p * C): one row per image token, in the order of the model."""
    x = sample.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch))
    x = x.movedim(1, -1).movedim(-4, -3)
    return x.reshape(x.shape[0], -1, patch * patch * sample.shape[1])
