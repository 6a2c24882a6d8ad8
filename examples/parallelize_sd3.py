"""A diffusers Stable Diffusion 3 pipeline, its transformer sequence-parallel over four processes.

    torchrun --nproc-per-node 4 examples/parallelize_sd3.py [PIPELINE_DIR] [--parallel ulysses2_ring2] [--check]

Without a folder a tiny random transformer is run on random inputs, which takes seconds and shows the same.
"""

from __future__ import annotations

import argparse
import copy
import os

import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline

import refsim


def tiny() -> SD3Transformer2DModel:
    torch.manual_seed(0)
    return SD3Transformer2DModel(
        sample_size=16,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=4,
        caption_projection_dim=64,
        joint_attention_dim=32,
        pooled_projection_dim=24,
        pos_embed_max_size=24,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    ).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="a pipeline saved by diffusers")
    parser.add_argument("--parallel", default="ulysses2_ring2")
    parser.add_argument("--prompt", default="a cat runs over green hills")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="compare with the pipeline as it was")
    options = parser.parse_args()
    first = os.environ.get("RANK") == "0"

    if options.folder:
        pipe = StableDiffusion3Pipeline.from_pretrained(options.folder)

        def run(pipe):
            generator = torch.Generator().manual_seed(0)
            images = pipe(options.prompt, num_inference_steps=options.steps, generator=generator, output_type="np")
            return torch.from_numpy(images.images[0])

    else:
        pipe = tiny()
        g = torch.Generator().manual_seed(1)
        inputs = {
            "hidden_states": torch.randn(2, 16, 12, 20, generator=g),
            "encoder_hidden_states": torch.randn(2, 29, 32, generator=g),
            "pooled_projections": torch.randn(2, 24, generator=g),
            "timestep": torch.tensor([700.0, 700.0]),
        }

        def run(transformer):
            with torch.no_grad():
                return transformer(**inputs, return_dict=False)[0]

    expected = run(copy.deepcopy(pipe)) if options.check else None
    answer = run(refsim.parallelize(pipe, options.parallel))
    if first:
        print(f"{tuple(answer.shape)} over {os.environ['WORLD_SIZE']} ranks, {options.parallel}")
    if expected is not None:
        error = float((answer - expected).square().mean().sqrt() / expected.std())
        print(f"rank {os.environ['RANK']}: relative RMSE {error:.2e}")
        if not error < 5e-6:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
