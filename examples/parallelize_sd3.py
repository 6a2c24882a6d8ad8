"""A diffusers Stable Diffusion 3 pipeline, its transformer sequence-parallel over four processes.

    torchrun --nproc-per-node 4 examples/parallelize_sd3.py [PIPELINE_DIR] [--parallel ulysses2_ring2] [--check]

Without a folder a tiny pipeline with random weights and random prompt embeddings is run, which takes seconds. --check
runs the pipeline as it was as well and compares the pictures on every rank.
"""

from __future__ import annotations

import argparse
import os

import diffusers
import numpy
import torch

import refsim


def tiny_pipeline() -> diffusers.StableDiffusion3Pipeline:
    """Random weights, no text encoders."""
    torch.manual_seed(0)
    transformer = diffusers.SD3Transformer2DModel(
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
    )
    vae = diffusers.AutoencoderKL(
        latent_channels=16,
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        scaling_factor=1.5305,
        shift_factor=0.0609,
    )
    encoders = dict.fromkeys(f"{part}{n}" for part in ("text_encoder", "tokenizer") for n in ("", "_2", "_3"))
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(), vae=vae.eval(), scheduler=scheduler, **encoders
    )


def tiny_prompt() -> dict[str, torch.Tensor]:
    """Random embeddings of 29 tokens, in place of a prompt."""
    g = torch.Generator().manual_seed(1)
    sizes = {"prompt_embeds": (1, 29, 32), "pooled_prompt_embeds": (1, 24)}
    sizes |= {f"negative_{name}": size for name, size in sizes.items()}
    return {**{name: torch.randn(size, generator=g) for name, size in sizes.items()}, "height": 24, "width": 40}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="a pipeline saved by diffusers")
    parser.add_argument("--parallel", default="ulysses2_ring2")
    parser.add_argument("--prompt", default="a cat runs over green hills")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--check", action="store_true", help="compare with the pipeline as it was")
    parser.add_argument("--out", help="where rank 0 writes the picture")
    options = parser.parse_args()

    if options.folder:
        pipe = diffusers.StableDiffusion3Pipeline.from_pretrained(options.folder, trust_remote_code=False)
        asked = {"prompt": options.prompt}
    else:
        pipe = tiny_pipeline()
        asked = tiny_prompt()
    rank = int(os.environ.get("RANK", "0"))
    pipe.set_progress_bar_config(disable=rank > 0)

    def picture() -> numpy.ndarray:
        generator = torch.Generator().manual_seed(0)  # the same noise on every rank
        return pipe(**asked, num_inference_steps=options.steps, generator=generator, output_type="np").images[0]

    expected = picture() if options.check else None
    refsim.parallelize(pipe, options.parallel)
    ours = picture()
    if rank == 0:
        print(f"picture of {ours.shape[0]}x{ours.shape[1]} over {os.environ['WORLD_SIZE']} ranks, {options.parallel}")
        if options.out:
            pipe.numpy_to_pil(ours)[0].save(options.out)
    if expected is not None:
        difference = float(numpy.abs(ours - expected).max()) * 255
        print(f"rank {rank}: largest difference of a pixel {difference:.6f} of 255")
        if not difference <= 1:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
