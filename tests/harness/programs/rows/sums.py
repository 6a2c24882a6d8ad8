"""Sums that are spread over an axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.harness.programs.events import (
    EIGHT,
    MATMUL,
    call,
    collective,
    made,
    read,
    row,
    use,
)
from tt_impl.mock.log.events import Event

ADDMM = call(
    "addmm",
    [use(8), use(1, "1", placements=(None, 3)), use(2, "2", placements=(None, 0), shape=(64, 64))],
    [3],
)  # fmt: skip
"""``8 + 1 @ 2``, of which 1 and 2 are cut."""


def sums() -> None:
    def product(x: Any = (None, 3), w: Any = (None, 0), op: str = MATMUL, more: Any = (), **how: Any) -> list[Event]:
        weight = use(2, "1", placements=w, shape=(64, 64))
        host = call("from_torch", (), [made(2, placements=w, shape=(64, 64))])
        return [host, call(op, [use(1, placements=x), weight, *more], [3], **how)]

    part = "partial-sum error"
    add = collective("all_reduce", 3, 4, "all_reduce")
    for reader in (
        "gelu",
        "silu",
        "softmax",
        "rms_norm",
        "layer_norm",
        "exp",
        "sqrt",
        "experimental.wan_fused_rmsnorm_pre_allgather",
    ):
        row(f"{reader} of a part", [*product(), call(reader, [3], [4])], f"{part} 2")
        row(f"{reader} of a sum", [*product(), add, call(reader, [4], [5])])
    row(
        "part of minimal_matmul", [*product(op="ttnn.experimental.minimal_matmul"), call("gelu", [3], [4])], f"{part} 2"
    )
    row("part of no matmul", [*product(op="ttnn.experimental.attn_matmul"), call("gelu", [3], [4])])
    row("weight of a row of heads", [*product(w=(None, 1)), call("gelu", [3], [4])])
    row(
        "transposed weight", [*product(w=(None, 1), options={"transpose_b": True}), call("gelu", [3], [4])], f"{part} 2"
    )
    row("transposed weight of rows", [*product(options={"transpose_b": True}), call("gelu", [3], [4])])
    row("x whole on every device", [*product(x=(None, None)), call("gelu", [3], [4])])
    row("x cut along the other axis", [*product(x=(3, None)), call("gelu", [3], [4])])
    row("cut along axis 0", [*product((3, None), (0, None)), call("gelu", [3], [4])], f"{part} 2")
    row(
        "summed along axis 0",
        [*product((3, None), (0, None)), collective("all_reduce", 3, 4, "all_reduce", 0), call("gelu", [4], [5])],
    )
    row("summed along the other axis", [*product((3, None), (0, None)), add, call("gelu", [4], [5])], f"{part} 3")
    row(
        "summed over all devices",
        [*product(), collective("all_reduce", 3, 4, "all_reduce", None), call("gelu", [4], [5])],
    )
    row_mesh = {"mesh": (1, 8)}
    x = use(1, placements=(3, None), **row_mesh)
    weight = made(2, placements=(0, None), shape=(64, 64), **row_mesh)
    alone = [call("from_torch", (), [weight]), call(MATMUL, [x, replace(weight, argument="1")], [made(3, **row_mesh)])]
    row("cut along an axis of one device", [*alone, call("gelu", [use(3, **row_mesh)], [4])])
    tokens = call("from_torch", (), [made(1, placements=(None, 3))])
    mean = call("mean", [1], [2], options={"dim": 3})
    row("mean of columns", [tokens, mean, call("rsqrt", [2], [3])], f"{part} 2")
    row("mean of rows", [tokens, call("mean", [1], [2], options={"dim": 2}), call("rsqrt", [2], [3])])
    row("mean of columns from them", [tokens, mean, call("subtract", [1, 2], [3])], f"{part} 2")
    merged = [collective("all_gather", 2, 4), call("mean", [4], [5], options={"dim": 3}), read(5)]
    row("means that are merged later", [tokens, mean, call("subtract", [1, 2], [3]), *merged, read(3)])
    row("counted from the end", [*product(w=(None, -2)), call("gelu", [3], [4])], f"{part} 2")
    row("a weight from elsewhere", [product()[1], call("gelu", [3], [4])])
    row(
        "a weight that was changed",
        [
            product()[0],
            call(MATMUL, [use(1, placements=(None, 3)), use(2, "1", tensor=9, placements=(None, 0))], [3]),
            call("gelu", [3], [4]),
        ],
    )
    row(
        "a weight of one row",
        [
            call("from_torch", (), [made(2, placements=(None, 0), shape=(64,))]),
            call(MATMUL, [use(1, placements=(None, 3)), use(2, "1", placements=(None, 0), shape=(64,))], [3]),
            call("gelu", [3], [4]),
        ],
    )
    row("activated at once", product(options={"activation": "gelu"}), f"{part} 1")
    row("activated by its own argument", product(options={"fused_activation": "gelu"}), f"{part} 1")
    row("activated by an add", [*product(), call("add", [3, 5], [4], options={"activations": ["gelu"]})], f"{part} 2")
    row("times itself", [*product(), call("multiply", [3, 3], [4])], f"{part} 2")
    row("times itself in place", [*product(), call("multiply_", [3, 3], [3], written=(3,))], f"{part} 2")
    row("times a scale", [*product(), call("multiply", [3, 5], [4]), call("gelu", [4], [6])], f"{part} 3")
    row("written over", [*product(), call("copy", [5, 3], written=(3,)), call("gelu", [3], [4])], f"{part} 3")
    row("made anew", [*product(), call("add", [5, 5], [3]), call("gelu", [3], [4])])
    row(
        "as an output",
        [*product(), call("gelu", [5, use(3, "output_tensor")], [3], written=(3,)), call("silu", [3], [4])],
    )
    one = {"devices": (0,), "mesh": (2, 4)}
    row("one part read", [*product(), read(use(3, **one))], f"{part} 2")
    row("parts of a row read", [*product(), read(use(3, devices=(0, 1, 2, 3)))], "partial-sum note 2")
    row("parts of a column read", [*product(), read(use(3, devices=(0, 4)))], f"{part} 2")
    row("all parts read", [*product(), read(3)], "partial-sum note 2")
    row("all parts read one by one", [*product(), *(read(use(3, devices=(i,))) for i in EIGHT)], "partial-sum note 2")
    column = [*product((3, None), (0, None))]
    row("parts of a column of axis 0", [*column, read(use(3, devices=(0, 4)))], "partial-sum note 2")
    flat = {"placements": (0,), "mesh": (1, 8)}
    row(
        "a mesh of one row",
        [
            call("from_torch", (), [made(2, shape=(64, 64), **flat)]),
            call(
                MATMUL,
                [use(1, placements=(3,), mesh=(1, 8)), use(2, "1", shape=(64, 64), **flat)],
                [made(3, mesh=(1, 8))],
            ),
            call("gelu", [use(3, mesh=(1, 8))], [4]),
        ],
        f"{part} 2",
    )
    bias = use(7, "bias", placements=(None, None))
    twice = "bias-summed error"
    row("bias of every device", [*product(more=[bias]), add, read(4)], f"{twice} 1")
    row("bias of one device", [*product(more=[use(7, "bias", placements=(None, 0))]), add, read(4)])
    row("bias by position", [*product(more=[use(7, "2")]), add, read(4)], f"{twice} 1")
    row(
        "bias of a minimal matmul",
        [*product(op="ttnn.experimental.minimal_matmul", more=[use(7, "bias_tensor")]), add, read(4)],
        f"{twice} 1",
    )
    row("another argument", [*product(more=[use(7, "optional_output_tensor")]), add, read(4)])
    row(
        "bias and a scatter",
        [*product(more=[bias]), collective("reduce_scatter", 3, 4, "reduce_scatter"), read(4)],
        f"{twice} 1",
    )
    row(
        "bias and a sum over all",
        [*product(more=[bias]), collective("all_reduce", 3, 4, "all_reduce", None), read(4)],
        f"{twice} 1",
    )
    row("bias and a gather", [*product(more=[bias]), collective("all_gather", 3, 4), read(4)])
    for op in ("add", "add_", "subtract", "subtract_"):
        row(
            f"{op} before the sum",
            [*product(), call(op, [3, use(7, "1")], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
            f"{twice} 2",
        )
        cut = use(7, "1", placements=(None, 0))
        row(
            f"{op} of parts before the sum",
            [*product(), call(op, [3, cut], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
        )
    row(
        "a number before the sum",
        [*product(), call("add", [3], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
    )
    row(
        "two parts before the sum",
        [*product(), call("add", [3, 3], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
    )
    row(
        "two biases before the sum",
        [
            *product(more=[bias]),
            call("add", [3, use(7, "1")], [4]),
            collective("all_reduce", 4, 5, "all_reduce"),
            read(5),
        ],
        f"{twice} 1",
    )
    for op, number, said in (
        ("add", 2.0, (f"{twice} 2",)),
        ("add", 0.0, ()),
        ("subtract", 2.0, (f"{twice} 2",)),
        ("multiply", 2.0, ()),
    ):
        steps = [call(op, [3], [4], options={"1": number}), collective("all_reduce", 4, 5, "all_reduce"), read(5)]
        row(f"{op} of {number} before the sum", [*product(), *steps], *said)
    slices = [*product(), collective("all_gather", 3, 4), call("slice", [4], [5]), call("slice", [4], [6])]
    row("gathered parts added and activated", [*slices, call("add", [5, 6], [7], options={"activations": ["gelu"]})])
    row(
        "gathered parts in an activated product",
        [*slices, call("linear", [5, 9], [7], options={"activation": "gelu"})],
        f"{part} 5",
    )
    for op in (
        *("fast_reduce_nc", "mean", "moreh_mean", "moreh_sum", "sum", "experimental.fast_reduce_nc"),
        "experimental.deepseek_moe_fast_reduce_nc",
    ):
        steps = [*product(), collective("all_gather", 3, 4), call(op, [4], [5]), call("gelu", [5], [6])]
        row(f"gathered parts added up by {op}", steps)
    row(
        "gathered parts not added up",
        [*product(), collective("all_gather", 3, 4), call("neg", [4], [5]), call("gelu", [5], [6])],
        f"{part} 4",
    )
    row("part of addmm", [*product(op="ttnn.addmm")[:1], ADDMM, call("gelu", [3], [4])], f"{part} 2")
    share = call("multiply", [9], [7], options={"1": 0.25})
    summed = [call("add", [3, 7], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)]
    row("a fourth of what nobody knows before the sum", [*product(), share, *summed])
    half = call("multiply", [9], [7], options={"1": 0.5})
    row("a half of what nobody knows before the sum", [*product(), half, *summed], f"{twice} 3")
