"""One forward of a transformer whose checkpoint is one file with its authors' names, judged by diffusers.

diffusers has a converter of its own for such files. What it makes of the file has to be, weight by weight, the folder
that its model computes the answer from.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity.cases import Case, Layout
from parity.kinds.base import Metrics, ModelKind, is_refused
from parity.kinds.cpu.transformer import compare_samples, transformer_inputs
from parity.measure.thresholds import FINITE, REPLICAS, SAME_ARITHMETIC, Threshold
from refsim import api
from refsim.base import scratch
from refsim.models.registry import open_checkpoint
from refsim.runtime.launch import Result

BLOCK = {"norm1.linear": "x_block.adaLN_modulation.1", "norm1_context.linear": "context_block.adaLN_modulation.1"}
BLOCK |= {"ff.net.0.proj": "x_block.mlp.fc1", "ff.net.2": "x_block.mlp.fc2"}
BLOCK |= {"ff_context.net.0.proj": "context_block.mlp.fc1", "ff_context.net.2": "context_block.mlp.fc2"}
BLOCK |= {"attn.norm_q": "x_block.attn.ln_q", "attn.norm_k": "x_block.attn.ln_k", "attn.to_out.0": "x_block.attn.proj"}
BLOCK |= {"attn.norm_added_q": "context_block.attn.ln_q", "attn.norm_added_k": "context_block.attn.ln_k"}
BLOCK |= {"attn.to_add_out": "context_block.attn.proj", "attn2.to_out.0": "x_block.attn2.proj"}
BLOCK |= {"attn2.norm_q": "x_block.attn2.ln_q", "attn2.norm_k": "x_block.attn2.ln_k"}
REST = {"pos_embed.proj": "x_embedder.proj", "context_embedder": "context_embedder", "proj_out": "final_layer.linear"}
REST |= {f"time_text_embed.timestep_embedder.linear_{n + 1}": f"t_embedder.mlp.{2 * n}" for n in (0, 1)}
REST |= {f"time_text_embed.text_embedder.linear_{n + 1}": f"y_embedder.mlp.{2 * n}" for n in (0, 1)}
REST |= {"norm_out.linear": "final_layer.adaLN_modulation.1"}
QKV = {"attn.to_q": "x_block.attn", "attn.add_q_proj": "context_block.attn", "attn2.to_q": "x_block.attn2"}


def authors_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of Stable Diffusion 3's transformer by the names that a file of its authors has."""
    last = max(int(match[1]) for name in state if (match := re.match(r"transformer_blocks\.(\d+)\.", name)))
    renamed = {"pos_embed": state["pos_embed.pos_embed"]}
    for name, x in state.items():
        module, _, kind = name.rpartition(".")
        block = re.fullmatch(r"transformer_blocks\.(\d+)\.(.+)", module)
        if block and block[2] in QKV:
            parts = (state[name], state[name.replace("q", "k")], state[name.replace("q", "v")])
            renamed[f"joint_blocks.{block[1]}.{QKV[block[2]]}.qkv.{kind}"] = torch.cat(parts)
        elif block and block[2] in BLOCK:
            swapped = module == f"transformer_blocks.{last}.norm1_context.linear"
            renamed[f"joint_blocks.{block[1]}.{BLOCK[block[2]]}.{kind}"] = shift_first(x) if swapped else x
        elif module in REST:
            renamed[f"{REST[module]}.{kind}"] = shift_first(x) if module == "norm_out.linear" else x
    return {f"model.diffusion_model.{name}": x.contiguous() for name, x in renamed.items()}


def shift_first(x: Tensor) -> Tensor:
    """Put the shift first in rows of a modulation that diffusers has with the scale first."""
    return torch.cat(x.chunk(2)[::-1])


class SingleFile(ModelKind):
    """Latents in, latents out, the weights from one file."""

    thresholds: ClassVar = {
        "fp32": (
            *SAME_ARITHMETIC,
            Threshold("accepted", 0, "a file of other names, and a variant of a file, are refused, or they are not"),
            Threshold("wrong_weights", 0, "diffusers' converter makes of the file what its model computes with"),
            REPLICAS,
            FINITE,
        )
    }

    inputs = staticmethod(transformer_inputs)

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        tensors = self._tensors(case, seed)
        options = layout.options(case.dtype, **more)
        with scratch.Folder("single-file") as folder:
            path = Path(folder) / "model.safetensors"
            save_file(tensors | {"first_stage_model.decoder.conv_in.weight": torch.ones(3)}, path)
            result = api.run(path, inputs=self.inputs(case, seed), options=options)
            accepted = not is_refused(partial(open_checkpoint, path, "fp16"), "no variants")
            save_file({"layers.0.weight": torch.ones(3)}, path)
            accepted += not is_refused(partial(open_checkpoint, path), "no known layout (SD3Transformer2DModel)")
        result.value["accepted"] = accepted
        return result

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers as convert

        state = self._state(case, seed)
        converted = convert(self._tensors(case, seed))
        wrong = len(state.keys() ^ converted.keys())
        wrong += sum(not torch.equal(state[name], converted[name]) for name in state.keys() & converted.keys())
        return super().measure(case, seed, result) | {"accepted": result.value["accepted"], "wrong_weights": wrong}

    def compare(self, case: Case, out: Tensor, ref: Tensor) -> Metrics:
        return compare_samples(case, out, ref)

    def _state(self, case: Case, seed: int) -> dict[str, Tensor]:
        files = sorted(self.store.folder(case.model, seed).glob("*.safetensors"))
        return {name: x for file in files for name, x in load_file(file).items()}

    def _tensors(self, case: Case, seed: int) -> dict[str, Tensor]:
        return authors_names(self._state(case, seed))
