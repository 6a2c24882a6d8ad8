"""A checkpoint on a ttnn backend, with the contract of ``refsim.run``: same arguments, same inputs, same outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.base import scratch
from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from refsim.base.finite import check_tensors
from refsim.base.options import RunOptions, as_options
from refsim.files import output
from tt_impl.run.launch import KINDS, Outcome, execute

if TYPE_CHECKING:
    from torch import Tensor


def run(
    checkpoint: str | Path,
    *,
    inputs: str | Path | dict[str, Tensor],
    options: RunOptions | None = None,
    guidance: float | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Outcome:
    """One forward of a diffusers checkpoint folder in bf16 on a ttnn backend.

    Args:
        checkpoint: folder with config.json and safetensors; its ``_class_name`` picks the model.
        inputs: safetensors file, or dict, with the names of the diffusers ``forward`` arguments.
        options: where and how it runs; the backend is ``ttnn-mock`` (no hardware, values all the same),
            ``ttnn-sim`` (ttsim) or ``ttnn-device`` (silicon).
        guidance: also return ``guided`` = uncond + guidance * (cond - uncond).
        out: safetensors file to write ``sample`` (and ``guided``) to.
        settings: instead of ``options``: ``mesh``, ``parallel`` and any other keyword of
            :meth:`refsim.base.options.RunOptions.of`; without a backend it is ``ttnn-mock``, without a dtype bf16.

    Raises:
        UserError: an option that a ttnn backend does not have, a file that is not there, ttnn is not installed, or
            the backend is not there.
        NotFiniteError: the answer holds NaN or infinity, and no mistake was planted (``options.fault``).
        RankFailure: ttnn refused the program, crashed or hung.
    """
    import safetensors.torch

    options = as_options(options, settings, backend="ttnn-mock", dtype="bf16")
    check_options(options)
    for path, name in ((checkpoint, "checkpoint"), (inputs, "inputs")):
        if isinstance(path, str | Path):
            refuse_unreadable(path, name)
        if isinstance(path, str | Path) and not Path(path).exists():
            raise UserError(f"{name} '{path}' does not exist; give the path of one that does.")
    if out is not None:
        read = [checkpoint] if isinstance(inputs, dict) else [checkpoint, inputs]
        output.check_target(Path(out), "out", *map(Path, read))
    _check_installed(options)
    with scratch.Folder("inputs") as folder:
        if isinstance(inputs, dict):
            path = Path(folder) / "inputs.safetensors"
            safetensors.torch.save_file({k: x.contiguous() for k, x in inputs.items()}, path)
            inputs = path
        outcome = execute(
            "tt_impl.pipelines.transformer:program",
            options,
            {
                "checkpoint": str(Path(checkpoint).absolute()),
                "inputs": str(Path(inputs).absolute()),
                "guidance": guidance,
            },
        )
    if not options.fault:
        check_tensors(outcome.tensors, f"it was computed on {options.backend}", "look at weights and guidance")
    if out is not None:
        output.write(out, safetensors.torch.save(outcome.tensors))
    return outcome


def run_pipeline(
    arguments: dict[str, Any], options: RunOptions, progress: Callable[[int, int], None] | None = None
) -> Outcome:
    """Run a pipeline folder in bf16 on a ttnn backend: ``frames`` and ``steps``, see ``tt_impl.pipelines.denoise``.

    Args:
        arguments: of that program; ``inputs`` is a file of what the pipeline's host prepared.
        progress: called with the number of denoising steps that are done and of all of them.

    Raises:
        UserError: an option that a ttnn backend does not have, a part of the folder that has no counterpart in TTNN,
            ttnn is not installed, or the backend is not there.
        RankFailure: ttnn refused the program, crashed or hung.
    """
    check_options(options)
    _check_installed(options)
    return execute("tt_impl.pipelines.denoise:program", options, arguments, progress=progress)


def _check_installed(options: RunOptions) -> None:
    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {options.backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )


def check_options(options: RunOptions) -> None:
    """``UserError`` for an option that a transformer on a ttnn backend does not have."""
    if options.backend not in KINDS:
        raise UserError(f"backend '{options.backend}' is not a ttnn one; choose one of {', '.join(KINDS)}.")
    if options.dtype != "bf16":
        raise UserError(f"backend {options.backend} stores bf16, not {options.dtype}; leave --dtype out or say bf16.")
    if options.ring_order != "step":  # which only refsim's own ranks can vary
        raise UserError(f"backend {options.backend} has --ring-order step only; leave out --ring-order.")
