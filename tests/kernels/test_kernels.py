"""The drafter's TT-Lang kernels on the functional simulator, beside the real ttnn."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from typer.testing import CliRunner

if importlib.util.find_spec("ttl") is None or importlib.util.find_spec("ttnn") is None:
    pytest.skip("tt-lang-sim or ttnn is not installed: the TT-Lang kernels did not run", allow_module_level=True)

from refsim.cli.app import app
from tests.json_output import loads
from tt_impl.kernels.cases import KernelCase, cases
from tt_impl.kernels.check import judge, run_checks, write
from tt_impl.kernels.simulator import KERNELS, KernelError, run

REDUCED = list(cases(real=False))


@pytest.mark.parametrize("case", REDUCED, ids=lambda case: case.id)
def test_equals_torch(case):
    record = judge(case)
    assert record.passed, record


def test_every_kernel_has_aligned_and_other_shapes_in_both_dtypes():
    for kernel in KERNELS:
        mine = [case for case in REDUCED if case.kernel == kernel]
        assert {case.dtype for case in mine} == {"fp32", "bf16"}
        assert {any(n % 32 for n in case.shape) for case in mine} >= {True}
        assert all(case.grid != (1, 1) for case in mine)
        assert any(case.kernel == kernel for case in cases(real=True))


@pytest.mark.parametrize("grid", [(1, 1), (1, 5), (8, 8)], ids=str)
@pytest.mark.parametrize("kernel", ["rmsnorm", "matmul_silu_mul", "argmax"])
def test_any_number_of_nodes_gives_the_same(kernel, grid):
    """Nodes without a block do nothing."""
    case = next(case for case in REDUCED if case.kernel == kernel)
    assert judge(KernelCase(kernel, case.shape, "fp32", grid)).passed


@pytest.mark.parametrize(
    ("kernel", "options"),
    [("rmsnorm", {"features": 352}), ("rope", {"head_dim": 64}), ("rmsnorm", {"eps": 0.5})],
    ids=["padded_lanes_counted", "half_a_head", "eps"],
)
def test_a_wrong_kernel_fails(kernel, options):
    case = next(case for case in REDUCED if case.kernel == kernel)
    record = judge(KernelCase(kernel, case.shape, "fp32", options=options))
    assert not record.error
    assert record.rel_rmse > 1e-2


def test_padded_columns_must_be_masked():
    x = torch.randn(32, 77, generator=torch.Generator().manual_seed(0)).abs().neg() - 20
    out = run("softmax", [x, torch.zeros(1, 77)], (32, 77)).out
    assert float((out - x.softmax(-1)).abs().max()) > 1e-2


def test_a_row_that_no_node_holds_is_refused():
    x = torch.zeros(32, 4096)
    with pytest.raises(KernelError, match="does not fit a node"):
        run("softmax", [x, torch.zeros(1, 4096)], (32, 4096))
    a = torch.zeros(512, 512)
    with pytest.raises(KernelError, match="smaller blocks"):
        run("matmul", [a, a], (512, 512), max_m=16, max_n=16, max_k=16)


def test_torch_and_ttnn_stay_what_they_are():
    judge(REDUCED[0])
    import ttnn

    assert torch.zeros(1, dtype=torch.bfloat16).element_size() == 2
    assert sys.modules["ttnn"] is ttnn and hasattr(ttnn, "open_mesh_device") and "ttl" not in sys.modules


def test_the_command_tells_programs(tmp_path, monkeypatch):
    """A kernel that passes, and one that is refused, since no node holds its row."""
    chosen = [REDUCED[0], KernelCase("softmax", (32, 4096), "fp32")]
    monkeypatch.setattr("tt_impl.kernels.check.cases", lambda real: iter(chosen))
    done = CliRunner().invoke(app, ["kernels", "--json", "--out", str(tmp_path)])
    told = loads("kernels", done.stdout)
    assert (done.exit_code, told["cases"], told["failed"]) == (1, 2, 1)
    good, refused = told["records"]
    assert good["passed"] and good["l1_bytes"] > 0 and "does not fit a node" in refused["error"]
    assert '"failed": 1' in (tmp_path / "kernels.json").read_text()


def test_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr("tt_impl.kernels.check.cases", lambda real: iter(REDUCED[:2]))
    lines = []
    found = run_checks(progress=lines.append)
    assert (found.cases, found.failed) == (2, 0)
    assert [line.split()[0] for line in lines] == ["passed"] * 2
    write(found, tmp_path)
    assert "| residual_add | 70x300 | bf16 |" in (tmp_path / "kernels.md").read_text()
    assert '"failed": 0' in (tmp_path / "kernels.json").read_text()
