"""A warm worker: every program in a process of its own; one that crashes, fails or hangs costs nobody else's."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from refsim.base import scratch
from refsim.base.errors import RankFailure, UserError
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from tt_impl.run.launch import Outcome, Worker, _last

MESH = get_mesh("n300")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as found:
        yield found


def run(worker: Worker, mesh: str = "n300", **more: object) -> Outcome:
    tp = get_mesh(mesh).num_devices
    options = RunOptions.of(mesh=mesh, parallel=f"tp{tp}", backend="ttnn-mock", **more)
    return worker.execute("tests.tt_impl.test_launch:ones", options, {})


def ones(device, options) -> tuple[dict, dict[str, torch.Tensor]]:
    """The program: adds 1 and 1 on every device."""
    import os

    import ttnn

    x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    found = ttnn.to_torch(ttnn.add(x, x), mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))
    return {"pid": os.getpid()}, {"sum": found.float()}


def refuse() -> None:
    raise UserError("no.")


def test_processes_of_their_own_and_other_clusters(worker: Worker) -> None:
    first, second, other = run(worker), run(worker), run(worker, "bh-qb-1x4")
    assert first.report["pid"] != second.report["pid"]
    assert first.tensors["sum"].shape == (64, 32) and other.tensors["sum"].shape == (128, 32)
    assert all(bool((o.tensors["sum"] == 2).all()) for o in (first, second, other))


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("os:abort", RankFailure, "was killed by SIGABRT in opening the mesh"),
        ("time:sleep", RankFailure, "TypeError: time.sleep"),
        ("signal:pause", RankFailure, "no answer in 2 s"),
        ("tests.tt_impl.test_launch:refuse", UserError, "^no.$"),
    ],
)
def test_the_next_program_runs(worker: Worker, fault: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run(worker, fault=fault, timeout_s=2 if fault == "signal:pause" else 60)
    assert bool((run(worker).tensors["sum"] == 2).all())


def test_nothing_is_left() -> None:
    """Neither process nor folder, nor what ttnn would keep in shared memory of every device it opened."""
    before = set(Path("/dev/shm").glob("*"))
    with Worker() as worker:
        run(worker)
        with pytest.raises(RankFailure):
            run(worker, fault="os:abort")
        process, folder = worker._process, Path(worker._folder.name)
        assert process.poll() is None and any(folder.glob(f"{scratch.PREFIX}mock-*"))
    assert process.poll() is not None and not folder.exists()
    assert not {path.name for path in set(Path("/dev/shm").glob("*")) - before if path.name.startswith(("tt_", "sm_"))}


HANGS = """
from tests.tt_impl.test_launch import run
from tt_impl.run.launch import Worker

with Worker() as worker:
    run(worker, fault="tests.tt_impl.test_launch:hang")
"""


def hang() -> None:
    (Path(os.environ["TMPDIR"]) / "hangs").write_text(str(os.getpid()))
    time.sleep(60)


def test_a_killed_launcher_takes_the_program_along(tmp_path: Path) -> None:
    """Neither worker nor program go on, and their folder is gone."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen([sys.executable, "-c", HANGS], cwd=root, env=environment)
    deadline = time.monotonic() + 60
    while not (notes := [path for path in tmp_path.glob("*/hangs") if path.read_text()]):
        assert launcher.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    program = int(notes[0].read_text())
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{program}").exists()


def test_the_operation_under_way_is_named_without_what_a_longer_one_left(tmp_path):
    from tt_impl.trace.intercept import Invocation
    from tt_impl.trace.record import Recorder

    recorder = Recorder(tmp_path / "last_op")
    for name in ("ttnn.a_long_name", "ttnn.add"):
        recorder(Invocation(name, (), {}, lambda: None))
    assert _last(tmp_path) == "ttnn.add on []"
