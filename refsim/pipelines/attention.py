"""The program behind ``refsim.simulate_attention``: one joint attention of full tensors, cut over the mesh."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refsim.ccl.exchange import CHUNK_BYTES, exchange
from refsim.files.tensor_file import TensorFile
from refsim.parallel.padding import padded_heads
from refsim.parallel.sequence import TokenShards, cut_tokens
from refsim.parallel.tensor import shard_range
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.tensor import MeshTensor, shards


def program(device: Device, *, inputs: str, logical_n: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Cut q, k, v (and the prompt's) by head over tp and by token over sp, attend, put the result together.

    ``inputs`` is a safetensors file with ``q``, ``k``, ``v`` (B, H, N, E) and optionally ``joint_q``, ``joint_k``,
    ``joint_v`` (B, H, L, E) and ``joint_mask``, bool (B, L). Rows from ``logical_n`` on are handed in as they are, as
    padding.
    """
    split_prompt = device.options.prompt_layout == "split"
    tp = device.groups["tp"]
    sp = device.groups["sp"]
    file = TensorFile(inputs)
    _, heads, n, _ = file.shape("q")
    mine = shard_range(padded_heads(heads, tp.size), tp)
    rows = TokenShards.of(n, sp.size)
    tokens = TokenShards(logical_n, sp.size, rows.local_n)
    joint = "joint_k" in file.names
    prompt_rows = file.shape("joint_k")[2] if joint else 0
    prompt_tokens = TokenShards.of_prompt(prompt_rows, sp.size) if joint and split_prompt else None

    def dense(x: Tensor) -> Tensor:
        return x.to(device.options.storage).contiguous()

    def local(name: str, cut: TokenShards | None) -> MeshTensor:
        x = file[name][:, mine[0] : min(mine[1], heads)]
        if missing := mine[1] - mine[0] - x.shape[1]:  # a copy of all rows, of which this device reads its own
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing))
        part = MeshTensor(x, shards(device.groups, tp=1))
        return (cut_tokens(device, part, cut, dim=2) if cut else part).map("dense", dense)

    spatial = tuple(local(name, rows) for name in "qkv")
    prompt = tuple(local(f"joint_{name}", prompt_tokens) for name in "qkv") if joint else None
    out, prompt_out, lses = joint_attention(
        device,
        spatial,
        prompt,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        prompt_mask=file["joint_mask"] if "joint_mask" in file.names else None,
        with_lse=True,
        asked=rows.valid,
    )

    def whole(x: MeshTensor, cut: TokenShards | None) -> Tensor:
        """Return all rows of all heads on rank 0, a part of them elsewhere."""
        x.require("read_back", **shards(device.groups, tp=1, **({"sp": 2} if cut else {})))
        local = x.local
        if cut is not None:
            local = _on_first(device, local, sp, dim=2)[:, :, : cut.logical_n]
        return local if sp.index else _on_first(device, local, tp, dim=1)[:, :heads]

    with device.collective("read_back", sp):
        whole_lses = [whole(lses[0], rows)]
        result = {"out": whole(out, rows)}
        if prompt_out is not None:
            result["joint_out"] = whole(prompt_out, prompt_tokens)
            whole_lses.append(whole(lses[1], prompt_tokens))
    result["lse"] = torch.cat(whole_lses, 2).squeeze(-1)
    return {}, result


def _on_first(device: Device, x: Tensor, group: Group, *, dim: int) -> Tensor:
    """Return what all members hold, one after the other in ``dim``, on the first; on the others their own.

    As a host does it: it reads from every device, whatever links there are between them.
    """
    if group.size == 1:
        return x
    x = x.contiguous()
    if group.index:
        exchange(device, group, 0, sends=[(x, 0)], recvs=[], chunk_bytes=CHUNK_BYTES)
        return x
    parts = {i: torch.empty_like(x) for i in range(1, group.size)}
    exchange(device, group, 0, sends=[], recvs=[(part, i) for i, part in parts.items()], chunk_bytes=CHUNK_BYTES)
    return torch.cat([x, *parts.values()], dim)
