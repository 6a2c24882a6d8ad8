"""Attention of full tensors, as a mesh would compute it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refsim.api.inputs import as_file
from refsim.api.refuse_nan import check_answer
from refsim.api.validate import check_attention_tensors, refuse_uneven_heads
from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, get_mesh
from refsim.base.options import RunOptions, as_options
from refsim.runtime import launch
from refsim.runtime.launch import Result


def simulate_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    joint: tuple[Tensor, Tensor, Tensor] | None = None,
    scheme: str = "ring",
    logical_n: int | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Compute attention of full tensors as the mesh would.

    Args:
        q, k, v: (B, H, N, E), equal shapes; cut into sp shards of equal rows (padded to tiles).
        joint: the prompt's (q, k, v), (B, H, L, E) each, attended by and attending to everything. It may also be given
            as ``joint_q``, ``joint_k`` and ``joint_v``. ``joint_mask``, bool (B, L), says which of its tokens are keys
            of which sample, in any pattern; all by default.
        scheme: ``ring``, ``ulysses`` or ``usp``; the devices that sp = ring x ulysses leaves over split the heads (tp).
            By default ring (or Ulysses) takes the whole of a 1-D mesh and axis 0 of a 2-D one, and usp puts ring on
            axis 0 and ulysses on axis 1.
        logical_n: number of real rows; keys from there on are masked. Default N.
        options: where and how it runs; ``scheme`` does not count then.
        settings: instead of ``options``: ``mesh`` and any other keyword of :meth:`refsim.base.options.RunOptions.of`;
            without ``dtype``, that of q.

    Returns:
        (out, joint_out, lse): (B, H, N, E), (B, H, L, E) or None, and (B, H, N + L) in fp32, natural logarithm,
        the prompt's rows at the rear.

    Raises:
        UserError: shapes, factors or values that do not fit.
        NotFiniteError: the answer holds NaN or infinity.
        RankFailure: a rank died, raised or hung.
    """
    tensors = {"q": q, "k": k, "v": v}
    names = ("joint_q", "joint_k", "joint_v", "joint_mask")
    apart = {name: settings.pop(name) for name in names if name in settings}
    prompt = apart if joint is None else apart | dict(zip(names[:3], joint, strict=True))
    tensors |= {name: x for name, x in prompt.items() if x is not None}
    if options is None:
        settings["scheme"] = scheme
    result = attention_result(tensors, options=options, logical_n=logical_n, **settings)
    return result.tensors["out"], result.tensors.get("joint_out"), result.tensors["lse"]


def attention_result(
    tensors: dict[str, Tensor], *, options: RunOptions | None = None, logical_n: int | None = None, **settings: Any
) -> Result:
    """Do as :func:`simulate_attention` and return the whole :class:`~refsim.runtime.launch.Result`.

    Args:
        tensors: ``q``, ``k``, ``v`` and optionally ``joint_q``, ``joint_k``, ``joint_v`` and ``joint_mask``.
        options, settings: a :class:`RunOptions`, or its keywords with ``scheme``.
    """
    if options is None and "scheme" in settings:
        options = attention_options(**{"dtype": getattr(tensors["q"], "dtype", None), **settings})
        settings = {}
    options = as_options(options, settings)
    check_attention_tensors(tensors, options.storage)
    n = tensors["q"].shape[2]
    rows = n if logical_n is None else logical_n
    if not 1 <= rows <= n:
        raise UserError(f"logical_n is between 1 and the {n} rows of q, not {rows}.")
    if not options.pad_heads:
        refuse_uneven_heads(tensors["q"].shape[1], options.parallel)
    stored = {k: t if t.dtype is torch.bool else t.to(options.storage) for k, t in tensors.items()}
    with as_file(stored) as path:
        arguments = {"inputs": str(path), "logical_n": rows}
        result = launch.execute("refsim.pipelines.attention:program", options, arguments)
    check_answer(result, options)
    if result is None:
        raise UserError("simulate_attention answers on rank 0 only; under torchrun use refsim run.")
    return result


def attention_options(
    scheme: str,
    *,
    mesh: str | MeshSpec,
    parallel: str | None = None,
    ring: int | None = None,
    ulysses: int | None = None,
    **rest: Any,
) -> RunOptions:
    """Return the options of an attention alone: sp as the scheme wants it, tp over what is left of the mesh."""
    spec = get_mesh(mesh)
    if parallel is None:
        if scheme == "usp" and ring is None and ulysses is None:
            ring, ulysses = spec.shape
        if scheme == "usp" and (ring is None or ulysses is None):
            sp = spec.num_devices
        elif ring is None and ulysses is None:
            sp = spec.num_devices if spec.is_1d else spec.shape[0]
        else:
            sp = (ring or 1) * (ulysses or 1)
        parallel = f"sp{sp}_tp{max(spec.num_devices // sp, 1)}"
    return as_options(
        None, {"mesh": spec, "parallel": parallel, "attention": scheme, "ring": ring, "ulysses": ulysses, **rest}
    )
