"""Run under torchrun: diffusers objects as they are and parallelized, compared on every rank; one line of JSON each."""

from __future__ import annotations

import copy
import json
import os
import runpy
import sys

import torch

import refsim
from parity.kinds.cpu.pipeline import frames_and_steps
from refsim.base.errors import UserError
from tests.refsim.pipelines.test_sd3 import REQUEST
from tests.refsim.tiny import cogvideox, cogvideox_pipeline, wan_pipeline
from tests.refsim.tiny.sd3_pipeline import make_pipeline


def error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs).square().mean().sqrt() / theirs.double().std())


def cogvideox_table(parallel: str) -> dict[str, float]:
    """Compare the 2b transformer by itself with diffusers'; ``tokens`` are those that its second block sees."""
    model, inputs = cogvideox.make_model(False), cogvideox.make_inputs(13)
    expected = cogvideox.answer(copy.deepcopy(model), inputs, False)
    refsim.parallelize(model, parallel)
    tokens = []
    block = model.transformer_blocks[1]
    block.register_forward_pre_hook(
        lambda _, args, given: tokens.append(given["hidden_states"].shape[1]), with_kwargs=True
    )
    ours = cogvideox.answer(model, inputs, False)
    return {"sample": error(ours, expected), "tokens": tokens}


def video(make, parallel: str, frames: int, text: int) -> dict[str, float]:
    """Compare a pipeline of one of the two video families, up to its latents, with diffusers'."""

    def latents(pipe) -> torch.Tensor:
        generator, sizes = torch.Generator().manual_seed(7), {"height": 64, "width": 96, "num_frames": frames}
        run = {"num_inference_steps": 3, "guidance_scale": 3.5, "generator": generator, "output_type": "latent"}
        return pipe("a cat", "slow dog", **sizes, **run, max_sequence_length=text).frames

    return {"sample": error(latents(refsim.parallelize(make(), parallel)), latents(make()))}


def sd3(parallel: str) -> dict[str, float]:
    expected, steps = frames_and_steps(make_pipeline(), REQUEST)
    picture, ours = frames_and_steps(refsim.parallelize(make_pipeline(), parallel), REQUEST)
    return {"sample": error(ours, steps), "pixels": int((picture - expected).abs().max())}


def refused() -> dict[str, str]:
    """Collect what is said where the answer would be wrong."""
    model, inputs = refsim.parallelize(cogvideox.make_model(False)), cogvideox.make_inputs(13)
    attention = model.transformer_blocks[0].attn1

    def said(do) -> str:
        try:
            do()
        except UserError as e:
            return str(e)
        return "nothing"

    own_seed = torch.Generator().manual_seed(int(os.environ["RANK"]))
    other = {**inputs, "hidden_states": torch.randn(inputs["hidden_states"].shape, generator=own_seed)}
    found = {
        "latents": said(lambda: cogvideox.answer(model, other, False)),
        "twice": said(lambda: refsim.parallelize(model)),
    }
    for name, processor in {"backend": Eager(), "mask": Masked()}.items():
        attention.processor._original = processor
        found[name] = said(lambda: cogvideox.answer(model, inputs, False))
    return found


class Eager:
    """A processor that computes attention by itself."""

    def __call__(self, attn, hidden_states, encoder_hidden_states, **_):
        return hidden_states, encoder_hidden_states


class Masked:
    """A processor that masks the future."""

    def __call__(self, attn, hidden_states, encoder_hidden_states, **_):
        x = hidden_states.unsqueeze(1)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def main() -> None:
    found = {
        "sd3": sd3("ulysses2_ring2"),
        "cogvideox_2b_transformer": cogvideox_table("ring4"),
        "cogvideox": video(lambda: cogvideox_pipeline.make_pipeline(rotary=True), "ulysses2_ring2", 9, 13),
        "wan": video(wan_pipeline.make_pipeline, "ulysses4", 5, 40),  # both experts run
        "refused": refused(),
    }
    with open(os.path.join(sys.argv[1], f"{os.environ['RANK']}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)
    folder, example = sys.argv[1:]
    sys.argv = [example, "--check", "--parallel", "ring2_ulysses2", "--out", os.path.join(folder, "picture.png")]
    runpy.run_path(example, run_name="__main__")


if __name__ == "__main__":
    main()
