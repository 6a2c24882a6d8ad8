"""Who may import whom: the rules of the architecture, checked on the syntax tree of every file.

refsim.runtime < ccl < parallel < layers < models < pipelines < timing    a lower layer never imports a higher one
refsim.errors, mesh, config, checkpoint, output                  import none of them
refsim                                                           imports no wing beside or above it; only cli.py
                                                                 may, inside functions
tt_impl                                                          takes from refsim: mesh, config, errors, the
                                                                 checkpoint reader, the writer of files for the user
                                                                 and the models' configs
ttnn                                                             is imported by tt_impl only, and in functions by
                                                                 the faults that are put into it (run in its process)
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("runtime", "ccl", "parallel", "layers", "models", "pipelines", "timing")
BASE = ("errors", "mesh", "config", "checkpoint", "output")
FRONT = ("api", "sharded_pipeline", "generate", "launch", "validate", "cli", "cli_pipeline", "__main__")
ABOVE = ("tt_impl", "parity", "benchmarks", "reports", "tests")
PACKAGES = ("refsim", "tt_impl", "parity", "benchmarks", "reports")
LENT = re.compile(r"refsim\.(mesh|config|errors|checkpoint|output|models\.(\w+\.)*config)(\.|$)")


def imports(module: str, source: str, *, is_package: bool = False) -> list[tuple[str, bool]]:
    """(dotted name, is inside a function) of everything a module imports; ``from a import b`` gives ``a.b``."""
    found: list[tuple[str, bool]] = []
    package = module.split(".") if is_package else module.split(".")[:-1]

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found.extend((f"{origin}.{alias.name}", lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                found.append((str(node.args[0].value), lazy))
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy)

    visit(ast.parse(source), False)
    return found


def within(name: str, packages: tuple[str, ...], parent: str = "") -> str | None:
    """Which of ``packages`` the dotted name lies in."""
    parts = name.split(".")
    if parent:
        if parts[0] != parent or len(parts) < 2:
            return None
        parts = parts[1:]
    return parts[0] if parts[0] in packages else None


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """One line for every import that breaks a rule."""
    top, layer, base = module.split(".")[0], within(module, LAYERS, "refsim"), within(module, BASE, "refsim")
    found = []
    for name, lazy in imports(module, source, is_package=is_package):
        target, front = within(name, LAYERS, "refsim"), within(name, FRONT, "refsim")
        broken = []
        if layer and target and LAYERS.index(target) > LAYERS.index(layer):
            broken.append(f"{target} lies above {layer}")
        if (layer or base) and front:
            broken.append(f"{front} lies above all layers")
        if base and target:
            broken.append(f"{base} lies below all layers")
        if top == "refsim" and within(name, ABOVE) and not (module == "refsim.cli" and lazy):
            broken.append("refsim imports nothing above it but in functions of cli.py")
        if top == "tt_impl" and within(name, ("refsim",)) and not LENT.match(name):
            broken.append("the device wing must not borrow from the reference wing")
        fault = module.startswith("parity.faults.wing_") and lazy
        if top != "tt_impl" and within(name, ("ttnn",)) and not fault:
            broken.append("only tt_impl imports ttnn")
        found += [f"{module} imports {name}: {rule}" for rule in broken]
    return found


def files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_file_keeps_the_rules(path):
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    assert violations(module, path.read_text(encoding="utf-8"), is_package=is_package) == []


def test_every_layer_is_there():
    names = {path.relative_to(ROOT).as_posix() for path in files()}
    for layer in LAYERS:
        assert f"refsim/{layer}/__init__.py" in names
    for module in BASE:
        assert f"refsim/{module}.py" in names


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("refsim.runtime.device", "from refsim.ccl import all_gather", "ccl lies above runtime"),
        ("refsim.ccl.shift", "import refsim.pipelines.attention", "pipelines lies above ccl"),
        ("refsim.parallel.ring", "from refsim import layers", "layers lies above parallel"),
        ("refsim.parallel.ring", "from ..layers import linear", "layers lies above parallel"),
        ("refsim.parallel.ring", "from .. import models as m", "models lies above parallel"),
        ("refsim.layers.norm", "def f():\n    from refsim.models import sd35", "models lies above layers"),
        ("refsim.runtime.pool", "if TYPE_CHECKING:\n    from refsim.ccl import shift", "ccl lies above runtime"),
        ("refsim.runtime.pool", "importlib.import_module('refsim.ccl')", "ccl lies above runtime"),
        ("refsim.runtime.pool", "from refsim.launch import execute", "launch lies above all layers"),
        ("refsim.mesh", "from refsim.runtime.group import Group", "mesh lies below all layers"),
        ("refsim.config", "def f():\n    import refsim.models", "config lies below all layers"),
        ("refsim.errors", "from refsim.api import run", "api lies above all layers"),
        ("refsim.api", "import ttnn", "only tt_impl imports ttnn"),
        ("refsim.cli", "def f():\n    import ttnn", "only tt_impl imports ttnn"),
        ("parity.gate", "from ttnn import experimental", "only tt_impl imports ttnn"),
        ("refsim.api", "def f():\n    import parity.gate", "refsim imports nothing above it"),
        ("refsim.cli", "from parity import gate", "refsim imports nothing above it"),
        ("refsim.pipelines.attention", "import tt_impl.mesh", "refsim imports nothing above it"),
        ("tt_impl.layers.linear", "from refsim.layers import linear", "must not borrow"),
        ("tt_impl.parallel.ring", "def f():\n    import refsim.parallel.ring", "must not borrow"),
        ("tt_impl.mesh", "import refsim", "must not borrow"),
        ("tt_impl.models.sd35.block", "from refsim.models.sd35 import block", "must not borrow"),
        ("tt_impl.models.sd35.block", "from refsim.models.sd35.configuration import x", "must not borrow"),
    ],
)
def test_a_planted_violation_is_caught(module, source, rule):
    found = violations(module, source)
    assert len(found) == 1
    assert rule in found[0]
    assert found[0].startswith(f"{module} imports ")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("refsim.pipelines.attention", "from refsim.parallel.usp import joint_attention\nimport refsim.runtime.device"),
        ("refsim.parallel.ring", "from refsim.parallel.sdpa import x\nfrom .sdpa import y\nfrom . import sdpa"),
        ("refsim.runtime.device", "from refsim.mesh import MeshSpec\nfrom refsim.config import DiTParallelConfig"),
        ("refsim.cli", "def f():\n    from parity import gate\n    import tt_impl.mesh"),
        ("refsim.launch", "from refsim.runtime.pool import pool"),
        ("tt_impl.mesh", "import ttnn\nfrom refsim.mesh import MeshSpec\nimport refsim.errors"),
        ("tt_impl.models.sd35.block", "from refsim.models.sd35.config import C\nfrom refsim.models.sd35 import config"),
        ("parity.gate", "from refsim.parallel import ring\nimport tt_impl.mesh"),
        ("refsim.models.sd35.block", "import ttnn_like\nfrom paritybit import x"),
    ],
)
def test_what_is_allowed_is_not_reported(module, source):
    assert violations(module, source) == []


def test_relative_imports_of_a_package_count_from_the_package():
    assert imports("refsim.ccl", "from .shift import shift", is_package=True) == [("refsim.ccl.shift.shift", False)]
    assert imports("refsim.ccl", "from ..mesh import x", is_package=True) == [("refsim.mesh.x", False)]
    assert imports("refsim.ccl.shift", "from .exchange import x") == [("refsim.ccl.exchange.x", False)]


def test_names_configs_and_errors_come_without_torch():
    """The device wing and ``refsim --help`` load these; neither waits for torch."""
    code = "import sys, refsim, refsim.mesh, refsim.config, refsim.errors, refsim.launch; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
