"""The Python interface: attention on full tensors, and a whole checkpoint on real inputs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from refsim import launch, output
from refsim.config import DiTParallelConfig, parse_parallel
from refsim.errors import UserError
from refsim.launch import DEFAULT_TIMEOUT_S, Result
from refsim.mesh import MeshSpec, get_mesh
from refsim.parallel.usp import VAEParallel
from refsim.validate import check_attention_tensors, check_options, check_run, refuse_uneven_heads

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


def simulate_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: str | MeshSpec,
    scheme: str,
    ring: int | None = None,
    ulysses: int | None = None,
    joint_q: Tensor | None = None,
    joint_k: Tensor | None = None,
    joint_v: Tensor | None = None,
    logical_n: int | None = None,
    dtype: str | torch.dtype | None = None,
    **options,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Attention of full tensors as the mesh would compute it.

    Args:
        q, k, v: (B, H, N, E), equal shapes; cut into sp shards of equal rows (padded to tiles).
        mesh: name or MeshSpec.
        scheme: ``ring``, ``ulysses`` or ``usp``; the devices that sp = ring x ulysses leaves over split the heads (tp).
        ring, ulysses: factors; by default ring (or Ulysses) takes the whole of a 1-D mesh and axis 0 of a 2-D one,
            and usp puts ring on axis 0 and ulysses on axis 1.
        joint_q, joint_k, joint_v: prompt (B, H, L, E), attended by and attending to everything.
        logical_n: number of real rows; keys from there on are masked. Default N.
        dtype: ``fp32`` or ``bf16`` storage; default that of q.
        options: see :func:`attention_result`.

    Returns:
        (out, joint_out, lse): (B, H, N, E), (B, H, L, E) or None, and (B, H, N + L) in fp32, natural logarithm,
        the prompt's rows at the rear.

    Raises:
        UserError: shapes, factors or values that do not fit.
        RankFailure: a rank died, raised or hung.
    """
    tensors = {"q": q, "k": k, "v": v, "joint_q": joint_q, "joint_k": joint_k, "joint_v": joint_v}
    result = attention_result(
        {name: t for name, t in tensors.items() if t is not None},
        mesh=mesh,
        scheme=scheme,
        ring=ring,
        ulysses=ulysses,
        logical_n=logical_n,
        dtype=dtype,
        **options,
    )
    return result.tensors["out"], result.tensors.get("joint_out"), result.tensors["lse"]


def attention_result(
    tensors: dict[str, Tensor],
    *,
    mesh: str | MeshSpec,
    scheme: str,
    ring: int | None = None,
    ulysses: int | None = None,
    parallel: str | None = None,
    logical_n: int | None = None,
    dtype: str | torch.dtype | None = None,
    prompt: str = "replicated",
    schedule: str = "step",
    pad_heads: bool = True,
    q_chunk_size: int = 256,
    k_chunk_size: int = 512,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    trace: bool = False,
    delay: tuple[int, float] | None = None,
    fault: str = "",
) -> Result:
    """As :func:`simulate_attention`, with every option, returning the whole :class:`~refsim.launch.Result`.

    Args:
        tensors: ``q``, ``k``, ``v`` and optionally ``joint_q``, ``joint_k``, ``joint_v``.
        parallel: factors such as ``sp2_tp4`` instead of the default split.
        prompt: ``replicated`` or ``split`` over sp.
        schedule: ``gather``, ``step`` or ``block`` (see ``refsim.parallel.ring``).
        pad_heads: pad heads that Ulysses cannot split evenly instead of refusing them.
        delay, fault: see :func:`refsim.launch.execute`.
    """
    spec = get_mesh(mesh)
    storage = _dtype(dtype if dtype is not None else tensors["q"].dtype)
    check_attention_tensors(tensors)
    check_options(prompt, schedule, q_chunk_size, k_chunk_size, timeout_s)
    n = tensors["q"].shape[2]
    rows = n if logical_n is None else logical_n
    if not 1 <= rows <= n:
        raise UserError(f"logical_n is between 1 and the {n} rows of q, not {rows}.")
    config = _attention_config(spec, scheme, parallel, ring, ulysses)
    heads = tensors["q"].shape[1]
    if not pad_heads:
        refuse_uneven_heads(heads, config)
    with _as_file({k: t.to(storage) for k, t in tensors.items()}) as path:
        result = launch.execute(
            "refsim.pipelines.attention:program",
            spec,
            config,
            {
                "inputs": str(path),
                "dtype": str(storage).removeprefix("torch."),
                "logical_n": rows,
                "split_prompt": prompt == "split",
                "schedule": schedule,
                "pad_heads": pad_heads,
                "chunks": (q_chunk_size, k_chunk_size),
            },
            timeout_s=timeout_s,
            keep_trace=trace,
            delay=delay,
            fault=fault,
        )
    if result is None:
        raise UserError("simulate_attention answers on rank 0 only; under torchrun use refsim run.")
    return result


def _attention_config(
    mesh: MeshSpec, scheme: str, parallel: str | None, ring: int | None, ulysses: int | None
) -> DiTParallelConfig:
    if parallel is None:
        if scheme == "usp" and ring is None and ulysses is None:
            ring, ulysses = mesh.shape
        if scheme == "usp" and (ring is None or ulysses is None):
            sp = mesh.num_devices
        elif ring is None and ulysses is None:
            sp = mesh.num_devices if mesh.is_1d else mesh.shape[0]
        else:
            sp = (ring or 1) * (ulysses or 1)
        parallel = f"sp{sp}_tp{max(mesh.num_devices // sp, 1)}"
    return parse_parallel(parallel, mesh, attention=scheme, ring=ring, ulysses=ulysses)


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in (torch.float32, torch.bfloat16):
        raise UserError(f"dtype '{dtype}' is not supported; choose fp32 or bf16.")
    return found


@contextlib.contextmanager
def _as_file(tensors: dict[str, Tensor]) -> Iterator[Path]:
    """Tensors where every rank can map them; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="inputs-", dir=launch.scratch_dir(), ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "inputs.safetensors"
        copies = {k: t.detach().clone(memory_format=torch.contiguous_format) for k, t in tensors.items()}
        safetensors.torch.save_file(copies, path)
        yield path


def run(
    checkpoint: str | Path,
    *,
    inputs: str | Path | dict[str, Tensor],
    mesh: str | MeshSpec,
    parallel: str = "sp1",
    attention: str = "ring",
    ring: int | None = None,
    ulysses: int | None = None,
    guidance: float | None = None,
    dtype: str | torch.dtype = "fp32",
    prompt: str = "replicated",
    schedule: str = "step",
    pad_heads: bool = True,
    q_chunk_size: int = 256,
    k_chunk_size: int = 512,
    vae_parallel: VAEParallel = "spatial",
    out: str | Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    trace: bool = False,
    delay: tuple[int, float] | None = None,
    fault: str = "",
) -> Result | None:
    """One forward of a diffusers checkpoint folder on a mesh.

    Args:
        checkpoint: folder with config.json and safetensors; its ``_class_name`` picks the model.
        inputs: safetensors file, or dict, with the names of the diffusers ``forward`` arguments. With cfg
            parallelism the batch is split over the groups, negative first.
        mesh, parallel, attention, ring, ulysses: see :func:`refsim.config.parse_parallel`.
        guidance: also return ``guided`` = uncond + guidance * (cond - uncond).
        dtype: storage of weights and activations, ``fp32`` or ``bf16``.
        prompt: ``replicated`` on every member of sp, or ``split`` over it.
        schedule, pad_heads, q_chunk_size, k_chunk_size, timeout_s, trace, delay, fault: see :func:`attention_result`.
        vae_parallel: what tp cuts of an image's decoder, columns (``spatial``) or channels (``tensor``).
        out: safetensors file to write ``sample`` (and ``guided``) to.

    Returns:
        Result with tensors ``sample`` (the whole batch, as the diffusers forward returns it) and ``guided``, and
        ``value["digests"]``, one per rank; None on torchrun's ranks above 0.

    Raises:
        UserError: anything that does not fit, found before a rank is started where possible.
        RankFailure: a rank died, raised or hung.
    """
    spec = get_mesh(mesh)
    config = parse_parallel(parallel, spec, attention=attention, ring=ring, ulysses=ulysses)
    storage = _dtype(dtype)
    check_options(prompt, schedule, q_chunk_size, k_chunk_size, timeout_s, vae_parallel)
    with contextlib.ExitStack() as stack:
        if isinstance(inputs, dict):
            inputs = stack.enter_context(_as_file(inputs))
        check_run(
            checkpoint,
            Path(inputs),
            spec,
            config,
            split_prompt=prompt == "split",
            pad_heads=pad_heads,
            guidance=guidance,
            vae_parallel=vae_parallel,
        )
        result = launch.execute(
            "refsim.pipelines.transformer:program",
            spec,
            config,
            {
                "checkpoint": str(checkpoint),
                "inputs": str(inputs),
                "dtype": str(storage).removeprefix("torch."),
                "guidance": guidance,
                "split_prompt": prompt == "split",
                "schedule": schedule,
                "pad_heads": pad_heads,
                "chunks": (q_chunk_size, k_chunk_size),
                "vae_parallel": vae_parallel,
            },
            timeout_s=timeout_s,
            keep_trace=trace,
            delay=delay,
            fault=fault,
        )
    if result is not None:
        result.value["digests"] = [value["digest"] for value in result.values]
    if result is not None and out is not None:
        output.write(out, safetensors.torch.save(result.tensors))
    return result
