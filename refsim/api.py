"""The Python interface: attention on full tensors, and a whole checkpoint on real inputs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from refsim import launch
from refsim.config import DiTParallelConfig, parse_parallel
from refsim.errors import UserError
from refsim.launch import DEFAULT_TIMEOUT_S, Result
from refsim.mesh import MeshSpec, get_mesh

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
        ring, ulysses: factors; by default ring (or Ulysses) takes the whole of a 1-D mesh and axis 0 of a 2-D one.
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
) -> Result:
    """As :func:`simulate_attention`, with every option, returning the whole :class:`~refsim.launch.Result`.

    Args:
        tensors: ``q``, ``k``, ``v`` and optionally ``joint_q``, ``joint_k``, ``joint_v``.
        parallel: factors such as ``sp2_tp4`` instead of the default split.
        prompt: ``replicated`` or ``split`` over sp.
        schedule: ``gather``, ``step`` or ``block`` (see ``refsim.parallel.ring``).
        pad_heads: pad heads that Ulysses cannot split evenly instead of refusing them.
        delay: (seed, longest pause in seconds) before every send.
    """
    spec = get_mesh(mesh)
    storage = _dtype(dtype if dtype is not None else tensors["q"].dtype)
    _check_attention_shapes(tensors)
    if prompt not in ("replicated", "split"):
        raise UserError(f"prompt '{prompt}' does not exist; choose replicated or split.")
    if min(q_chunk_size, k_chunk_size) < 1:
        raise UserError(f"chunk sizes are 1 or more, not {q_chunk_size} and {k_chunk_size}.")
    n = tensors["q"].shape[2]
    rows = n if logical_n is None else logical_n
    if not 1 <= rows <= n:
        raise UserError(f"logical_n is between 1 and the {n} rows of q, not {rows}.")
    config = _attention_config(spec, scheme, parallel, ring, ulysses)
    heads = tensors["q"].shape[1]
    if not pad_heads:
        _refuse_uneven_heads(heads, config)
    for name, tensor in tensors.items():
        check_finite(name, tensor)
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
        )
    if result is None:
        raise UserError("simulate_attention answers on rank 0 only; under torchrun use refsim run.")
    return result


def _attention_config(
    mesh: MeshSpec, scheme: str, parallel: str | None, ring: int | None, ulysses: int | None
) -> DiTParallelConfig:
    if parallel is None:
        sp = (ring or 1) * (ulysses or 1)
        if ring is None and ulysses is None:
            sp = mesh.num_devices if mesh.is_1d else mesh.shape[0]
        tp = max(mesh.num_devices // sp, 1)
        parallel = f"sp{sp}_tp{tp}"
    return parse_parallel(parallel, mesh, attention=scheme, ring=ring, ulysses=ulysses)


def _refuse_uneven_heads(heads: int, config: DiTParallelConfig) -> None:
    from refsim.parallel.ulysses import cannot_split_heads

    if heads % config.tp:
        raise UserError(f"tp{config.tp} cannot split {heads} heads evenly; allow padding with --pad-heads.")
    if heads // config.tp % config.ulysses:
        raise UserError(cannot_split_heads(heads // config.tp, config.ulysses))


def _check_attention_shapes(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != 4 or 0 in tensor.shape:
            raise UserError(f"{name} must be (batch, heads, tokens, features), not {tuple(tensor.shape)}.")
    q = tensors["q"]
    for name in ("k", "v"):
        if tensors[name].shape != q.shape:
            raise UserError(f"{name} {tuple(tensors[name].shape)} must have the shape of q {tuple(q.shape)}.")
    joint = [name for name in ("joint_q", "joint_k", "joint_v") if name in tensors]
    if joint and len(joint) < 3:
        raise UserError(f"a prompt needs joint_q, joint_k and joint_v, not only {' and '.join(joint)}.")
    for name in joint:
        shape, like = tensors[name].shape, tensors["joint_q"].shape
        if shape != like or (shape[0], shape[1], shape[3]) != (q.shape[0], q.shape[1], q.shape[3]):
            wanted = f"({q.shape[0]}, {q.shape[1]}, tokens, {q.shape[3]})"
            raise UserError(f"{name} {tuple(shape)} must be {wanted}, the same for joint_q, joint_k and joint_v.")


def check_finite(name: str, tensor: Tensor) -> None:
    """``UserError`` that counts and locates what is not finite."""
    if not tensor.is_floating_point():
        return
    bad = ~torch.isfinite(tensor)
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        raise UserError(
            f"input {name} holds {int(bad.sum())} non-finite value(s), the first at {first}; inputs must be finite."
        )


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in (torch.float32, torch.bfloat16):
        raise UserError(f"dtype '{dtype}' is not supported; choose fp32 or bf16.")
    return found


@contextlib.contextmanager
def _as_file(tensors: dict[str, Tensor]) -> Iterator[Path]:
    """Tensors where every rank can map them; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="refsim-inputs-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "inputs.safetensors"
        safetensors.torch.save_file({k: t.detach().contiguous() for k, t in tensors.items()}, path)
        yield path
