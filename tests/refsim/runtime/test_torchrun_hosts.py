"""One run over several hosts: the scripts of ``examples``, every host a launch of torchrun over the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import refsim
from tests import warm
from tests.refsim.tiny.sd35 import make_inputs, make_model, save
from tests.tree import ROOT

SRUN = """#!/usr/bin/env bash
# srun, with this machine for every node of the job
shift  # --kill-on-bad-exit
SLURM_NODEID=1 "$@" & other=$!
SLURM_NODEID=0 "$@"; code=$?
wait "$other" || code=$?
exit "$code"
"""
SCONTROL = "#!/usr/bin/env bash\nprintf '127.0.0.1\\n127.0.0.2\\n'\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("diffusers")
    folder = tmp_path_factory.mktemp("hosts")
    save(make_model(), folder / "checkpoint")
    save_file(make_inputs(), folder / "in.safetensors")
    return folder


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """With a port that is free, srun and scontrol of a job of two nodes, and one thread a rank."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    python = str(warm.python(tmp_path))
    own = {"PYTHON": python, "PYTHONPATH": str(ROOT), "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    job = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7", "IFNAME": "lo"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **own, **job, "PATH": path}


def run(folder: Path, environment: dict[str, str], *command: str, mesh: str, parallel: str):
    """Run a script of ``examples`` on the folder's checkpoint."""
    files = ["--inputs", str(folder / "in.safetensors"), "--out", str(folder / "out.safetensors")]
    words = ["run", str(folder / "checkpoint"), "--mesh", mesh, "--parallel", parallel, *files]
    return subprocess.run(
        ["bash", *command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False
    )


@pytest.mark.parametrize(
    ("script", "ranks", "mesh", "parallel"),
    [("two_hosts.sh", 2, "bh-qb", "sp2@0_tp2@1"), ("refsim.sbatch", 1, "n300", "sp2")],
)
def test_a_run_over_two_hosts_has_the_bits_of_a_run_on_one(folder, environment, script, ranks, mesh, parallel):
    (folder / "out.safetensors").unlink(missing_ok=True)
    counted = [str(ranks)] if script == "two_hosts.sh" else []
    environment |= {"RANKS_PER_NODE": str(ranks)}
    done = run(folder, environment, f"examples/{script}", *counted, mesh=mesh, parallel=parallel)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all ranks agree") == 1
    alone = refsim.run(folder / "checkpoint", inputs=folder / "in.safetensors", mesh=mesh, parallel=parallel)
    assert torch.equal(load_file(folder / "out.safetensors")["sample"], alone.tensors["sample"])
