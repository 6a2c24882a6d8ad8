"""Every mesh opens without hardware, and what cannot be opened is refused with a reason."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from refsim.base.errors import UserError
from refsim.base.mesh import MESHES
from tests.tt_impl.worker import cases_of, launch, run_cases
from tt_impl.run import backends, cluster, installed
from tt_impl.run.cluster import derive_fabric
from tt_impl.run.launch import Worker
from tt_impl.run.mesh import open_mesh

# name: (compute grid x, y; fabric). Grids: 8x8 on Wormhole cards, 8x9 on a Galaxy; 11x10 on P150 and P300, 12x10
# on a Blackhole Galaxy.
OPENED = {
    "n150": ("8x8", "DISABLED"),
    "n300": ("8x8", "FABRIC_1D"),
    "t3k": ("8x8", "FABRIC_1D"),
    "t3k-1x8": ("8x8", "FABRIC_1D_RING"),
    "quietbox": ("8x8", "FABRIC_1D"),
    "tg": ("8x9", "FABRIC_1D"),
    "galaxy": ("8x9", "FABRIC_1D_RING"),
    "bh-p150": ("11x10", "DISABLED"),
    "bh-p300": ("11x10", "FABRIC_1D"),
    "bh-qb": ("11x10", "FABRIC_1D"),
    "bh-qb-1x4": ("11x10", "FABRIC_1D_RING"),
    "bh-loudbox": ("11x10", "FABRIC_1D_RING"),
    "bh-galaxy": ("12x10", "FABRIC_1D_RING"),
}


def test_every_mesh_is_here() -> None:
    assert set(OPENED) == set(MESHES)


@pytest.mark.parametrize("name", OPENED)
def test_mesh_opens(name: str, worker: Worker) -> None:
    """One process per mesh: it computes, communicates with all links, and says what it is."""
    ran = run_cases(worker, cases_of("opening"), name)
    assert {case: outcome.error for case, outcome in ran.outcomes.items() if outcome.error} == {}
    grid, fabric = OPENED[name]
    assert ran.mesh == f"mock {MESHES[name]}, {MESHES[name].arch}, {grid} cores, {fabric}"


def test_open_and_close(tmp_path: Path) -> None:
    """Two meshes of one product after each other, none of another one, nor two at a time; nothing is left behind."""
    done = launch("tests.tt_impl.programs", "open_and_close", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    first, twice, second, other = done.stdout.splitlines()
    assert "t3k (2x4)" in first and "FABRIC_1D" in first
    assert twice.startswith("refused") and "still open" in twice
    assert "t3k-1x8 (1x8)" in second and "FABRIC_1D_RING" in second
    assert other.startswith("refused") and "one cluster per process" in other and "n150" in other
    assert list(tmp_path.iterdir()) == []
    assert not (Path(__file__).resolve().parents[3] / "generated").exists()


def test_folders_of_failed_processes_go(tmp_path: Path) -> None:
    """A killed process leaves its folder, the next one sweeps it, and one that ends by an error takes its own away."""
    launch("tests.tt_impl.programs", "die", folder=tmp_path, fork=False)
    assert len(list(tmp_path.iterdir())) == 1
    done = launch("tests.tt_impl.programs", "fail", folder=tmp_path, fork=False)
    assert done.returncode == 1 and "the program failed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_derived_fabric() -> None:
    for name, (_, fabric) in OPENED.items():
        assert derive_fabric(MESHES[name]) == fabric


def test_unknown_kind_and_mesh() -> None:
    with pytest.raises(UserError, match="kind 'emulator' does not exist"), open_mesh("t3k", "emulator"):
        pass
    with pytest.raises(UserError, match="mesh 't4k' does not exist"), open_mesh("t4k"):
        pass


def test_no_silicon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backends, "DEVICE_NODES", tmp_path / "none")
    monkeypatch.delenv(backends.SIMULATOR, raising=False)
    monkeypatch.delenv(backends.CLUSTER_DESCRIPTOR, raising=False)
    with pytest.raises(UserError, match="no Tenstorrent device"), open_mesh("n150", "device"):
        pass
    monkeypatch.setenv(backends.SIMULATOR, "libttsim_wh.so")
    with pytest.raises(UserError, match="would not open silicon"), open_mesh("n150", "device"):
        pass


def test_simulator_setup_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each thing ttsim needs, in the order in which a user meets it; never a mock instead."""

    def refused(mesh: str, match: str) -> None:
        with pytest.raises(UserError, match=match), open_mesh(mesh, "sim"):
            pass

    monkeypatch.setattr(backends, "installed_toolchain", lambda package: None)
    monkeypatch.delenv(backends.SIMULATOR, raising=False)
    monkeypatch.delenv(backends.CLUSTER_DESCRIPTOR, raising=False)
    refused("n150", "needs TT_METAL_SIMULATOR")
    library = tmp_path / "libttsim_wh.so"
    monkeypatch.setenv(backends.SIMULATOR, str(library))
    refused("n150", "is not a file")
    library.touch()
    refused("n150", "soc_descriptor.yaml beside")
    (tmp_path / "soc_descriptor.yaml").touch()
    refused("bh-p150", "simulates 1 wormhole_b0")
    refused("n300", "simulates 1 wormhole_b0")
    refused("n150", "no RISC-V toolchain")
    pair = tmp_path / "libttsim_wh_x2.so"
    pair.touch()
    monkeypatch.setenv(backends.SIMULATOR, str(pair))
    refused("n300", "needs TT_METAL_MOCK_CLUSTER_DESC_PATH")
    assert cluster.process.opened is None


def test_only_a_mock_mesh_loads_the_mock(tmp_path: Path) -> None:
    if backends.DEVICE_NODES.is_dir():
        pytest.skip("a Tenstorrent device is present")
    done = launch("tests.tt_impl.programs", "no_mock", folder=tmp_path)
    refused, loaded, mock = done.stdout.splitlines()[-3:]
    assert refused == "refused no Tenstorrent device is present in this machine; use kind 'mock' or 'sim'."
    assert loaded == "loaded []"
    assert mock == "mock True"


def test_crashes_are_refused(tmp_path: Path) -> None:
    """Without a shadow nobody stands in for what would end the process; one without values asks torch for none."""
    done = launch("tests.tt_impl.programs", "without_values", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    names = ("ttnn.begin_trace_capture", "ttnn.MeshDevice.load_sub_device_manager", "ttnn.record_event")
    *refused, large = done.stdout.splitlines()
    assert large == "(1024, 1024)"
    for line, name in zip(refused, names, strict=True):
        assert line.startswith(f"refused {name} crashes ttnn on a mock mesh") and "shadow_values" in line


def test_stand_in_compiler(tmp_path: Path) -> None:
    """It answers like a compiler and replaces its output in one step."""
    import subprocess

    from tt_impl.mock.machine import toolchain

    toolchain.write_stand_in(tmp_path / "sfpi")
    compiler = tmp_path / "sfpi" / installed.COMPILER
    assert compiler.stat().st_mode & stat.S_IXUSR
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    assert "15.1.0" in version
    out, dependencies = tmp_path / "kernel.o", tmp_path / "kernel.d"
    subprocess.run([compiler, "-O2", "-o", out, "-MF", dependencies, "kernel.cc"], check=True)
    assert out.read_bytes() == toolchain.tiny_elf() and dependencies.stat().st_size > 0
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert digest.startswith("7a15cd242ed4dcbb"), "another file than the one that ttnn's loader has taken"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.d", "kernel.o", "sfpi"]


def test_real_toolchain_is_preferred(tmp_path: Path) -> None:
    real = tmp_path / "runtime" / "sfpi" / installed.COMPILER
    assert installed.installed_toolchain(tmp_path) in (None, installed.SYSTEM_SFPI)
    real.parent.mkdir(parents=True)
    real.touch()
    assert installed.installed_toolchain(tmp_path) == tmp_path / "runtime" / "sfpi"
