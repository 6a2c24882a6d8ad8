"""The mock serves programs of anyone: it stands on none of our models, and takes ttnn from a wheel or a source tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refsim.base.errors import UserError
from tests.tree import ROOT, files, imports, module_name
from tt_impl.mock.machine import environment
from tt_impl.run.installed import RUNTIME_ROOT, SOURCE_TREE, runtime_root, ttnn_package

MAY_STAND_ON = re.compile(
    r"(refsim(\.base(\.(errors|mesh|extensions|heap|scratch))?|\.numerics(\.[\w.]+)?)?|"
    r"tt_impl(\.(run(\.(cluster|installed))?|trace(\.(buffers|collectives|freed|graph|intercept|lines|record))?|mock(\.[\w.]+)?))?)$"
)
"""What of this project may be loaded with the mock."""

PROGRAM = """
import json, sys
{first}
from tt_impl.mock import ttnn_mock

with ttnn_mock({mesh!r}) as mesh_device:
    import torch, ttnn
    value = torch.arange(2048.0).reshape(1, 1, 32, 64)
    x = ttnn.from_torch(
        value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device,
        mesh_mapper=ttnn.ShardTensorToMesh(mesh_device, dim=3) if mesh_device.get_num_devices() == 2 else None,
    )
    parts = [ttnn.to_torch(part).float() for part in ttnn.get_device_tensors(ttnn.multiply(x, 2.0))]
    right = torch.equal(torch.cat(parts, dim=3), (value.bfloat16() * 2).float())
    shape = list(mesh_device.shape)
    del sys.modules["tt_impl.mock.rules.registry"].RULES["ttnn.abs"]
    try:
        refused = not ttnn.abs(x)
    except Exception as error:
        refused = "ttnn.abs has no shadow rule" in str(error)
ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("refsim", "tt_impl", "parity", "benchmarks"))
print(json.dumps(dict(right=right and refused, shape=shape, ours=ours, ttnn=ttnn.__file__)))
"""


def run_program(folder: Path, mesh: str, first: str = "", path: tuple[str, ...] = ()) -> dict:
    """Run ``PROGRAM`` in a Python of its own and give what it prints; it must leave nothing behind."""
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, str(ROOT)]), "TMPDIR": str(temporary)}
    for name in (RUNTIME_ROOT, SOURCE_TREE):
        environment.pop(name, None)
    command = [sys.executable, "-c", PROGRAM.format(first=first, mesh=mesh)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(temporary.iterdir()) == []
    return json.loads(done.stdout.splitlines()[-1])


def test_the_mock_alone(tmp_path: Path) -> None:
    """A program that uses nothing but the mock loads nothing of ours beside it."""
    ran = run_program(tmp_path, "n300")
    assert ran["right"] and ran["shape"] == [1, 2]
    assert [name for name in ran["ours"] if not MAY_STAND_ON.match(name)] == []
    assert "tt_impl.mock.calls.shadow" in ran["ours"]


def test_ttnn_was_imported_before(tmp_path: Path) -> None:
    """As in a notebook."""
    assert run_program(tmp_path, "n150", first="import ttnn")["right"]


def test_ttnn_of_a_source_tree(tmp_path: Path) -> None:
    """TREE/ttnn/ttnn is the package, TREE holds tt_metal and runtime, which has no toolchain."""
    wheel, tree = ttnn_package(), tmp_path / "tree"
    package = tree / "ttnn" / "ttnn"
    package.mkdir(parents=True)
    (tree / "runtime").mkdir()
    (tree / "runtime" / "hw").symlink_to(wheel / "runtime" / "hw")
    (tree / "tt_metal").symlink_to(wheel / "tt_metal")
    (tree / "ttnn" / "cpp").symlink_to(wheel / "ttnn" / "cpp")
    (tree / "ttnn" / "ttnn.libs").symlink_to(wheel.parent / "ttnn.libs")
    for entry in wheel.iterdir():
        if entry.name not in ("tt_metal", "runtime", "ttnn", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    (tmp_path / "run").mkdir()
    ran = run_program(tmp_path / "run", "n300", path=(str(tree / "ttnn"),))
    assert ran["ttnn"].startswith(str(package)) and ran["right"]


@pytest.mark.parametrize("path", files("tt_impl/mock"), ids=lambda path: path.stem)
def test_no_file_of_the_mock_imports_more(path: Path) -> None:
    module, is_package = module_name(path)
    found = imports(module, path.read_text(encoding="utf-8"), is_package=is_package)
    ours = {entry.name for entry in found if entry.name.partition(".")[0] in ("refsim", "tt_impl", "parity")}
    of_refsim = r"refsim\.base\.(errors|heap|mesh|scratch)|refsim\.numerics"
    allowed = rf"({of_refsim}|tt_impl\.(run\.(cluster|installed)|trace|mock))(\.|$)"
    assert {name for name in ours if not re.match(allowed, name)} <= {"tt_impl", "tt_impl.run", "refsim"}


def test_the_interface_comes_without_ttnn_and_torch() -> None:
    code = "import sys, tt_impl.mock; print([n for n in ('ttnn', 'torch', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_of_the_interface_is_there() -> None:
    import tt_impl.mock

    for name in tt_impl.mock.__all__:
        assert getattr(tt_impl.mock, name).__module__.startswith("tt_impl.mock.")
    with pytest.raises(AttributeError, match="no attribute 'shadows'"):
        tt_impl.mock.__getattr__("shadows")


def test_where_ttnn_finds_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says, the tree of the package, the package; the tree's old variable at the end."""
    for name in (RUNTIME_ROOT, SOURCE_TREE):
        monkeypatch.delenv(name, raising=False)
    package, elsewhere = tmp_path / "tree" / "ttnn" / "ttnn", tmp_path / "elsewhere"
    package.mkdir(parents=True)
    with pytest.raises(UserError, match=f"no folder tt_metal near it; set {RUNTIME_ROOT}"):
        runtime_root(package)
    (elsewhere / "tt_metal").mkdir(parents=True)
    monkeypatch.setenv(SOURCE_TREE, str(elsewhere))
    assert runtime_root(package) == elsewhere
    (package / "tt_metal").mkdir()
    assert runtime_root(package) == package
    (tmp_path / "tree" / "tt_metal").mkdir()
    assert runtime_root(package) == tmp_path / "tree"
    monkeypatch.setenv(RUNTIME_ROOT, str(elsewhere))
    assert runtime_root(package) == elsewhere


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_where_ttnn_leaves_files(before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is for the block alone, whether there was one before or not."""
    monkeypatch.setenv("TMPDIR", before or "")
    if before is None:
        monkeypatch.delenv("TMPDIR")
    with environment.temporary_files_in(tmp_path):
        assert os.environ["TMPDIR"] == str(tmp_path)
    assert os.environ.get("TMPDIR") == before


def test_programs_find_their_files_in_the_tree(monkeypatch, tmp_path: Path) -> None:
    """tt_transformers looks for folders of its own in the place of tt-metal's tree, where the mock's stands then."""
    package = ttnn_package()
    (tmp_path / "tree/models").mkdir(parents=True)
    (tmp_path / "tree/models/params.json").touch()
    monkeypatch.delenv(RUNTIME_ROOT, raising=False)
    monkeypatch.setenv(SOURCE_TREE, str(tmp_path / "tree"))
    monkeypatch.setattr(environment, "_shared", None)
    root = environment.make_runtime_root(tmp_path / "mock")
    assert (root / "models/params.json").is_file() and (root / "tt_metal").resolve().is_relative_to(package.resolve())
