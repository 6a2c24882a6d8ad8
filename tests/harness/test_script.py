"""``refsim ttnn run``: anyone's script, in a process of its own, with one verdict and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.json_output import loads
from tests.tree import ROOT

SCRIPT = """
import ctypes, sys
import torch, ttnn
import beside

asked = sys.argv[1:]
print("asked", asked)
ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
value = torch.arange(8 * 1024.0).reshape(1, 8, 32, 32)
mapper = ttnn.ShardTensorToMesh(mesh, dim=1)
x = ttnn.from_torch(value, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
y = ttnn.add(x, beside.ONE)
if "crash" in asked:
    ctypes.string_at(0)
if "caught" in asked:
    try:
        ttnn.register_python_operation(name="ttnn.script_unknown")(lambda tensor: tensor)(y)
    except Exception:
        pass
if "exit" in asked:
    try:
        ttnn.matmul(y, ttnn.ones((64, 32), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh))
    except RuntimeError:
        sys.exit(3)
if "refuse" in asked:
    ttnn.matmul(y, ttnn.ones((64, 32), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh))
whole = ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=1))
assert torch.equal(whole, value + 1), "wrong values"
print("right")
ttnn.close_mesh_device(mesh)
"""


def test_a_cache_that_is_never_emptied(tmp_path: Path) -> None:
    """The example, in L1 of a smaller mesh: who owns it, and what to free."""
    ran = run(tmp_path, "--values", "off", "--json", str(ROOT / "examples" / "gather_cache.py"), "L1")
    verdict = loads("ttnn run", ran.stdout)
    assert ran.returncode == 1 and verdict["category"] == "memory" and not verdict["values"]
    memory = verdict["memory"]
    assert "ended out of memory, in ttnn.empty at " in memory["sentence"] and memory["memory"] == "L1"
    largest = memory["memories"]["L1"]["owners"][0]
    assert largest["op"] == "ttnn.empty" and largest["left"]["count"] == largest["count"] - 1
    assert memory["advice"][0].startswith(f"free {largest['left']['count']} tensors of ttnn.empty at ")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("ONE = 1.0\n", encoding="utf-8")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def run(folder: Path, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """``refsim ttnn run --mesh t3k`` with these words; nothing may be left of it."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = ["-m", "refsim", "ttnn", "run", "--mesh", "t3k", *words]
    if text is None:
        done = warm.run(*command, cwd=folder, env=environment, timeout=170)
    else:
        how = {"input": text, "capture_output": True, "text": True, "timeout": 170}
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=False, **how)
    assert list(temporary.iterdir()) == []
    return done


def test_a_script_with_arguments(script: Path) -> None:
    """It is run as it is: its arguments, what lies beside it, the mesh it opens, its values."""
    done = run(script.parent, "script.py", "--mesh", "own")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["asked ['--mesh', 'own']", "right"]
    assert "refsim: script.py on t3k: passed on rules of the mock" in done.stderr


def test_a_script_from_stdin_as_json(script: Path) -> None:
    done = run(script.parent, "--json", "-", text=SCRIPT)
    assert done.returncode == 0, done.stderr[-3000:]
    verdict = loads("ttnn run", done.stdout)
    assert (verdict["outcome"], verdict["category"], verdict["mesh"]) == ("passed", "own", "t3k")
    assert verdict["ops"]["ttnn.add"] == 1
    assert "right" in done.stderr


def test_a_module_with_a_report(script: Path) -> None:
    done = run(script.parent, "--report", "told", "-m", "script")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (script.parent / "told" / "script.md").is_file()


WITHOUT_WEIGHTS = """
import json, struct, sys
import torch, ttnn
from safetensors.torch import load_file

header = json.dumps({"a": {"dtype": "BF16", "shape": [32, 32], "data_offsets": [0, 2048]}}).encode()
open("x.safetensors", "wb").write(struct.pack("<Q", len(header)) + header)
a = load_file("x.safetensors")["a"]
device = ttnn.open_device(device_id=0)
x = ttnn.from_torch(a + 0, device=device, layout=ttnn.TILE_LAYOUT)
if sys.argv[1:]:
    ttnn.matmul(x, ttnn.zeros((64, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device))
from tt_impl.harness.weights import RandomWeights
wanted = RandomWeights(3, True).tensor("a", (32, 32), torch.bfloat16) + 0
assert torch.equal(ttnn.to_torch(ttnn.neg(x)), -wanted), "wrong values"
"""


@pytest.mark.parametrize(
    ("values", "words", "code", "outcome", "category"),
    [
        ("on", (), 0, "passed", "own"),
        ("off", (), 0, "skipped", "unjudged"),
        ("off", ("refuse",), 1, "failed", "refused"),
    ],
)
def test_a_script_with_random_weights(
    values: str, words: tuple[str, ...], code: int, outcome: str, category: str, tmp_path: Path
) -> None:
    """Of the seed that is asked for; where no values are computed nobody judges them."""
    (tmp_path / "script.py").write_text(WITHOUT_WEIGHTS, encoding="utf-8")
    done = run(tmp_path, "--json", "--values", values, "--weights", "random:3", "script.py", *words)
    verdict = loads("ttnn run", done.stdout)
    assert (done.returncode, verdict["outcome"], verdict["category"]) == (code, outcome, category), done.stderr[-3000:]
    assert verdict["values"] == (values == "on") and verdict["ops"]["ttnn.from_torch"] == 1


def test_a_crash_is_one_sentence(script: Path) -> None:
    done = run(script.parent, "script.py", "crash")
    assert done.returncode == 1
    assert "the process was killed by SIGSEGV after ttnn.add on [[1, 1, 32, 32]]." in done.stderr
    assert 'script.py", line 15 in <module>' in done.stderr and "tt_impl" not in done.stderr


def test_failures_and_exit_codes(script: Path) -> None:
    refused = run(script.parent, "script.py", "caught", "refuse")  # what ends it counts
    assert refused.returncode == 1 and "t3k: failed: refused by ttnn" in refused.stderr
    assert "TT_FATAL: The width of the first tensor must be equal" in refused.stderr
    assert "tt_impl" not in refused.stderr  # the traceback ends with the script's line
    assert "the program goes on" not in refused.stderr  # its error ended it
    assert "backtrace" not in refused.stderr and ".so" not in refused.stderr
    caught = run(script.parent, "script.py", "caught")
    assert caught.returncode == 1 and "right" in caught.stdout
    assert "failed: caught an error by which the mock said that it knows no value" in caught.stderr
    assert "ttnn.script_unknown has no shadow rule." in caught.stderr
    ended = run(script.parent, "--json", "script.py", "exit")
    verdict = loads("ttnn run", ended.stdout)
    assert ended.returncode == 1 and verdict["message"] == "the program ended itself with 3."
    assert verdict["findings"] == []  # it went on from what was refused to its end only


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "there is nothing to run; give a script and its arguments, -m MODULE, or - for stdin."),
        (("nowhere.py",), "there is no script 'nowhere.py'; give a Python file, -m MODULE, or - for stdin."),
        (("--mesh", "t4k", "-m", "script"), "mesh 't4k' does not exist; choose one of n150"),
        (("--mesh", "auto", "-m", "script"), "a program asks for no mesh by itself"),
        (("--report", "no/where", "-m", "script"), "--report 'no/where' is no folder and lies in none"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"refsim: {sentence}") and done.stderr.count("\n") == 1
