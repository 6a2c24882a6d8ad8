"""One forward of a checkpoint folder on real inputs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from refsim.api.inputs import as_file, asked_variant
from refsim.api.refuse_nan import check_answer
from refsim.api.validate import check_run
from refsim.base.errors import UserError
from refsim.base.options import RunOptions, as_options
from refsim.files import output
from refsim.files.folder import ModelFolder
from refsim.models.registry import look_at
from refsim.runtime import launch
from refsim.runtime.launch import Result


def run(
    checkpoint: str | Path | ModelFolder,
    *,
    inputs: str | Path | dict[str, Tensor],
    options: RunOptions | None = None,
    guidance: float | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Result | None:
    """Run one forward of a diffusers checkpoint folder on a mesh.

    Args:
        checkpoint: folder with config.json and safetensors, whose ``_class_name`` picks the model; or one file that a
            model's spec can read (``single_file``); or what :func:`refsim.models.registry.look_at` found there.
        inputs: safetensors file, or dict, with the names of the diffusers ``forward`` arguments. With cfg
            parallelism the batch is split over the groups, negative first.
        options: where and how it runs.
        guidance: also return ``guided`` = uncond + guidance * (cond - uncond).
        out: safetensors file to write ``sample`` (and ``guided``) to.
        settings: instead of ``options``: ``mesh``, ``parallel`` and any other keyword of
            :meth:`refsim.base.options.RunOptions.of`.

    Returns:
        Result with tensors ``sample`` (the whole batch, as the diffusers forward returns it) and ``guided``, and
        ``value["digests"]``, one per rank; None on torchrun's ranks above 0.

    Raises:
        UserError: anything that does not fit, found before a rank is started where possible.
        NotFiniteError: the answer holds NaN or infinity.
        RankFailure: a rank died, raised or hung.
    """
    folder = look_at(checkpoint, asked_variant(options, settings))
    options = as_options(options, settings)
    if options.backend != "cpu":
        raise UserError(f"refsim.run computes on refsim's own ranks; for {options.backend} call tt_impl.api.run.")
    if out is not None:
        read = [folder.path] if isinstance(inputs, dict) else [folder.path, inputs]
        output.check_target(Path(out), "out", *map(Path, read))
    with contextlib.ExitStack() as stack:
        if isinstance(inputs, dict):
            inputs = stack.enter_context(as_file(inputs))
        check_run(folder, Path(inputs), options, guidance=guidance)
        arguments = {"checkpoint": str(folder.path), "inputs": str(inputs), "guidance": guidance}
        result = launch.execute("refsim.pipelines.transformer:program", options, arguments)
    check_answer(result, options)
    if result is not None:
        result.value["digests"] = [value["digest"] for value in result.values]
    if result is not None and out is not None:
        output.write(out, safetensors.torch.save(result.tensors))
    return result
