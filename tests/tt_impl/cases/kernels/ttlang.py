"""TT-Lang kernels on tensors of a mesh; ``ttl`` is there only where a case runs."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises

SHAPE = (64, 64)


def _scaled_sum(factor: float, grid: Any = "auto", blocks: int = 1, wait: bool = True) -> Any:
    """Make a kernel ``out = x + factor * y``; each is another kernel of the same name."""
    import ttl

    @ttl.operation(grid=grid)
    def scaled_sum(x, y, out):
        shape = (blocks, blocks)
        x_dfb = ttl.make_dataflow_buffer_like(x, shape=shape, block_count=2)
        y_dfb = ttl.make_dataflow_buffer_like(y, shape=shape, block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=shape, block_count=2)
        rows, columns = (size // 32 // blocks for size in x.shape)

        @ttl.datamovement()
        def read():
            for r in range(rows):
                for c in range(columns):
                    place = slice(r * blocks, (r + 1) * blocks), slice(c * blocks, (c + 1) * blocks)
                    with x_dfb.reserve() as x_blk, y_dfb.reserve() as y_blk:
                        ttl.copy(x[place], x_blk).wait()
                        ttl.copy(y[place], y_blk).wait()

        @ttl.compute()
        def compute():
            for _ in range(rows * columns):
                with x_dfb.wait() as x_blk, y_dfb.wait() as y_blk, out_dfb.reserve() as out_blk:
                    out_blk.store(x_blk + ttl.block.fill(factor, shape=shape) * y_blk)

        @ttl.datamovement()
        def write():
            for r in range(rows):
                for c in range(columns):
                    place = slice(r * blocks, (r + 1) * blocks), slice(c * blocks, (c + 1) * blocks)
                    with out_dfb.wait() as out_blk:
                        ttl.copy(out_blk, out[place]).wait()
            if not wait:
                out_dfb.wait()  # nobody fills it

    return scaled_sum


def _operands(t: Env) -> tuple[Any, list[torch.Tensor], Any, torch.Tensor, Any]:
    """``x``, another part on every device, ``y``, the same on all, and a place for results."""
    x, y = t.rand(64, 256), t.rand(*SHAPE)
    return t.put(x, (None, 1)), t.shards(x, (None, 1)), t.put(y), y, t.put(torch.zeros(*SHAPE))


def on_every_device(t: Env) -> None:
    """Arguments are bound by name and place; replicas are computed once; torch and ttnn stay what they are."""
    import ttnn

    x, parts, y, value, out = _operands(t)
    kernel = _scaled_sum(2.0)
    assert kernel(x, out=out, y=y) is None
    t.check(out, [part + 2 * value for part in parts])
    assert kernel.__name__ == "scaled_sum" and list(t.shadow.evaluations.values())[-1] == 4
    again = t.put(torch.zeros(*SHAPE))
    kernel(y, y, again)
    t.check(again, 3 * value)
    assert sum(t.shadow.evaluations.values()) == 4 + 1
    assert torch.zeros(1, dtype=torch.bfloat16).element_size() == 2 and hasattr(ttnn, "open_mesh_device")


def kernels_of_one_name_in_a_trace(t: Env) -> None:
    """What a factory closed over belongs to its own kernel, in a replay, too."""
    ttnn = t.ttnn
    x, parts, y, value, out = _operands(t)
    other = t.put(torch.zeros(*SHAPE))
    twice, fourfold = _scaled_sum(2.0), _scaled_sum(4.0)
    twice(y, y, out)
    trace = ttnn.begin_trace_capture(t.device, cq_id=0)
    twice(x, y, out)
    fourfold(out, y, other)
    ttnn.end_trace_capture(t.device, trace, cq_id=0)
    ttnn.execute_trace(t.device, trace, cq_id=0, blocking=True)
    first = [(part + 2 * value).bfloat16().float() for part in parts]
    t.check(out, first)
    t.check(other, [part + 4 * value for part in first])
    names = [name for name in t.shadow.calls if name.startswith("ttl.scaled_sum")]
    assert len(names) == 2


def grids(t: Env) -> None:
    """A kernel has the nodes that it names, or that the environment gives it; each here does the same."""
    import os

    from tt_impl.mock.ttlang.kernels import GRID, grid_of_devices

    x, parts, y, value, out = _operands(t)
    _scaled_sum(2.0, grid=(2, 2))(x, y, out)
    t.check(out, [part + 2 * value for part in parts])
    assert grid_of_devices() == (1, 1)
    os.environ[GRID] = "2,3"
    try:
        assert grid_of_devices() == (2, 3)
        os.environ[GRID] = "0,3"
        raises(UserError, grid_of_devices, GRID, "8,8")
    finally:
        del os.environ[GRID]


def in_the_older_api(t: Env) -> None:
    """A published kernel of April 2026 runs, and what it uses of that API is named."""
    import ttl

    @ttl.operation(grid="auto")
    def row_sums(x, scaler, out):
        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 2), buffer_factor=2)
        scaler_dfb = ttl.make_dataflow_buffer_like(scaler, shape=(1, 1), buffer_factor=1)
        sum_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 1), buffer_factor=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, 1), buffer_factor=2)

        @ttl.compute()
        def compute():
            with x_dfb.wait() as x_blk, scaler_dfb.wait() as s_blk, sum_dfb.reserve() as sum_blk:
                sum_blk.store(ttl.math.reduce_sum(x_blk, s_blk, dims=[1]))
            with sum_dfb.wait() as sum_blk, out_dfb.reserve() as out_blk:
                out_blk.store(ttl.math.broadcast(sum_blk, out_blk, dims=[1]) + ttl.math.fill(out_blk, 1.0))

        @ttl.datamovement()
        def read():
            with x_dfb.reserve() as x_blk:
                ttl.copy(x[0:1, 0:2], x_blk).wait()
            with scaler_dfb.reserve() as s_blk:
                ttl.copy(scaler[0, 0], s_blk).wait()

        @ttl.datamovement()
        def write():
            with out_dfb.wait() as out_blk:
                ttl.copy(out_blk, out[0, 0]).wait()

    x = t.rand(32, 64)
    out = t.put(torch.zeros(32, 32))
    row_sums(t.put(x), t.put(torch.full((32, 32), 0.5)), out)
    t.check(out, (0.5 * x.sum(1, keepdim=True) + 1).expand(32, 32), 2)
    assert "ttl.make_dataflow_buffer_like(buffer_factor=) of April 2026" in t.shadow.emulated
    assert sum("April 2026" in name for name in t.shadow.emulated) == 5


def older_calls_by_position(t: Env) -> None:
    """Dims by position, one tile of scales for several results or none, and functions that have moved since."""
    import ttl

    @ttl.operation(grid="auto")
    def largest(x, scaler, out):
        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(2, 2), block_count=2)
        scaler_dfb = ttl.make_dataflow_buffer_like(scaler, shape=(1, 1), block_count=2)
        top_dfb, sum_dfb = (ttl.make_dataflow_buffer_like(x, shape=(2, 1), block_count=2) for _ in range(2))
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(2, 2), block_count=2)

        @ttl.compute()
        def compute():
            with x_dfb.wait() as x_blk, scaler_dfb.wait() as s_blk, top_dfb.reserve() as top, sum_dfb.reserve() as sums:
                top.store(ttl.math.reduce_max(x_blk, s_blk, [1]))
                sums.store(ttl.math.reduce_sum(x_blk, dims=[-1]))
            with top_dfb.wait() as top, sum_dfb.wait() as sums, out_dfb.reserve() as out_blk:
                chosen = ttl.where(ttl.math.fill(top, 1.0), top, sums) + ttl.math.mask(sums, ttl.math.fill(sums, 0.0))
                out_blk.store(ttl.transpose(ttl.math.broadcast(chosen, out_blk, [1]), out_blk))

        @ttl.datamovement()
        def read():
            with x_dfb.reserve() as x_blk, scaler_dfb.reserve() as s_blk:
                ttl.copy(x[0:2, 0:2], x_blk).wait()
                ttl.copy(scaler[0, 0], s_blk).wait()

        @ttl.datamovement()
        def write():
            with out_dfb.wait() as out_blk:
                ttl.copy(out_blk, out[0:2, 0:2]).wait()

    x = t.rand(*SHAPE)
    out = t.put(torch.zeros(*SHAPE))
    largest(t.put(x), t.put(torch.full((32, 32), 0.5)), out)
    wanted = 0.5 * x.amax(1, keepdim=True) + x.sum(1, keepdim=True)
    t.check(out, wanted.expand(*SHAPE).mT, 4)
    for name in ("where", "mask", "transpose"):
        assert t.shadow.emulated[f"ttl.{name} of another place of April 2026"] == 1, name


def numbers_and_drained_buffers(t: Env) -> None:
    """A number is an argument as any, with a default, also of the simulator's own tensors; blocks may be dropped."""
    import ttl

    from tt_impl.mock.ttlang.simulator import load

    @ttl.operation(grid=(1, 1))
    def scaled(x, factor=1.0, out=None):
        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 1), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, 1), block_count=2)

        @ttl.datamovement()
        def read():
            for _ in range(2):
                with x_dfb.reserve() as x_blk:
                    ttl.copy(x[0, 0], x_blk).wait()

        @ttl.compute()
        def compute():
            with x_dfb.wait():
                pass
            with x_dfb.wait() as x_blk, out_dfb.reserve() as out_blk:
                out_blk.store(x_blk * ttl.block.fill(factor, shape=(1, 1)))

        @ttl.datamovement()
        def write():
            with out_dfb.wait() as out_blk:
                ttl.copy(out_blk, out[0, 0]).wait()

    x, out = t.rand(32, 32), t.put(torch.zeros(32, 32))
    for factor in (2.0, 3.0):
        scaled(t.put(x), factor, out)
        t.check(out, factor * x)
    scaled(t.put(x), out=out)
    t.check(out, x)
    tensors = load().tensors
    ours, theirs = (tensors.Tensor(v, tensors.TILE_LAYOUT, dtype=torch.float32) for v in (x, torch.zeros(32, 32)))
    scaled(ours, 4.0, theirs)
    torch.testing.assert_close(theirs._tensor, 4 * x)


def who_serves_ttl(t: Env) -> None:
    """No TT-Lang, its compiler alone, and somebody's module of that name; what was imported before comes back."""
    from tt_impl.mock.ttlang import module, simulator

    with TemporaryDirectory() as folder:
        Path(folder, "ttl_api.py").touch()
        for spec, said in (
            (None, "import ttl"),
            (SimpleNamespace(submodule_search_locations=[folder]), "compiler is installed"),
            (SimpleNamespace(submodule_search_locations=None), "another module ttl"),
        ):
            with patch.object(simulator.PathFinder, "find_spec", return_value=spec):
                raises(simulator.Unavailable, simulator.load.__wrapped__, said)
                if said != "another module ttl":
                    raises(simulator.Unavailable, simulator.find, simulator.INSTALL)
                else:
                    assert simulator.find() is None and module._FINDER.find_spec("ttl") is None
        assert module._FINDER.find_spec("ttl.math") is None
    with patch.object(sys, "monitoring", None):
        raises(simulator.Unavailable, simulator.load.__wrapped__, "need Python 3.12")
    with patch.object(sys, "monitoring", SimpleNamespace(OPTIMIZER_ID=5, get_tool={5: "a profiler"}.get)):
        raises(simulator.Unavailable, simulator.load.__wrapped__, "a profiler has the slot")
    told = simulator._DIAGNOSTICS
    assert told.SourceDiagnostic(["x = 1"], "f.py").format_error(3, 1, "wrong", "error") == "f.py:3: error: wrong"
    assert told.TTLangCompileError("wrong", "f.py", 3).format() == "f.py:3: wrong"
    own, served = ModuleType("ttl"), sys.modules.get("ttl")
    sys.meta_path.remove(module._FINDER)
    try:
        for former in (own, None):
            sys.modules.pop("ttl", None)
            if former is not None:
                sys.modules["ttl"] = former
            with module.served():
                assert "ttl" not in sys.modules and module._FINDER is sys.meta_path[0]
                with module.served():
                    assert sys.meta_path.count(module._FINDER) == 1
                assert module._FINDER is sys.meta_path[0]
            assert sys.modules.get("ttl") is former and module._FINDER not in sys.meta_path
    finally:
        sys.meta_path.insert(0, module._FINDER)
        if served is not None:
            sys.modules["ttl"] = served


def _reader() -> Any:
    """Make a kernel that reads a block, and writes none."""
    import ttl

    @ttl.operation(grid=(1, 1))
    def reader(x):
        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, 1), block_count=2)

        @ttl.datamovement()
        def read():
            with x_dfb.reserve() as x_blk:
                ttl.copy(x[0, 0], x_blk).wait()

        @ttl.compute()
        def compute():
            with x_dfb.wait():
                pass

        @ttl.datamovement()
        def write():
            pass

    return reader


def refused(t: Env) -> None:
    """Shapes that are not whole tiles, tensors on the host or in lists, dtypes without values, and wrong kernels."""
    from tt_impl.mock.storage.errors import ShadowError

    ttnn = t.ttnn
    x, _, y, _, out = _operands(t)
    kernel = _scaled_sum(2.0)
    short = t.put(t.rand(60, 64))
    raises(UserError, lambda: kernel(short, y, out), "x of shape (60, 64)", "whole tiles")
    raises(UserError, lambda: kernel(x, ttnn.from_torch(t.rand(64, 64)), out), "host")
    raises(ShadowError, lambda: kernel(x, [y], out), "inside its argument y")
    raises(ShadowError, lambda: kernel(x, ttnn.typecast(y, ttnn.int32), out), "INT32")
    raises(UserError, lambda: _scaled_sum(1.0, wait=False)(x, y, out), "refused by its simulator")
    raises(UserError, lambda: _reader()(x), "writes none of its tensors")
    with patch("tt_impl.mock.ttlang.kernels.installed", return_value=None):
        raises(UserError, lambda: kernel(x, y, out), "in shadow_values()")


def what_a_node_cannot_hold(t: Env) -> None:
    """The simulator warns of it: an error of the program, or a note where the mock chose the grid."""
    from tt_impl.harness.checks.find import find
    from tt_impl.mock.log.events import EventLog
    from tt_impl.trace.intercept import intercepted

    x, y, out = (t.put(torch.zeros(512, 512)) for _ in range(3))
    log = EventLog(t.shadow)
    with intercepted(log, first=True):
        for grid in ("auto", (1, 1)):
            _scaled_sum(2.0, grid=grid, blocks=16)(x, y, out)
    found = [finding for finding in find(log) if finding.kind == "kernel-resources"]
    assert [finding.severity for finding in found] == ["note", "error"]
    assert "exceeds the L1 memory limit" in found[0].sentence and "REFSIM_TTL_GRID" in found[0].sentence


CASES = collect(globals())
