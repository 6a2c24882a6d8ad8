"""What a ring's attention costs with values, by its own command, at a length that takes no time."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.harness.conftest import HAS_TTNN, REASON
from tests.tt_impl.worker import launch
from tt_impl.harness.reports import long_attention
from tt_impl.harness.reports.long_attention import Length


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
@pytest.mark.parametrize(("mesh", "sp_axis", "heads"), [("n300", 1, 1), ("t3k", 0, 4)])
def test_a_short_sequence(mesh: str, sp_axis: int, heads: int, tmp_path: Path) -> None:
    """Tokens that fill no tile, which rounding alone makes wrong."""
    length = {"video": "short", "mesh": mesh, "sp_axis": sp_axis, "tokens": 600}
    ran = launch("tt_impl.harness.reports.long_attention", json.dumps(length), folder=tmp_path)
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found.items() >= (length | {"heads": heads}).items()
    assert 0.0005 < found["error"] < 0.003 and 0 <= found["cpu_s"] < 30
    assert 0.1 < found["before_gib"] <= found["peak_gib"] < 8


def test_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prompt; gathered K and V in memory of the whole; the last row of cores is left to the links."""
    called: list[Any] = []

    def attend(*tensors: Any, **options: Any) -> tuple[str, int, int]:
        called.append((tensors, options))
        return "answer", 1, 2

    ttnn: Any = SimpleNamespace(bfloat16="bf16", TILE_LAYOUT="tile", Topology=SimpleNamespace(Linear="line"))
    ttnn.CoreCoord = ttnn.CoreRange = lambda *ends: ends
    ttnn.CoreRangeSet = list
    ttnn.empty = lambda shape, **how: ("empty", shape, how)
    ttnn.SDPAProgramConfig = lambda **options: options
    ttnn.create_global_semaphore = lambda *what: ("semaphore", *what)
    ttnn.transformer = SimpleNamespace(ring_joint_scaled_dot_product_attention=attend)
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    grid = SimpleNamespace(x=8, y=7)
    device = SimpleNamespace(shape=(2, 4), compute_with_storage_grid_size=lambda: grid)
    parts = [SimpleNamespace(shape=(1, 2, 64, 128)) for _ in range(3)]
    assert long_attention._attend(device, parts, Length("short", "t3k", 1, 200)) == "answer"
    ((tensors, options),) = called

    def empty(rows: int) -> Any:
        return "empty", (1, 1, rows, 128), {"device": device, "dtype": "bf16", "layout": "tile"}

    assert tensors == (*parts, *[empty(0)] * 3)
    semaphore = "semaphore", device, [((0, 0), (7, 6))], 0
    config = {"compute_with_storage_grid_size": (8, 6), "q_chunk_size": 256, "k_chunk_size": 256}
    assert options == {
        "persistent_output_buffer_k": empty(256), "persistent_output_buffer_v": empty(256), "joint_strategy": "rear",
        "logical_n": 200, "program_config": config | {"exp_approx_mode": False}, "dim": 2, "num_links": 1,
        "multi_device_global_semaphore": [semaphore] * 2, "cluster_axis": 1, "mesh_device": device, "topology": "line",
        "ccl_core_grid_offset": (0, 6),
    }  # fmt: skip


@pytest.mark.parametrize(("row", "wrong"), [(1, False), (39, True), (40, False)])
def test_a_measurement(row: int, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are filled up to whole tiles on each device; some rows are judged, the last token's among them."""
    pytest.importorskip("ttnn")
    made: list[Any] = []
    length = Length("short", "t3k", 1, 40)

    def from_torch(value: torch.Tensor, *, mesh_mapper: Any, **how: Any) -> torch.Tensor:
        made.append((tuple(value.shape), value.dtype, mesh_mapper, how))
        return value

    def attend(device: Any, tensors: list[torch.Tensor], asked: Length) -> torch.Tensor:
        q, k, v = (tensor.double() for tensor in tensors)
        answer = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :40], v[:, :, :40])
        answer[:, :, row] += 1
        assert asked == length
        return answer

    ttnn: Any = SimpleNamespace(bfloat16="bf16", TILE_LAYOUT="tile", from_torch=from_torch)
    ttnn.ShardTensor2dMesh = ttnn.ConcatMesh2dToTensor = lambda device, mesh_shape, dims: (mesh_shape, dims)
    ttnn.to_torch = lambda answer, mesh_composer: made.append(mesh_composer) or answer
    device = SimpleNamespace(shape=(2, 4))
    monkeypatch.setattr("tt_impl.mock.ttnn_mock", lambda mesh: nullcontext(device))
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    monkeypatch.setattr(long_attention, "_attend", attend)
    seconds, sizes = iter((2.0, 5.26)), iter((1 << 17, 3 << 20))
    monkeypatch.setattr(long_attention.time, "process_time", lambda: next(seconds))
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=next(sizes)))
    monkeypatch.setattr(long_attention, "resource", usage)
    found = long_attention.measure(length)
    error = found.pop("error")
    assert (error > 0.01) if wrong else (error < 1e-6)
    about = {"video": "short", "mesh": "t3k", "sp_axis": 1, "tokens": 40, "heads": 2}
    assert found == about | {"cpu_s": 3.3, "before_gib": 0.12, "peak_gib": 3.0}
    how = {"device": device, "dtype": "bf16", "layout": "tile"}
    assert made == [((1, 2, 128, 128), torch.bfloat16, ((2, 4), (1, 2)), how)] * 3 + [((2, 4), (1, 2))]
