"""The host of FLUX.2: a prompt through Mistral 3 by transformers, noise of whole patches, positions of four axes.

prompt, system message --chat template--> tokens --Mistral 3 (transformers, on the host)--> hidden states 10, 20, 30
                       --side by side--> (1, L, 3 D)
last latents (1, N, C) --> (1, C, h, w) * sqrt(variance + eps) + mean of vae's batch norm --2 x 2 of a channel--> z
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError, first_line
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.flux2.config import Flux2Config
from refsim.models.vae_flux2.config import Flux2VAEConfig
from refsim.pipelines.hosts.base import HostRun
from refsim.pipelines.hosts.flux import FluxHost
from refsim.pipelines.request import PipelineRequest, load_tokenizer

_PATCH = 2
LAYERS = (10, 20, 30)
"""Hidden states of the text encoder that make a prompt's features; 0 is what goes into its first layer."""


class Flux2Host(FluxHost):
    """Dev; no reference images."""

    autoencoder = Flux2VAEConfig

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """``prompt`` (1, L, joint), ``latents`` (1, N, C) and ``grid``, their rows and columns."""
        sizes = self.sizes(root, request)
        _, channels, height, width = sizes.latents
        noise = (1, channels * _PATCH**2, height // _PATCH, width // _PATCH)
        latents = torch.randn(noise, generator=torch.Generator().manual_seed(request.seed))
        prompt = encoded(root, request.prompt, sizes.tokens)
        return {"latents": latents.flatten(2).transpose(1, 2), "grid": torch.tensor(noise[2:]), "prompt": prompt}

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """Return the prompt, positions of both streams, and guidance where the transformer takes it."""
        rows, columns = run.tensors["grid"].tolist()
        prompt = run.tensors["prompt"].to(run.storage)
        conditions = {
            "encoder_hidden_states": prompt,
            "img_ids": torch.cartesian_prod(*(torch.arange(n) for n in (1, rows, columns, 1))).float(),
            "txt_ids": torch.cartesian_prod(*(torch.arange(n) for n in (1, 1, 1, prompt.shape[1]))).float(),
        }
        if Checkpoint(run.root / "transformer").as_config(Flux2Config).guidance_embeds:
            conditions["guidance"] = torch.full((1,), run.request.guidance)
        return conditions

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """See :meth:`PipelineHost.decoder_input`; patches get back the spread and the mean that training took away."""
        vae = Checkpoint(run.root / "vae")
        config = vae.as_config(Flux2VAEConfig)
        shape = (config.latent_channels * _PATCH**2,)
        mean, variance = (Weights(vae, torch.float32).take(f"bn.running_{n}", shape) for n in ("mean", "var"))
        x = latents * torch.sqrt(variance + config.batch_norm_eps) + mean
        patches = x.unflatten(2, (-1, _PATCH, _PATCH)).unflatten(1, tuple(run.tensors["grid"].tolist()))
        return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3).to(run.storage)

    def shift(self, config: dict[str, Any], tokens: int, steps: int) -> float:
        """Return ``mu`` as diffusers' ``compute_empirical_mu`` fits it to the numbers of tokens and of steps."""
        from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

        return compute_empirical_mu(tokens, steps)


def encoded(root: Path, prompt: str, length: int) -> Tensor:
    """Return what transformers' text encoder of a folder makes of a prompt, (1, ``length``, joint) in fp32.

    It runs on the host, in the dtype of its files.

    Raises:
        UserError: tokenizer or text encoder is missing, or transformers cannot run it.
    """
    tokenizer = load_tokenizer(root / "tokenizer")
    folder = root / "text_encoder"
    refuse_unreadable(folder, "the pipeline's text encoder")
    if not folder.is_dir():
        raise UserError(f"the pipeline lacks its text encoder's folder '{folder}'.")
    from diffusers.pipelines.flux2.pipeline_flux2 import format_input
    from transformers import Mistral3ForConditionalGeneration

    try:
        how = {"local_files_only": True, "use_safetensors": True, "dtype": "auto"}
        model = Mistral3ForConditionalGeneration.from_pretrained(folder, trust_remote_code=False, **how).eval()
        padded = {"padding": "max_length", "truncation": True, "max_length": length}
        tokens = tokenizer.apply_chat_template(
            format_input([prompt]), tokenize=True, return_dict=True, return_tensors="pt", **padded
        )
        with torch.inference_mode():
            asked = {name: tokens[name] for name in ("input_ids", "attention_mask")}
            states = model(**asked, output_hidden_states=True, use_cache=False).hidden_states
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # transformers passes on whatever odd values lead to
        raise UserError(f"the text encoder in '{folder}' cannot be used ({first_line(e)}).") from e
    if len(states) <= max(LAYERS):
        raise UserError(f"the text encoder in '{folder}' has {len(states) - 1} layers; {max(LAYERS)} are needed.")
    return torch.cat([states[layer] for layer in LAYERS], -1).float()
