"""Who may import whom: the rules of the architecture, checked on the syntax tree of every file.

The modules are taken from the tree, so a new file falls under the rules without being listed:

refsim.base < files < runtime < ccl < ... < timing
                                      a lower layer never imports a higher one
                                      (jobs and processes are in base, because both device backends start processes
                                      and hand them jobs)
refsim.errors, mesh, config, ...      public names of modules in refsim.base; the product itself imports those
refsim.*                              what else lies at refsim's root is the front; no layer imports it
refsim.cli                            alone imports what lies beside refsim (tt_impl, parity, ...), inside functions;
                                      nothing but ``__main__`` imports it
tt_impl                               takes from refsim: base, files, what a model's folder says of itself, and the
                                      host's part of a pipeline (refsim.pipelines.request, hosts)
refsim.pipelines.request, hosts       run no model: they take from refsim what tt_impl may take
tt_impl.mock                          takes from the project: meshes, errors, temporary folders, the heap, the device's
                                      arithmetic (refsim.numerics), and what every kind of mesh needs
                                      (tt_impl.run.installed, run.cluster, trace); imported by
                                      tt_impl.harness, and in ``tt_impl.run.backends.stand_in``;
                                      its rooms: machine, storage < rules < numerics < calls < log
parity.*                              a room imports those before it in ``ROOMS``, of the kinds' in ``KINDS``; what
                                      parity has at its root are public names, and parity itself does without
tt_impl.harness                       serves programs of others: it takes from tt_impl the mock and what the mock may
                                      import, what records and counts, and none of our models; of refsim it may
                                      take what prices operations and watches buffers (refsim.timing, runtime.hazards)
ttnn                                  is imported by tt_impl only, and in functions by the faults that are put into it
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import PRODUCT, ROOT, files, imports, sources

LAYERS = (
    "base",
    "numerics",
    "files",
    "runtime",
    "ccl",
    "parallel",
    "layers",
    "blocks",
    "models",
    "pipelines",
    "timing",
)
PUBLIC = ("errors", "mesh", "config", "options", "torchrun")
"""Modules at refsim's root that give what lies in ``refsim.base`` its public name; the product itself does without."""
ABOVE = (*(name for name in PRODUCT if name != "refsim"), "reports", "tests")
LENT = re.compile(
    r"refsim\.(base|files|blocks\.(config|shape)|models\.(\w+\.)*(config|spec|registry|inputs)|pipelines\.(request|hosts))(\.|$)"
)
PRICED = re.compile(r"refsim\.(timing|runtime\.(watch\.hazards|delays))(\.|$)")
HOST = re.compile(r"refsim\.pipelines\.(request|hosts)(\.|$)")
LEAVES = ("run.cluster", "run.installed", "trace")
NUMERICS = re.compile(r"refsim\.numerics(\.|$)")
MOCK_LENT = re.compile(
    rf"(refsim\.(base\.(mesh|errors|heap|scratch)|numerics)|tt_impl\.(mock|{'|'.join(LEAVES)}))(\.|$)"
)
LEAF = re.compile(rf"tt_impl\.({'|'.join(LEAVES)})(\.|$)")
LEAF_LENT = re.compile(rf"(refsim\.base\.(mesh|errors)|tt_impl\.({'|'.join(LEAVES)}))(\.|$)")
OURS = ("api", "kernels", "layers", "models", "parallel", "pipelines", "programs", "reports")
MOCK_DOOR = "tt_impl.run.backends"
KERNEL_DOOR = "tt_impl.kernels.simulator"
"""Runs kernels, which are not of the mock, on what serves them there."""
HARNESS_ROOMS = ("watch", "checks", "reports", "comparison", "pytest", "script", "plugin")
"""Rooms and modules of the harness: none takes from a later one."""
MOCK_ROOMS = {"machine": 0, "storage": 0, "rules": 1, "numerics": 2, "ttlang": 2, "calls": 3, "log": 4}
"""Rooms of the mock, each with its height: one takes from itself and from lower ones."""
ROOMS = tuple("cases measure explain kinds report run user rounding policies faults mutation cli".split())
"""Of parity, each standing on those before it."""
KINDS = ("base", "cpu", "ttnn", "refusals", "published")
"""Of parity.kinds, likewise."""


def front(root: Path = ROOT / "refsim") -> tuple[str, ...]:
    """List the modules and packages at refsim's root that are neither layers nor public names of the lowest."""
    names = {path.name.removesuffix(".py") for path in root.iterdir() if path.suffix == ".py" or _is_package(path)}
    return tuple(sorted(names - {*LAYERS, *PUBLIC, "__init__"}))


def _is_package(path: Path) -> bool:
    return any(path.glob("*.py"))


def within(name: str, packages: tuple[str, ...], parent: str = "") -> str | None:
    """Which of ``packages`` the dotted name lies in."""
    parts = name.split(".")
    if parent:
        if parts[0] != parent or len(parts) < 2:
            return None
        parts = parts[1:]
    return parts[0] if parts[0] in packages else None


def broken_rules(module: str, name: str, lazy: bool) -> list[str]:
    """List the rules that ``module`` breaks by importing ``name``."""
    top, layer, public = module.split(".")[0], within(module, LAYERS, "refsim"), within(module, PUBLIC, "refsim")
    target, upper = within(name, LAYERS, "refsim"), within(name, front(), "refsim")
    is_cli = within(module, CLI, "refsim") is not None
    broken = []
    if layer and target and LAYERS.index(target) > LAYERS.index(layer):
        broken.append(f"{target} lies above {layer}")
    if (layer or public) and upper:
        broken.append(f"{upper} lies above all layers")
    if top in PRODUCT and within(name, PUBLIC, "refsim"):
        broken.append("refsim.base has what these names stand for")
    if (
        top == "refsim"
        and within(name, CLI, "refsim")
        and not (layer or public or is_cli or module == "refsim.__main__")
    ):
        broken.append("nothing stands on the command line")
    if top == "refsim" and within(name, ABOVE) and not (is_cli and lazy):
        broken.append("refsim imports nothing beside it but in functions of refsim.cli")
    priced = within(module, ("harness",), "tt_impl") and PRICED.match(name)
    rounds = within(module, ("mock",), "tt_impl") and NUMERICS.match(name)
    if top == "tt_impl" and within(name, ("refsim",)) and not (LENT.match(name) or priced or rounds):
        broken.append("the device backend must not borrow from the reference")
    if HOST.match(module) and within(name, ("refsim",)) and not LENT.match(name):
        broken.append("the host of a pipeline runs no model")
    if within(module, ("mock",), "tt_impl") and within(name, PRODUCT) and not MOCK_LENT.match(name):
        broken.append("tt_impl.mock takes only meshes and errors (and temporary folders and the heap) from the project")
    room, lent = (within(dotted.removeprefix("tt_impl."), tuple(MOCK_ROOMS), "mock") for dotted in (module, name))
    if room and lent and room != lent and MOCK_ROOMS[lent] >= MOCK_ROOMS[room]:
        broken.append(f"mock.{lent} does not lie below mock.{room}")
    if LEAF.match(module) and within(name, PRODUCT) and not LEAF_LENT.match(name):
        broken.append("what the mock may import takes only meshes and errors from the project")
    mocked, mock = within(module, ("mock", "harness"), "tt_impl"), within(name, ("mock",), "tt_impl")
    if within(module, ("harness",), "tt_impl") and within(name, OURS, "tt_impl"):
        broken.append("what serves others' programs knows none of our models")
    room, lent = (within(dotted.removeprefix("tt_impl."), HARNESS_ROOMS, "harness") for dotted in (module, name))
    if room and lent and HARNESS_ROOMS.index(lent) > HARNESS_ROOMS.index(room):
        broken.append(f"harness.{lent} lies above harness.{room}")
    if top == "tt_impl" and not within(module, ("harness",), "tt_impl") and within(name, ("harness",), "tt_impl"):
        broken.append("nothing in tt_impl stands on the harness")
    of_kernels = module == KERNEL_DOOR and name.startswith("tt_impl.mock.ttlang.")
    if top == "tt_impl" and mock and not mocked and not (module == MOCK_DOOR and lazy) and not of_kernels:
        broken.append(f"what runs on silicon loads no mock; {MOCK_DOOR}.stand_in does, for kind mock")
    for parent, rooms in (("parity", ROOMS), ("parity.kinds", KINDS)):
        room, other = (within(part.removeprefix(f"{parent}."), rooms) for part in (module, name))
        inside = module.startswith(f"{parent}.") and name.startswith(f"{parent}.")
        if inside and room and other and rooms.index(other) > rooms.index(room):
            broken.append(f"{other} stands on {room}")
    if top == "parity" and within(module, ROOMS, "parity") and within(name, ("inputs", "checkpoints", "oracles"), top):
        broken.append("parity.cases has what these names stand for")
    fault = module.startswith("parity.faults.") and lazy
    drives = module.startswith("benchmarks.programs.drive.")  # programs of others, in a process of their own
    if top != "tt_impl" and within(name, ("ttnn",)) and not (fault or drives):
        broken.append("only tt_impl imports ttnn")
    return broken


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """One line for every import that breaks a rule."""
    return [
        f"{module} imports {found.name}: {rule}"
        for found in imports(module, source, is_package=is_package)
        for rule in broken_rules(module, found.name, found.lazy)
    ]


CLI = tuple(name for name in front() if name.split("_")[0] == "cli")


def test_every_file_keeps_the_rules():
    found = [
        line
        for module, (source, is_package) in sources().items()
        for line in violations(module, source, is_package=is_package)
    ]
    assert found == []


def test_every_layer_and_public_name_is_there():
    names = {path.relative_to(ROOT).as_posix() for path in files()}
    for layer in LAYERS:
        assert f"refsim/{layer}/__init__.py" in names
    for module in PUBLIC:
        assert f"refsim/{module}.py" in names


def test_a_new_file_at_the_root_is_the_front(tmp_path):
    for name in ("mesh.py", "shiny.py", "ccl/shift.py", "api/model.py", "data/x.json", "__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert front(tmp_path) == ("api", "shiny")


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("refsim.runtime.device", "from refsim.ccl import all_gather", "ccl lies above runtime"),
        ("refsim.ccl.shift", "import refsim.pipelines.attention", "pipelines lies above ccl"),
        ("refsim.parallel.ring", "from refsim import layers", "layers lies above parallel"),
        ("refsim.parallel.ring", "from ..layers import linear", "layers lies above parallel"),
        ("refsim.parallel.ring", "from .. import models as m", "models lies above parallel"),
        ("refsim.layers.norm", "def f():\n    from refsim.models import sd35", "models lies above layers"),
        ("refsim.runtime.ranks.pool", "if TYPE_CHECKING:\n    from refsim.ccl import shift", "ccl lies above runtime"),
        ("refsim.runtime.ranks.pool", "importlib.import_module('refsim.ccl')", "ccl lies above runtime"),
        ("refsim.runtime.ranks.pool", "from refsim.api import run", "api lies above all layers"),
        ("refsim.base.mesh", "from refsim.runtime.group import Group", "runtime lies above base"),
        ("refsim.base.config", "def f():\n    import refsim.models", "models lies above base"),
        ("refsim.base.errors", "from refsim.api import run", "api lies above all layers"),
        ("refsim.api", "import ttnn", "only tt_impl imports ttnn"),
        ("refsim.cli", "def f():\n    import ttnn", "only tt_impl imports ttnn"),
        ("parity.run.case", "from ttnn import experimental", "only tt_impl imports ttnn"),
        ("parity.kinds.base", "from parity.run import case", "run stands on kinds"),
        ("parity.measure.records", "def f():\n    import parity.report.results", "report stands on measure"),
        ("parity.kinds.cpu.block", "from parity.kinds.ttnn import block", "ttnn stands on cpu"),
        ("parity.kinds.cpu.block", "from parity.inputs import rounded", "parity.cases has what"),
        ("refsim.api", "def f():\n    import parity.run.case", "refsim imports nothing beside it"),
        ("refsim.cli", "from parity import run", "refsim imports nothing beside it"),
        ("refsim.pipelines.attention", "import tt_impl.run.mesh", "refsim imports nothing beside it"),
        ("refsim.api", "from refsim.cli import app", "nothing stands on the command line"),
        ("tt_impl.mock.calls.checks", "from tt_impl.parallel.manager import CCLManager", "only meshes and errors"),
        ("tt_impl.mock.calls.checks", "from refsim.base.config import parse_parallel", "only meshes and errors"),
        ("tt_impl.trace.intercept", "from refsim.base.config import parse_parallel", "takes only meshes and errors"),
        (
            "tt_impl.mock.calls.shadow",
            "from tt_impl.mock.log.events import x",
            "mock.log does not lie below mock.calls",
        ),
        ("tt_impl.mock.rules.norm", "def f():\n    import tt_impl.mock.calls.shadow", "does not lie below mock.rules"),
        ("tt_impl.mock.storage.values", "from tt_impl.mock.rules import registry", "does not lie below mock.storage"),
        ("tt_impl.parallel.manager", "from tt_impl.mock.calls.checks import x", "loads no mock"),
        ("tt_impl.run.worker", "def f():\n    import tt_impl.mock.calls.shadow", "loads no mock"),
        ("tt_impl.run.mesh", "from tt_impl.mock import hardware", "loads no mock"),
        ("tt_impl.kernels.simulator", "from tt_impl.mock.calls.shadow import Shadow", "loads no mock"),
        ("tt_impl.harness.plugin", "def f():\n    import tt_impl.models.wan22", "none of our models"),
        ("tt_impl.run.mesh", "from tt_impl.harness import session", "stands on the harness"),
        ("tt_impl.reports.ops", "from refsim.timing.cost.device_ops import price", "must not borrow"),
        ("tt_impl.harness.checks.sums", "from tt_impl.harness.reports import cost", "harness.reports lies above"),
        ("tt_impl.harness.reports.cost", "from refsim.layers import linear", "must not borrow"),
        ("tt_impl.layers.linear", "from refsim.layers import linear", "must not borrow"),
        ("tt_impl.parallel.ring", "def f():\n    import refsim.parallel.ring", "must not borrow"),
        ("tt_impl.run.mesh", "import refsim", "must not borrow"),
        ("tt_impl.models.sd35.block", "from refsim.models.sd35 import block", "must not borrow"),
        ("tt_impl.models.sd35.block", "from refsim.models.sd35.configuration import x", "must not borrow"),
        ("tt_impl.pipelines.wan", "from refsim.pipelines.wan import WanPipeline", "must not borrow"),
        ("refsim.pipelines.hosts.wan", "from refsim.models.wan22.transformer import x", "runs no model"),
        ("refsim.pipelines.hosts.base", "from refsim.pipelines.host import HostScheduler", "runs no model"),
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
        (
            "refsim.runtime.device",
            "from refsim.base.mesh import MeshSpec\nfrom refsim.base.config import DiTParallelConfig",
        ),
        ("refsim.cli", "def f():\n    from parity import run\n    import tt_impl.run.mesh"),
        ("refsim.api.model", "from refsim.runtime.ranks.pool import pool"),
        ("tt_impl.run.mesh", "import ttnn\nfrom refsim.base.mesh import MeshSpec\nimport refsim.base.errors"),
        ("tt_impl.models.sd35.block", "from refsim.models.sd35.config import C\nfrom refsim.models.sd35 import config"),
        ("tt_impl.run.backends", "def stand_in():\n    from tt_impl.mock import hardware"),
        ("tt_impl.pipelines.wan", "from refsim.pipelines.hosts.wan import WanHost\nimport refsim.pipelines.request"),
        (
            "tt_impl.harness.watch.session",
            "from tt_impl.mock.calls.shadow import Shadow\nfrom tt_impl.trace.record import Recorder",
        ),
        (
            "tt_impl.harness.reports.cost",
            "from refsim.timing.cost.device_ops import price\nimport refsim.runtime.watch.hazards",
        ),
        ("tt_impl.mock.calls.checks", "from tt_impl.trace.intercept import Invocation\nfrom tt_impl.mock import rules"),
        ("parity.run.case", "from refsim.parallel import ring\nimport tt_impl.run.mesh"),
        ("parity.kinds.ttnn.block", "from parity.kinds.cpu import block\nfrom parity.cases import Case"),
        ("refsim.models.sd35.block", "import ttnn_like\nfrom paritybit import x"),
    ],
)
def test_what_is_allowed_is_not_reported(module, source):
    assert violations(module, source) == []


def test_relative_imports_of_a_package_count_from_the_package():
    def names(module, source, is_package=False):
        return [found.name for found in imports(module, source, is_package=is_package)]

    assert names("refsim.ccl", "from .shift import shift", True) == ["refsim.ccl.shift.shift"]
    assert names("refsim.ccl", "from ..mesh import x", True) == ["refsim.mesh.x"]
    assert names("refsim.ccl.shift", "from .exchange import x") == ["refsim.ccl.exchange.x"]


def test_names_configs_and_errors_come_without_torch():
    """The device backend and ``refsim --help`` load these; neither waits for torch."""
    code = (
        "import sys, refsim, refsim.mesh, refsim.config, refsim.errors, refsim.options; print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
