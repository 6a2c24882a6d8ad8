"""One transformer block on given streams; counterpart of ``refsim.pipelines.block``."""

from __future__ import annotations

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.registry import spec_of_checkpoint
from refsim.models.spec import resolve
from tt_impl.layers.linear import pad_to
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.sequence import put_prompt, put_tokens
from tt_impl.parallel.tensor import gather_features
from tt_impl.pipelines.transformer import submeshes


def program(
    device: ttnn.MeshDevice, options: RunOptions, *, checkpoint: Checkpoint, inputs: dict[str, torch.Tensor], index: int
) -> dict[str, torch.Tensor]:
    """Run block ``index`` of the model that the checkpoint's class names.

    ``inputs`` are ``spatial`` (B, N, D), ``prompt`` (B, L, D or a width of its own), ``time`` (B, D) with silu applied,
    and what the model's blocks take besides. Returns ``spatial`` and, unless the block drops it, ``prompt`` after the
    block, whole.

    With cfg parallelism every group computes the same block; the first one's answer is returned.
    """
    spec = spec_of_checkpoint(checkpoint)
    if spec.ttnn_block is None:
        raise UserError(f"{checkpoint.class_name} has no blocks in TTNN; run them on refsim's own ranks.")
    model = checkpoint.as_config(spec.config_class)
    ctx = Context(submeshes(device, options)[0], options)
    block = resolve(spec.ttnn_block)(Weights(checkpoint, torch.bfloat16), ctx, model, index, inputs)
    rows = inputs["spatial"].shape[1]
    widths = {name: inputs[name].shape[2] for name in ("spatial", "prompt")}
    streams = {name: pad_to(inputs[name], padded_features(width, ctx.tp)) for name, width in widths.items()}
    spatial, prompt = block(
        put_tokens(ctx, streams["spatial"], tp_dim=3),
        put_prompt(ctx, streams["prompt"], tp_dim=3),
        ctx.put(inputs["time"][:, None, None]),
    )
    result = {"spatial": ctx.get(gather_features(ctx, spatial), sp_dim=2)[:, 0, :rows, : widths["spatial"]]}
    if prompt is not None:
        gathered = gather_features(ctx, prompt)
        whole = ctx.get(gathered, sp_dim=2) if options.splits_prompt else ctx.get_equal(gathered)
        result["prompt"] = whole[:, 0, : inputs["prompt"].shape[1], : widths["prompt"]]
    return result
