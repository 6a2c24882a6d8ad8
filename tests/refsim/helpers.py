"""What several test modules share: configurations by short text, groups of a whole mesh, and the serial answer."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from refsim.base.config import DiTParallelConfig
from refsim.base.mesh import MESHES, MeshSpec, Topology
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.runtime.group import Group, parallel_groups
from refsim.runtime.launch import Result, execute

TIMEOUT_S = 30.0
LSE_BOUND = 4 * torch.finfo(torch.float32).eps


class Held(ShapeWeights):
    """Weights from a dict of whole tensors, without a folder; for models on one device."""

    def __init__(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._tensors = tensors

    def take(self, name: str, shape: tuple[int, ...], *ranges: tuple[int, int] | None) -> Tensor:
        """Return the tensor ``name``, which must have ``shape``, or a slice of it."""
        assert tuple(self._tensors[name].shape) == shape, name
        return self._tensors[name][tuple(slice(*r) if r else slice(None) for r in ranges)].to(self._dtype)


def assert_steps_agree(said: str, steps: int) -> None:
    """``refsim run --check`` printed that many denoising steps, none further off than rounding in fp32.

    1 - PCC is about half the square of the relative error: 1e-11 allows one of 4.5e-6. 7.5e-13 (1.2e-6) was measured on
    one processor, less than 5e-13 on another.
    """
    found = [float(pcc) for pcc in re.findall(r"step +\d+  PCC (\S+)", said)]
    assert len(found) == steps and all(pcc >= 1 - 1e-11 for pcc in found), found


def run(program: str, mesh: str, parallel: str, arguments: dict[str, Any] | None = None, **options) -> Result:
    """Run ``program`` of ``tests.refsim.programs``, or ``other_file:program`` beside it, on every rank.

    ``options`` are those of ``RunOptions.of``.
    """
    options = RunOptions.of(mesh=mesh, parallel=parallel, **{"timeout_s": TIMEOUT_S, **options})
    module = program if ":" in program else f"programs:{program}"
    return execute(f"tests.refsim.{module}", options, arguments or {})


def groups_of(mesh: MeshSpec, config: DiTParallelConfig) -> list[dict[str, Group]]:
    """Make the groups of every rank of the mesh."""
    return [parallel_groups(mesh, config, rank) for rank in range(mesh.num_devices)]


def sent(of_rank: dict[str, int], collective: str, group: str) -> int:
    """Bytes one rank sent over ``group`` inside ``collective``, whatever that is nested in or made of."""
    found = 0
    for key, count in of_rank.items():
        path, _, name = key.rpartition("@")
        found += count if collective in path.split("/") and name == group else 0
    return found


def passing_on_bytes(group: Group, size: int) -> int:
    """Bytes a member sends when every member's ``size`` bytes travel to all others, neighbour by neighbour."""
    n, i = group.size, group.index
    if n == 1:
        return 0
    if group.topology is Topology.RING:
        return (n - 1) * size
    return ((i + 1) * (i < n - 1) + (n - i) * (i > 0)) * size


def assert_one_sentence(message: str) -> None:
    """One line, one full stop at the end, nothing that starts a second sentence."""
    assert message.endswith("."), message
    assert "\n" not in message
    assert not re.search(r"[.!?] +[A-Z]", message), message


def relative_rmse(got: Tensor, want: Tensor) -> float:
    """RMSE in units of the standard deviation of what was wanted."""
    error = (got.double() - want.double()).square().mean().sqrt()
    return float(error / want.double().std())


def assert_matches(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """fp32 attention against float64: the outputs by RMSE and PCC; lse, which varies little, by its rounding."""
    wanted = {name: x for name, x in want.items() if x.numel()}
    assert got.keys() == wanted.keys()
    assert got["lse"].dtype == torch.float32
    for name, x in wanted.items():
        assert got[name].shape == x.shape
        if name == "lse":
            assert lse_error(got[name], x) <= LSE_BOUND
        else:
            assert relative_rmse(got[name], x) <= 1e-6, name
            assert one_minus_pcc(got[name], x) <= 1e-10, name


def lse_error(got: Tensor, want: Tensor) -> float:
    """RMSE in units of the root mean square of what was wanted."""
    return float((got.double() - want).norm() / want.norm())


def one_minus_pcc(got: Tensor, want: Tensor) -> float:
    """1 - Pearson correlation, computed so that it does not cancel near 0."""
    a, b = (x.double().flatten() - x.double().mean() for x in (got, want))
    a, b = a / a.norm(), b / b.norm()
    return float((a - b).square().sum() / 2)


def attention_inputs(
    *, heads: int, n: int, prompt: int = 0, batch: int = 1, features: int = 16, dtype=torch.float32, seed: int = 0
) -> dict[str, Tensor]:
    """Random q, k, v (and a prompt's) for ``refsim.api.attention_result``."""
    g = torch.Generator().manual_seed(seed)
    names = {"q": n, "k": n, "v": n} | ({"joint_q": prompt, "joint_k": prompt, "joint_v": prompt} if prompt else {})
    return {name: torch.randn(batch, heads, rows, features, generator=g).to(dtype) for name, rows in names.items()}


def serial_attention(tensors: dict[str, Tensor], logical_n: int | None = None) -> dict[str, Tensor]:
    """``out``, ``joint_out`` and ``lse`` of the real rows in float64, by one call on [spatial; joint]."""
    n = tensors["q"].shape[2] if logical_n is None else logical_n
    parts = {name: [tensors[name][:, :, :n]] for name in ("q", "k", "v")}
    if "joint_q" in tensors:
        parts = {name: [*rows, tensors[f"joint_{name}"]] for name, rows in parts.items()}
    q, k, v = (torch.cat(parts[name], 2).double() for name in ("q", "k", "v"))
    mask = torch.ones(len(q), 1, 1, k.shape[2], dtype=torch.bool)
    if "joint_mask" in tensors:
        mask[:, 0, 0, n:] = tensors["joint_mask"]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    lse = torch.logsumexp(scores.masked_fill(~mask, -torch.inf), -1)
    return {"out": out[:, :, :n], "joint_out": out[:, :, n:], "lse": lse}


def real_rows(tensors: dict[str, Tensor], n: int, logical_n: int) -> dict[str, Tensor]:
    """Return a result without the rows that stand for padding."""
    lse = tensors["lse"]
    real = {"out": tensors["out"][:, :, :logical_n], "lse": torch.cat([lse[:, :, :logical_n], lse[:, :, n:]], 2)}
    if "joint_out" in tensors:
        real["joint_out"] = tensors["joint_out"]
    return real


ALL_MESHES = tuple(MESHES.values())
