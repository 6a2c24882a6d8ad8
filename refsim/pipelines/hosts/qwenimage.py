"""The host of Qwen-Image: the text encoder (transformers' Qwen2.5-VL, which runs here and not on the devices), noise
packed two by two; Euler flow matching, shifted by the size as Flux's.

    prompt --template, tokenizer--> ids --Qwen2.5-VL--> last states of the real tokens, the template's 34 left out
    negative, positive --padded to the longer of both--> (2, L, joint) and a mask (2, L)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from refsim.base.errors import UserError, first_line
from refsim.files.checkpoint import Checkpoint
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.pipelines.hosts import qwenimage_edit as edit
from refsim.pipelines.hosts.base import HostRun, Sizes
from refsim.pipelines.hosts.flux import FluxHost, pack, unpack
from refsim.pipelines.request import PipelineRequest, load_tokenizer, read_index

_PACKED = 2
_SIDE = 1024
_LONGEST_TEXT = 1024
_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
_TEMPLATE_TOKENS = 34
"""Tokens of the template before the prompt, of Qwen's own tokenizer."""


class QwenImageHost(FluxHost):
    """Text to picture with a negative prompt."""

    classifier_free = True

    def edits(self, root: Path) -> bool:
        """Whether a folder is one of Edit-2511, which has a processor of pictures."""
        return "processor" in read_index(root)

    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """See :meth:`PipelineHost.sizes`; the latents before they are packed."""
        if request.frames not in (None, 1):
            raise UserError(f"a picture has one frame, not {request.frames}; leave out --frames.")
        vae = Checkpoint(root / "vae").as_config(WanVAEConfig)
        scale = vae.scale_factor_spatial
        side = (_SIDE, _SIDE)
        if request.images:
            side = edit.sides(edit.open_pictures(request.images)[-1], _SIDE**2)
            if request.max_text is not None:
                raise UserError("the prompt of an edit is not cut; leave out --max-text.")
        height, width = request.size(*side, (scale * _PACKED, scale * _PACKED))
        tokens = request.max_text or _LONGEST_TEXT
        if tokens > _LONGEST_TEXT:
            raise UserError(f"--max-text is at most {_LONGEST_TEXT} for this pipeline, not {tokens}.")
        return Sizes((1, vae.z_dim, height // scale, width // scale), height, width, 1, tokens)

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return ``latents`` (1, N, 64), ``grid``, their rows and columns, and both prompts' ``prompt`` (B, L, joint)
        and ``mask`` (B, L), negative first; of pictures to edit ``condition`` (1, M, 64) and ``grids`` (pictures, 2).
        """
        sizes = self.sizes(root, request)
        noise = torch.randn(sizes.latents, generator=torch.Generator().manual_seed(request.seed))
        tensors = {"latents": pack(noise), "grid": torch.tensor([side // _PACKED for side in sizes.latents[2:]])}
        if request.images:
            pictures = edit.open_pictures(request.images)
            encoder = _text_encoder(root / "text_encoder")
            states = edit.read_with(root / "processor", encoder, self.texts(request), pictures)
            latents = edit.encode_pictures(root / "vae", pictures)
            tensors["condition"] = torch.cat([pack(x) for x in latents], 1)
            tensors["grids"] = torch.tensor([[side // _PACKED for side in x.shape[2:]] for x in latents])
        else:
            states = [x[: sizes.tokens] for x in _encoded(root, self.texts(request))]
        lengths = torch.tensor([len(x) for x in states])
        return tensors | {
            "prompt": pad_sequence(states, batch_first=True),
            "mask": torch.arange(int(lengths.max())) < lengths[:, None],
        }

    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """See :meth:`PipelineHost.encode`; the encoder has run on the host already."""
        more = [run.tensors["grids"]] if "grids" in run.tensors else []
        return {
            "encoder_hidden_states": run.tensors["prompt"][run.samples].to(run.storage),
            "encoder_hidden_states_mask": run.tensors["mask"][run.samples],
            "img_shapes": F.pad(torch.cat([run.tensors["grid"][None], *more]), (1, 0), value=1),
        }

    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """Return ``latents * std + mean`` per channel, of one frame, tokens unpacked."""
        config = Checkpoint(run.root / "vae").as_config(WanVAEConfig)
        z = unpack(latents, *run.tensors["grid"].tolist()).unsqueeze(2).to(run.storage)
        mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1).to(z) for x in (config.latents_mean, config.latents_std))
        return z / (1.0 / std) + mean  # not "* std": diffusers rounds this way


def text_features(root: Path) -> int:
    """Return how many numbers a token has behind the text encoder of a folder."""
    config = Checkpoint(root / "text_encoder").config
    width = config.get("text_config", config).get("hidden_size")
    if not isinstance(width, int):
        raise UserError(f"'{root / 'text_encoder'}' has no hidden_size in its config.json.")
    return width


def _encoded(root: Path, texts: list[str]) -> list[Tensor]:
    """Return the last states (L, D) of each prompt's own tokens, in fp32."""
    tokenizer = load_tokenizer(root / "tokenizer")
    longest = _LONGEST_TEXT + _TEMPLATE_TOKENS
    how: dict[str, Any] = {"max_length": longest, "truncation": True, "return_tensors": "pt"}
    encoder = _text_encoder(root / "text_encoder")
    states = []
    for text in texts:
        tokens = tokenizer([_TEMPLATE.format(text)], **how)
        with torch.inference_mode():
            out = encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True)
        states.append(out.hidden_states[-1][0, _TEMPLATE_TOKENS:].float())
    return states


def _text_encoder(folder: Path) -> Any:
    """Load transformers' Qwen2.5-VL of a folder in the dtype it is stored in; no code of the folder is run."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    how = {"local_files_only": True, "dtype": "auto"}
    try:
        return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, trust_remote_code=False, **how).eval()
    except Exception as e:  # transformers passes on whatever odd values lead to
        raise UserError(f"'{folder}' holds no Qwen2.5-VL that transformers can read ({first_line(e)}).") from e
