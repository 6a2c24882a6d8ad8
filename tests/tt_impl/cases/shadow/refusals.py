"""What must be refused: operations without a rule, unseen tensors, and mistakes ttnn's host side accepts."""

from __future__ import annotations

from refsim.base.errors import HazardError, UserError
from tests.tt_impl.env import Env, collect, raises


def unknown_operation(t: Env) -> None:
    from tt_impl.mock.rules.registry import RULES
    from tt_impl.mock.storage.errors import MissingRule, ShadowError

    x = t.put(t.rand(1, 1, 32, 64))
    rule = RULES.pop("ttnn.exp")
    try:
        raises(ShadowError, lambda: t.ttnn.exp(x), "ttnn.exp", "no shadow rule")
    finally:
        RULES["ttnn.exp"] = rule
    raises(ShadowError, lambda: x.pad_to_tile(0.0), "ttnn.Tensor.pad_to_tile")
    assert "order of cores and banks" in str(MissingRule("ttnn.experimental.moe_gpt"))
    program = t.ttnn.ProgramDescriptor()
    raises(ShadowError, lambda: t.ttnn.generic_op([x, x], program), "ttnn.generic_op", "kernels of the program itself")


def rule_that_fails(t: Env) -> None:
    """What torch says against a call that ttnn takes is told with the operation's name, as a mistake of the mock."""
    from tt_impl.mock.rules.registry import RULES
    from tt_impl.mock.storage.errors import FailedRule

    ttnn, rule = t.ttnn, RULES["ttnn.exp"]
    a = t.put(t.rand(1, 1, 64, 64))
    for error in (KeyError("mode"), IndexError("dim"), AssertionError("rank"), RuntimeError("two\nlines.")):

        def fails(*_: object, error: Exception = error) -> None:
            raise error

        RULES["ttnn.exp"] = fails
        try:
            raises(FailedRule, lambda: ttnn.exp(a), "ttnn.exp", type(error).__name__)
        finally:
            RULES["ttnn.exp"] = rule


def native_function(t: Env) -> None:
    """What programs call below ttnn's operations, and what writes into their tensors, is refused, too."""
    from tt_impl.mock.storage.errors import ShadowError

    native = t.ttnn._ttnn.operations.experimental
    x = t.put(t.rand(1, 1, 32, 64))
    raises(ShadowError, lambda: native.fusion_dispatch_op([x, x], None, None), "fusion_dispatch_op", "no shadow rule")


def unseen_tensor(t: Env) -> None:
    """A tensor made behind the shadow's back has no value, and reading it says so."""
    from tt_impl.mock.storage.errors import ShadowError
    from tt_impl.trace.intercept import uncaught

    with uncaught():
        x = t.put(t.rand(1, 1, 32, 64))
    raises(ShadowError, lambda: t.ttnn.add(x, 1.0), "ttnn.add", "without a value")


def errors_of_ttnn(t: Env) -> None:
    """ttnn's own checks are the real ones, and their messages come through."""
    a, b = t.put(t.rand(1, 1, 32, 512)), t.put(t.rand(256, 64))
    try:
        t.ttnn.matmul(a, b)
    except RuntimeError as error:
        assert "width=512 height=256" in str(error)
    else:
        raise AssertionError("a matmul of mismatching sizes was accepted")


def too_many_links(t: Env) -> None:
    x = t.put(t.rand(1, 1, 32, 64))
    raises(UserError, lambda: t.ttnn.all_gather(x, 3, cluster_axis=1, num_links=9), "ttnn.all_gather", "9 links", "1")
    t.ttnn.all_gather(x, 3, cluster_axis=1, num_links=1)


def ring_on_a_line(t: Env) -> None:
    ttnn, x = t.ttnn, t.put(t.rand(1, 1, 32, 64))
    ring = ttnn.Topology.Ring
    raises(UserError, lambda: ttnn.all_gather(x, 3, cluster_axis=1, topology=ring), "Ring", "axis 1", "line")
    gather, pair, barrier = ttnn.experimental.all_gather_async, t.semaphores(2), t.semaphores(1)[0]
    rest = dict(num_links=1, barrier_semaphore=barrier)
    # An asynchronous collective is a ring unless told otherwise.
    raises(UserError, lambda: gather(x, None, 3, pair, cluster_axis=0, **rest), "Ring", "axis 0", "line")
    raises(UserError, lambda: gather(x, 3, 1, t.device, ring, pair, **rest), "Ring", "axis 1", "line")


def too_many_cores(t: Env) -> None:
    ttnn, x, w = t.ttnn, t.put(t.rand(1, 1, 64, 256)), t.put(t.rand(256, 256))
    raises(UserError, lambda: ttnn.linear(x, w, core_grid=ttnn.CoreGrid(x=9, y=8)), "9x8", "8x8")
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(8, 9),
    )  # fmt: skip
    raises(UserError, lambda: ttnn.experimental.minimal_matmul(x, w, config=config), "8x9", "8x8")
    q = t.put(t.rand(1, 4, 64, 64))
    chunks = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(9, 9), q_chunk_size=32, k_chunk_size=32)
    attend = ttnn.transformer.scaled_dot_product_attention
    raises(UserError, lambda: attend(q, q, q, program_config=chunks), "9x9", "8x8")


def unaligned_parts(t: Env) -> None:
    ttnn = t.ttnn
    x, y = t.put(t.rand(1, 1, 64, 96)), t.put(t.rand(1, 1, 64, 98))
    raises(UserError, lambda: ttnn.reduce_scatter(x, 3, cluster_axis=1), "dim 3", "96", "multiple of 128")
    reduce = ttnn.experimental.reduce_scatter_minimal_async
    raises(
        UserError,
        lambda: reduce(x, None, 2, t.semaphores(3), cluster_axis=1, topology=t.linear),
        "dim 2", "64", "multiple of 128",
    )  # fmt: skip
    raises(UserError, lambda: ttnn.mesh_partition(y, 3, 1), "98", "multiple of 4")


def wrong_persistent_buffer(t: Env) -> None:
    """ttnn would write 512 columns into what has fewer, and bfloat16 into what is read as bfloat8_b."""
    ttnn, x = t.ttnn, t.put(t.rand(1, 1, 64, 512), (None, 3))
    gather, pair = ttnn.experimental.all_gather_async, t.semaphores(2)
    multiply, w = ttnn.experimental.all_gather_minimal_matmul_async, t.put(t.rand(512, 128))
    narrow = ttnn.typecast(t.put(t.rand(1, 1, 64, 512)), ttnn.bfloat8_b)
    common = dict(num_links=1, topology=t.linear, cluster_axis=1)
    for buffer, *said in (
        (
            t.empty(1, 1, 64, 128),
            "BFLOAT16 tensor of shape (1, 1, 64, 512)",
            "BFLOAT16 tensor of shape (1, 1, 64, 128)",
        ),
        (t.empty(1, 1, 64, 1024), "(1, 1, 64, 512)", "(1, 1, 64, 1024)"),
        (narrow, "BFLOAT16 tensor of shape (1, 1, 64, 512)", "BFLOAT8_B tensor of shape (1, 1, 64, 512)"),
    ):
        raises(UserError, lambda b=buffer: gather(x, b, 3, pair, **common), "all_gather_async", *said)
        by_name = dict(persistent_output_buffer=buffer, dim=3, multi_device_global_semaphore=pair)
        raises(UserError, lambda k=by_name: gather(x, **k, **common), "all_gather_async", *said)
        alone = dict(persistent_output_buffer=buffer, multi_device_global_semaphore=pair)
        raises(UserError, lambda k=alone: multiply(x, w, **k, **common), "all_gather_minimal_matmul_async", *said)
    reduce, y = ttnn.experimental.reduce_scatter_minimal_async, t.put(t.rand(1, 1, 64, 512))
    buffers = [t.empty(1, 1, 64, 512), t.empty(1, 1, 64, 128)]  # the first one has room for one direction
    raises(
        UserError,
        lambda: reduce(y, buffers, 3, t.semaphores(3), **common),
        "reduce_scatter_minimal_async", "(2, 1, 64, 512)", "(1, 1, 64, 512)",
    )  # fmt: skip


def use_after_deallocate(t: Env) -> None:
    x = t.put(t.rand(1, 1, 32, 64))
    view = t.ttnn.reshape(x, (1, 32, 64))
    t.ttnn.deallocate(x)
    raises(HazardError, lambda: t.ttnn.add(x, 1.0), "ttnn.add", "deallocated")
    raises(HazardError, lambda: t.ttnn.concat([x, x], dim=3), "ttnn.concat", "deallocated")
    raises(HazardError, lambda: t.ttnn.to_torch(x), "ttnn.to_torch", "deallocated")
    # The view says it is allocated, but its memory is free and goes to the next tensor.
    raises(HazardError, lambda: t.ttnn.add(view, 1.0), "ttnn.add", "deallocated")


def buffer_ledger(t: Env) -> None:
    from tt_impl.parallel.buffers import BufferLedger

    ledger = BufferLedger()
    first = ledger.lend("K", 1, "block 0")
    second = ledger.lend("K", 1, "block 1")
    assert (first.slot, second.slot) == (0, 1)
    ledger.lend("V", 1, "block 0")
    raises(HazardError, lambda: ledger.lend("K", 1, "block 2"), "buffer 0 of K", "block 2", "block 0", "axis 1")
    ledger.synchronised(1)  # block 0 has not even been issued
    raises(HazardError, lambda: ledger.lend("K", 1, "block 2"), "block 0")
    first.read()
    ledger.synchronised(0)  # the other axis does not help
    raises(HazardError, lambda: ledger.lend("K", 1, "block 2"), "block 0")
    ledger.synchronised(1)
    assert ledger.lend("K", 1, "block 2").slot == 0
    second.read()
    ledger.synchronised()
    assert ledger.lend("K", 1, "block 3").slot == 1


def forgotten_fabric(t: Env) -> None:
    """ttnn's own message is kept, and says what to call."""
    from tt_impl.mock.calls.checks import refuse_crashes
    from tt_impl.trace.intercept import Invocation

    def refused() -> None:
        raise RuntimeError("TT_FATAL\ninfo:\nTrying to get un-initialized fabric context\nbacktrace:")

    try:
        refuse_crashes(Invocation("ttnn.all_gather", (), {}, refused))
    except RuntimeError as error:
        assert "context; collectives need a fabric: call ttnn.set_fabric_config(" in str(error)
    else:
        raise AssertionError("nothing was raised")


CASES = collect(globals())
