"""A checkpoint through the device wing, with the contract of ``refsim.run``: same inputs, same outputs."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from refsim import output
from refsim.config import DiTParallelConfig
from refsim.errors import UserError
from refsim.mesh import MeshSpec
from tt_impl.launch import KINDS, Outcome, execute

if TYPE_CHECKING:
    from torch import Tensor


def run(
    checkpoint: str | Path,
    *,
    inputs: str | Path | dict[str, Tensor],
    mesh: MeshSpec,
    config: DiTParallelConfig,
    backend: str,
    guidance: float | None = None,
    out: str | Path | None = None,
    timeout_s: float = 300.0,
) -> Outcome:
    """One forward of a diffusers checkpoint folder in bf16 on a ttnn backend.

    Args:
        inputs: safetensors file, or dict, with the names of the diffusers ``forward`` arguments.
        backend: ``ttnn-mock`` (no hardware, golden values), ``ttnn-sim`` (ttsim) or ``ttnn-device`` (silicon).
        out: safetensors file to write ``sample`` (and ``guided``) to.

    Raises:
        UserError: ttnn is not installed, or the backend is not there.
        RankFailure: ttnn refused the program, crashed or hung.
    """
    import safetensors.torch

    if backend not in KINDS:
        raise UserError(f"backend '{backend}' does not exist; choose one of {', '.join(KINDS)}.")
    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )
    with tempfile.TemporaryDirectory(prefix="refsim-inputs-", ignore_cleanup_errors=True) as folder:
        if isinstance(inputs, dict):
            path = Path(folder) / "inputs.safetensors"
            safetensors.torch.save_file({k: x.contiguous() for k, x in inputs.items()}, path)
            inputs = path
        outcome = execute(
            "tt_impl.pipelines.transformer:program",
            mesh,
            config,
            {
                "checkpoint": str(Path(checkpoint).absolute()),
                "inputs": str(Path(inputs).absolute()),
                "guidance": guidance,
            },
            backend=backend,
            timeout_s=timeout_s,
        )
    if out is not None:
        output.write(out, safetensors.torch.save(outcome.tensors))
    return outcome
