"""What a call is given: each rule takes what the program gives, and says what is wrong with anything else."""

import copy

import pytest

from parity.kinds.ttnn.call_arguments import LINEAR, Where, wrong
from refsim.base.mesh import get_mesh

WHERE = Where(get_mesh("bh-loudbox"), (11, 10), (2, 4), 2, 4)
_ROWS = [1, 1, 2048]
GATHERED = {
    "op": "ttnn.experimental.all_gather_minimal_matmul_async",
    "inputs": [[s, s, "BFLOAT16", "DRAM"] for s in ([*_ROWS, 608], [1, 1, 2432, 1824])],
    "outputs": [[[*_ROWS, 1824], [*_ROWS, 1824], "BFLOAT16", "DRAM"]],
    "arguments": {
        **{"num_links": 2, "cluster_axis": 1, "topology": "Ring", "num_workers_per_link": 6},
        **{"num_buffers_per_channel": 37, "fused_activation": "SILU"},
    },
    "compute": {"fidelity": "HiFi2", "approximate": True, "fp32": True, "l1_accumulation": True},
    "matmul": {"m": 6, "k": 1, "n": 7, "h": 3, "w": 1, "grid": [11, 9]},
}
RING = {
    "op": "ttnn.transformer.ring_joint_scaled_dot_product_attention",
    "inputs": [[[1, 10, 2048, 64], [1, 10, 2048, 64], "BFLOAT16", "DRAM"]] * 3,
    "outputs": [],
    "arguments": {"num_links": 2, "cluster_axis": 0, "topology": "Linear"},
    "compute": {"fidelity": "HiFi2", "approximate": False, "fp32": False, "l1_accumulation": False},
    "sdpa": {"q": 256, "k": 512, "approximate": False, "grid": [11, 9]},
}
LOCAL = {
    "op": "ttnn.transformer.scaled_dot_product_attention",
    "inputs": [[[1, 4, 160, 64], [1, 4, 160, 64], "BFLOAT16", "DRAM"]] * 3,
    "outputs": [],
    "arguments": {"output_concat_heads": True},
    "compute": RING["compute"],
    "sdpa": {"q": 32, "k": 32, "approximate": False, "grid": [11, 10]},
}


@pytest.mark.parametrize("call", [GATHERED, RING, LOCAL])
def test_what_documents_ask_for_is_right(call):
    assert wrong(call, WHERE) == []


@pytest.mark.parametrize(
    ("call", "part", "name", "value", "says"),
    [
        (GATHERED, "compute", "fp32", False, "fp32 is False, not True"),
        (GATHERED, "arguments", "num_links", 1, "1 links, and the axis has 2"),
        (GATHERED, "arguments", "topology", "Linear", "it is Linear, and the axis Ring"),
        (GATHERED, "arguments", "num_workers_per_link", 11, "11 workers a link leave links"),
        (GATHERED, "arguments", "num_buffers_per_channel", 39, "39 packets a channel, where 39 fit and 37 are right"),
        (GATHERED, "arguments", "fused_activation", "GELU_TANH", "37 packets a channel, where 39 fit and 38 are right"),
        (GATHERED, "matmul", "grid", [11, 10], "cores [11, 10], not [11, 9]"),
        (GATHERED, "matmul", "m", 3, "block m of 3 tiles, where 6 would do for 6"),
        (GATHERED, "matmul", "n", 8, "block n of 8 tiles, where 7 would do for 7"),
        (GATHERED, "matmul", "k", 4, "does not divide a ring's share of 19"),
        (GATHERED, "matmul", "h", 2, "a part of 2 x 1 tiles is not the largest"),
        (RING, "sdpa", "q", 128, "chunks of 128 and 512 rows, not 256 and 512"),
        (RING, "sdpa", "approximate", True, "exp is approximated"),
        (RING, "sdpa", "grid", [11, 10], "cores [11, 10], not [11, 9]"),
        (RING, "compute", "fidelity", "HiFi4", "fidelity is HiFi4, not HiFi2"),
        (LOCAL, "sdpa", "k", 64, "chunks of 32 and 64 rows, not 32 and 32"),
    ],
)
def test_anything_else_is_said(call, part, name, value, says):
    spoiled = copy.deepcopy(call)
    spoiled[part][name] = value
    assert any(says in sentence for sentence in wrong(spoiled, WHERE))


def test_few_rows_stay_in_l1_and_fp32_takes_all_passes():
    few = copy.deepcopy(GATHERED)
    few["inputs"][0][:2] = few["outputs"][0][:2] = [[1, 1, 128, 608]] * 2
    assert any("hidden features of 128 rows lie in DRAM, not in L1" in sentence for sentence in wrong(few, WHERE))
    linear = {"op": "ttnn.linear", "inputs": [[[1, 1, 1, 64], [1, 1, 32, 64], "FLOAT32", "DRAM"]] * 2, "outputs": []}
    linear |= {"arguments": {}, "compute": GATHERED["compute"]}
    assert any("fidelity is HiFi2, not HiFi4" in sentence for sentence in wrong(linear, WHERE))


ROW = [[1, 1, 32, 64], [1, 1, 32, 64]]


@pytest.mark.parametrize(
    ("op", "dtypes", "result", "more", "says"),
    [
        ("add", ["BFLOAT16", "BFLOAT16"], "FLOAT32", {}, "both of what it is made of were rounded"),
        ("add", ["FLOAT32", "BFLOAT16"], "FLOAT32", {"arguments": {"dtype": "FLOAT32"}}, ""),
        ("subtract", ["BFLOAT16", "FLOAT32"], "BFLOAT16", {}, "is not told which the result is"),
        ("linear", ["BFLOAT16", "FLOAT32", "FLOAT32"], "FLOAT32", {"compute": LINEAR}, "was rounded"),
        ("multiply", ["BFLOAT16", "BFLOAT16"], "FLOAT32", {"squares": True}, ""),
        ("multiply", ["BFLOAT16", "BFLOAT16"], "BFLOAT16", {"squares": True}, "a square"),
        ("matmul", ["FLOAT32", "BFLOAT16"], "FLOAT32", {}, "multiplied with bf16"),
        ("matmul", ["BFLOAT16", "FLOAT32"], "FLOAT32", {}, ""),
        ("concat", ["BFLOAT16"], "BFLOAT16", {}, "it joins one tensor"),
        ("concat", ["BFLOAT16", "BFLOAT16"], "BFLOAT16", {}, ""),
    ],
)
def test_statistics_stay_in_fp32(op, dtypes, result, more, says):
    call = {"op": f"ttnn.{op}", "arguments": {}, "inputs": [[*ROW, dtype, "DRAM"] for dtype in dtypes]}
    found = wrong(call | {"outputs": [[*ROW, result, "DRAM"]]} | more, WHERE)
    assert (found == []) if not says else says in found[0]


def test_partial_sums_lie_where_they_fit():
    """Half a MiB for each of 110 cores, and the sums of both directions of a line."""
    for rows, memory, right in (
        (32, "L1", True),
        (32, "DRAM", False),
        (13 * 1024, "L1", True),
        (14 * 1024, "L1", False),
    ):
        given = {"cluster_axis": 1, "num_links": 2, "topology": "Ring", "intermediate_memory_config": memory}
        tensor = [[1, 1, rows, 1024], [1, 1, rows, 1024], "BFLOAT16", "DRAM"]
        call = {"op": "ttnn.reduce_scatter", "arguments": given, "inputs": [tensor], "outputs": []}
        assert (wrong(call, WHERE) == []) == right


CONV = {
    "op": "ttnn.experimental.conv3d",
    "inputs": [[[1, 3, 10, 6, 96], [1, 3, 10, 6, 96], "BFLOAT16", "DRAM"]],
    "outputs": [],
    "arguments": {"kernel_size": [3, 3, 3], "output_channels": 96},
    "conv": {"c_in": 96, "c_out": 96, "h": 8, "w": 6, "grid": [11, 10]},
}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("c_in", 96, ""),
        ("c_in", 32, "blocks of 32 and 96 channels, not (96, 96)"),
        ("c_out", 64, "blocks of 96 and 64 channels, not (96, 96)"),
        ("h", 10, "blocks of 10 x 6 pixels, not [8, 6]"),
        ("grid", [11, 9], "cores [11, 9], not [11, 10]"),
    ],
)
def test_a_convolutions_blocks_fit_a_core_and_are_as_large_as_they_can_be(name, value, says):
    call = CONV | {"conv": CONV["conv"] | {name: value}}
    assert [sentence.partition(": ")[2] for sentence in wrong(call, WHERE)] == [says] * bool(says)


@pytest.mark.parametrize(
    ("channels", "q", "k", "right"),
    [(512, 64, 128, True), (512, 64, 256, False), (256, 64, 256, True), (256, 128, 256, False), (288, 64, 128, True)],
)
def test_chunks_of_pixels_leave_room_for_keys_and_values(channels, q, k, right):
    inputs = [[[1, 1, rows, channels], [1, 1, rows, channels], "BFLOAT16", "DRAM"] for rows in (320, 640, 640)]
    call = LOCAL | {"arguments": {}, "inputs": inputs, "sdpa": LOCAL["sdpa"] | {"q": q, "k": k}}
    assert (wrong(call, WHERE) == []) is right


@pytest.mark.parametrize(
    ("choice", "right"),
    [
        ({"mux": {"columns": 8, "links": 2, "workers": 4, "buffers": 48}}, True),
        ({"mux": {"columns": 8, "links": 2, "workers": 5, "buffers": 47}}, False),
        ({"mux": {"columns": 8, "links": 2, "workers": 4, "buffers": 47}}, False),
        ({"mux": {"columns": 8, "links": 2, "workers": 0, "buffers": 0}}, False),
        ({"mux": {"columns": 8, "links": 5, "workers": 0, "buffers": 0}}, True),
        ({"mux": {"columns": 8, "links": 5, "workers": 2, "buffers": 48}}, False),
        ({"lies": {"rows": 511, "in": "L1"}}, True),
        ({"lies": {"rows": 512, "in": "L1"}}, False),
        ({"lies": {"bytes": 1 << 20, "cores": 2, "in": "L1"}}, True),
        ({"lies": {"bytes": 1 + (1 << 20), "cores": 2, "in": "L1"}}, False),
        ({"chunks": {"arch": "blackhole", "sp": 4, "tp": 4, "q": 128, "k": 512}}, True),
        ({"chunks": {"arch": "blackhole", "sp": 4, "tp": 8, "q": 128, "k": 512}}, False),
    ],
)
def test_a_choice_without_a_call_is_judged_too(choice, right):
    assert (wrong({"op": "choice"} | choice, WHERE) == []) is right
