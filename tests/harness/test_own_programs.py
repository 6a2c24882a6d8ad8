"""No false alarm: nothing is found in this project's own programs, collectives, semaphores and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.conftest import HAS_TTNN, REASON

pytestmark = pytest.mark.skipif(not HAS_TTNN, reason=REASON)
GATHERS = "ttnn.experimental.all_gather_minimal_matmul_async"
ATTENDS = "ttnn.transformer.ring_joint_scaled_dot_product_attention"


def watched_block(device: Any, options: Any, *, checkpoint: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """Runs in the worker: two blocks of a transformer one after the other, watched as anyone's program is."""
    from tt_impl.harness.checks.fabric import groups
    from tt_impl.harness.checks.find import find
    from tt_impl.harness.watch.session import watched
    from tt_impl.pipelines.block import program

    with watched() as session:
        for index in (0, 1):
            program(device, options, checkpoint=checkpoint, inputs=inputs, index=index)
    found = [str(finding) for finding in find(session.log)]
    rows = [
        {"number": event.number, "op": event.op, "where": event.where}
        | crossing
        | {"devices": len(groups(event.mesh, event.devices, crossing["axis"])[0])}
        for event in session.log.events
        for crossing in event.collectives
    ]
    return {"findings": found, "events": len(session.log.events), "rows": rows}, {}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    import safetensors.torch

    from parity.cases import checkpoints, model_folders
    from refsim.base.options import RunOptions
    from tt_impl.run.launch import Worker

    folder: Path = tmp_path_factory.mktemp("block")
    model_folders.build(checkpoints.MODELS["sd35_tiny64"], 0, folder)
    random = torch.Generator().manual_seed(0)
    sizes = {"spatial": (1, 128, 192), "prompt": (1, 45, 192), "time": (1, 192)}
    inputs = {name: torch.randn(size, generator=random) for name, size in sizes.items()}
    safetensors.torch.save_file(inputs, folder / "inputs.st")
    with Worker() as worker:
        return worker.execute(
            f"{__name__}:watched_block",
            RunOptions.of(mesh="t3k", parallel="sp2_tp4", backend="ttnn-mock"),
            {"checkpoint": str(folder), "inputs": str(folder / "inputs.st")},
            values=False,
        ).report


def test_nothing_is_found(report: dict[str, Any]) -> None:
    assert report["events"] > 100
    assert report["findings"] == []


def test_the_collectives_are_listed(report: dict[str, Any]) -> None:
    rows = report["rows"]
    assert {GATHERS, ATTENDS} <= {row["op"] for row in rows}
    assert [row["number"] for row in rows] == sorted(row["number"] for row in rows)
    gather = next(row for row in rows if row["op"] == GATHERS)
    assert (gather["collective"], gather["axis"], gather["topology"], gather["devices"]) == (
        "all_gather",
        1,
        "Linear",
        4,
    )
    assert gather["bytes"] == 2 * 64 * 64 and gather["where"].startswith("tt_impl/")
