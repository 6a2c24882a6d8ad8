"""What a ring's attention of a long sequence costs with values: CPU seconds, memory, and the error of the answer.

``python -m tt_impl.harness.reports.long_attention '{"video": "720p", "mesh": "t3k", "sp_axis": 0, "tokens": 75600}'``

One head a device of the axis that does not cut the tokens, random q, k and v in bfloat16; the peak is of this process.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HEAD_DIM = 128
_JUDGED_ROWS = 8
_TILE = 32


@dataclass(frozen=True)
class Length:
    """One measurement; tokens are cut over mesh axis ``sp_axis``, heads over the other."""

    video: str
    mesh: str
    sp_axis: int
    tokens: int


def measure(length: Length) -> dict[str, Any]:
    """Return CPU seconds of the call, memory of this process in GiB before tensors and at its peak, and the error."""
    import torch
    import ttnn

    from tt_impl.mock import ttnn_mock

    with ttnn_mock(length.mesh) as device:
        shape = tuple(device.shape)
        heads = shape[1 - length.sp_axis]
        rows = -(-length.tokens // (_TILE * shape[length.sp_axis])) * _TILE * shape[length.sp_axis]
        dims = (2, 1) if length.sp_axis == 0 else (1, 2)
        mapper = ttnn.ShardTensor2dMesh(device, mesh_shape=shape, dims=dims)
        how: dict[str, Any] = {"device": device, "dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT}
        before = _peak_gib()
        random = torch.Generator().manual_seed(0)
        qkv = [torch.randn(1, heads, rows, HEAD_DIM, generator=random).bfloat16() for _ in range(3)]
        tensors = [ttnn.from_torch(x, mesh_mapper=mapper, **how) for x in qkv]
        began = time.process_time()
        answer = _attend(device, tensors, length)
        cpu_s = time.process_time() - began
        peak = _peak_gib()
        composer = ttnn.ConcatMesh2dToTensor(device, mesh_shape=shape, dims=dims)
        out = ttnn.to_torch(answer, mesh_composer=composer)
    judged = torch.linspace(0, length.tokens - 1, _JUDGED_ROWS).long()
    q, k, v = (x[:, :, : length.tokens].double() for x in qkv)
    exact = torch.nn.functional.scaled_dot_product_attention(q[:, :, judged], k, v)
    error = float((out[:, :, judged] - exact).norm() / exact.norm())
    figures = {"cpu_s": round(cpu_s, 1), "before_gib": round(before, 2), "peak_gib": round(peak, 2), "error": error}
    return {**asdict(length), "heads": heads, **figures}


def _attend(device: Any, qkv: Sequence[Any], length: Length) -> Any:
    """Make the call: no prompt, gathered K and V in persistent buffers, a row of cores for the links."""
    import ttnn

    grid = device.compute_with_storage_grid_size()
    last = ttnn.CoreCoord(grid.x - 1, grid.y - 1)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), last)})
    rows = qkv[0].shape[2] * tuple(device.shape)[length.sp_axis]

    def empty(rows: int) -> Any:
        return ttnn.empty((1, 1, rows, HEAD_DIM), device=device, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)

    answer, _, _ = ttnn.transformer.ring_joint_scaled_dot_product_attention(
        *qkv,
        *(empty(0) for _ in range(3)),
        persistent_output_buffer_k=empty(rows),
        persistent_output_buffer_v=empty(rows),
        joint_strategy="rear",
        logical_n=length.tokens,
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(grid.x, grid.y - 1),
            q_chunk_size=256,
            k_chunk_size=256,
            exp_approx_mode=False,
        ),
        dim=2,
        multi_device_global_semaphore=[ttnn.create_global_semaphore(device, cores, 0) for _ in range(2)],
        num_links=1,
        cluster_axis=length.sp_axis,
        mesh_device=device,
        topology=ttnn.Topology.Linear,
        ccl_core_grid_offset=(0, grid.y - 1),
    )
    return answer


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    print(json.dumps(measure(Length(**json.loads(sys.argv[1])))))
