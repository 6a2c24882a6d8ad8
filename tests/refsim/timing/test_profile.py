"""Profiler files of several years and of anyone, and how far predictions lie from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from benchmarks import trace_accuracy
from refsim.base.errors import UserError
from refsim.timing.cost import device_ops
from refsim.timing.cost.device_ops import price
from refsim.timing.cost.matmul import tile_cycles
from refsim.timing.fit import calibrate
from refsim.timing.read import op_names, profile
from refsim.timing.read.device_op import DeviceOp, Wires
from refsim.timing.read.tensors import OpTensor
from tests.json_output import loads

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no measured traces at {TRACES}")
X = OpTensor((1, 1, 2048, 1024), "bf16", "DEV_0_DRAM_INTERLEAVED", "TILE", 2048)
W = OpTensor((1, 1, 1024, 1024), "bf16", "DEV_0_DRAM_INTERLEAVED", "TILE", 1024)
ON_100 = "program_config: (in0_block_w=4;out_subblock_h=1;out_subblock_w=4;per_core_M={};per_core_N={};fuse_batch={})"


def row(op: str, ns: object, old: bool = False, **more: str) -> dict[str, str]:
    """A row of a profiler's file; ``old``: as in the years when it named neither the chip nor logical sizes."""
    found = {"OP CODE": op, "OP TYPE": "tt_dnn_device", "DEVICE ID": "0", "CORE COUNT": "64", "MATH FIDELITY": "HiFi2"}
    found["DEVICE KERNEL DURATION [ns]"] = str(ns)
    for name in ("INPUT_0", "OUTPUT_0"):
        for axis, size in zip("WZYX", (1, 1, 2048, 1024), strict=True):
            found[f"{name}_{axis}" + ("" if old else "_PAD[LOGICAL]")] = f"{size}.0" if old else f"{size}[{size}]"
        found |= {f"{name}_DATATYPE": "BFLOAT16", f"{name}_MEMORY": X.memory, f"{name}_LAYOUT": "TILE"}
    return found | ({} if old else {"DEVICE ARCH": "wormhole_b0", "ATTRIBUTES": ""}) | more


def write(path: Path, *rows: dict[str, str]) -> Path:
    pd.DataFrame(rows).fillna("").to_csv(path, index=False)
    return path


def test_files_of_all_years_say_the_same(tmp_path: Path) -> None:
    old = write(tmp_path / "old.csv", row("Unary", 7000, old=True))
    new = write(tmp_path / "new.csv", row("UnaryDeviceOperation", 7000))
    with pytest.raises(UserError, match="names no chip; say arch"):
        profile.read(old)
    a, b = profile.read(old, "wormhole_b0").iloc[0], profile.read(new).iloc[0]
    assert a["inputs"] == b["inputs"] == (X,) and a["outputs"] == b["outputs"] and a["arch"] == b["arch"]
    assert price(profile.device_op(a)) == price(profile.device_op(b))


def test_a_file_that_is_none_of_a_profiler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column 'DEVICE KERNEL DURATION"):
        profile.read(write(tmp_path / "x.csv", {"a": "1"}))
    with pytest.raises(UserError, match=r"cannot be read as CSV \(No such file"):
        profile.read(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match="cannot be read as CSV"):
        profile.read(tmp_path / "empty.csv")
    with pytest.raises(UserError, match="the chip 'grayskull', which the model does not have"):
        profile.read(write(tmp_path / "gs.csv", row("Unary", 1, **{"DEVICE ARCH": "grayskull"})))


def test_endings_and_case_of_names_say_nothing() -> None:
    for names in (
        ("Matmul", "MatmulDeviceOperation"),
        ("MinimalMatmulOp", "MinimalMatmulDeviceOperation"),
        ("NLPCreateHeadsDeviceOperation", "NlpCreateHeads"),
        ("AllGatherAsync", "AllGatherAsyncDeviceOperation"),
        ("RingJointSDPADeviceOperation", "RingJointSDPA"),
    ):
        first, second = map(op_names.op_name, names)
        assert first is not None and first == second
    assert op_names.op_name("NoSuchDeviceOperation") is None and op_names.op_name(" ") is None


def test_what_is_unknown_is_counted_and_named_and_what_did_not_run_is_left_out(tmp_path: Path) -> None:
    file = write(
        tmp_path / "ops.csv",
        row("Unary", 9000), row("MadeUpDeviceOperation", 1000), row("MadeUpDeviceOperation", 3000),
        row("block starts", "", **{"OP TYPE": "signpost"}),
    )  # fmt: skip
    found = trace_accuracy.document(trace_accuracy.compare([file]))
    assert found.unclassified == [
        {"op": "MadeUpDeviceOperation", "reason": "no formula", "runs": 2, "us": 4.0, "share": pytest.approx(4 / 13)}
    ]
    assert found.signposts_and_host_rows == 1
    assert [(c["class"], c["shapes"]) for c in found.classes] == [("elementwise", 1), ("all", 1)]


@pytest.mark.parametrize(
    ("ns", "more", "reason"),
    [
        ("-5", {}, "with a negative kernel time"),
        ("0", {}, "with a kernel time of 0"),
        ("", {}, "without a kernel time"),
        ("n/a", {}, "with a kernel time that is no number"),
        ("6921339051", {"OP TO OP LATENCY [ns]": "-6921328034"}, "with a kernel time of more than a second"),
        ("9000", {"CORE COUNT": "-1"}, "with a core count that is not positive"),
        ("9000", {"AVAILABLE WORKER CORE COUNT": "20"}, "with more cores than the device has"),
    ],
)
def test_rows_that_no_device_can_have_written(tmp_path: Path, ns: str, more: dict[str, str], reason: str) -> None:
    """They are counted by reason, and neither compared nor fitted on."""
    file = write(tmp_path / "ops.csv", row("Unary", 9000), row("Unary", ns, **more))
    compared = trace_accuracy.compare([file])
    found = trace_accuracy.document(compared)
    assert found.impossible == {reason: 1} and found.signposts_and_host_rows == 0
    assert [d["measured_us"] for d in found.devices] == [9.0]
    assert f"left out: 1 {reason}" in trace_accuracy.text(compared)
    fitted = calibrate.fit([file])
    assert fitted.left_out == {reason: 1} and f"Not counted: 1 {reason}." in calibrate.text(fitted)


def test_a_file_without_a_row_that_can_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ops.csv has no row of a device .*: 2 with a negative kernel time"):
        profile.read(write(tmp_path / "ops.csv", row("Unary", -5), row("Unary", -1)))


def test_devices_are_named_as_numbers_and_files_without_a_chip_are_left_out(tmp_path: Path) -> None:
    named = write(tmp_path / "new.csv", row("Unary", 7000, **{"DEVICE ID": "0.0"}))
    nameless = write(tmp_path / "old.csv", row("Unary", 7000, old=True))
    found = trace_accuracy.document(trace_accuracy.compare([named, nameless]))
    assert [d["device"] for d in found.devices] == ["0"] and list(found.files) == ["new.csv"]
    assert found.impossible == {"file old.csv, which names no chip: say --arch": 1}
    with pytest.raises(profile.NoChip):
        profile.read_all([nameless])
    many = write(tmp_path / "many.csv", row("Unary", 7000, old=True, **{"AVAILABLE WORKER CORE COUNT": "110"}))
    with pytest.raises(UserError, match="devices of 110 worker cores, more than a wormhole_b0 has"):
        profile.read(many, "wormhole_b0")


def test_errors_by_class_by_time_and_by_device(tmp_path: Path) -> None:
    """One operation exactly as predicted thrice, another one twice as long: MAPE of shapes, and by time."""
    exact = price(DeviceOp("Unary", "wormhole_b0", 64, "HiFi2", (X,), (X,))).ns
    slow = 2 * price(DeviceOp("Transpose", "wormhole_b0", 64, "HiFi2", (X,), (X,))).ns
    rows = [row("Unary", exact, **{"DEVICE ID": device}) for device in ("0", "1", "1")]
    file = write(tmp_path / "ops.csv", *rows, row("Transpose", slow, **{"DEVICE ID": "1"}))
    found = trace_accuracy.document(trace_accuracy.compare([file]))
    whole = found.classes[-1]
    assert whole["mape"] == pytest.approx(0.25) and whole["worst"] == pytest.approx(0.5)
    assert whole["by_time"] == pytest.approx(0.5 * slow / (3 * exact + slow))
    assert [d["critical"] for d in found.devices] == [False, True]
    assert found.devices[1]["error"] == pytest.approx((2 * exact + slow / 2) / (2 * exact + slow) - 1)
    assert found.worst[0]["op"] == "Transpose"


def product(x: OpTensor, w: OpTensor, attributes: str = "", **more: Any) -> float:
    out = replace(x, shape=(1, max(x.shape[1], w.shape[1]), x.shape[2], w.shape[3]))
    return price(DeviceOp("Matmul", "blackhole", 100, "HiFi2", (x, w), (out,), attributes, **more)).ns


def test_tiles_per_core_that_the_program_says_are_used() -> None:
    few, many = (product(X, W, ON_100.format(m, n, 1)) for m, n in ((32, 16), (8, 4)))
    assert few > 2 * many, "2 x 2 cores against 8 x 8"


def test_products_of_a_batch_run_one_after_the_other_and_a_shared_operand_serves_all() -> None:
    batch = replace(W, shape=(1, 8, 1024, 1024))
    one, eight = (product(X, w, ON_100.format(8, 4, 0)) for w in (W, batch))
    launch = device_ops.get_params("blackhole").launch_ns
    each = product(replace(X, shape=(1, 8, 2048, 1024)), batch, ON_100.format(8, 4, 0))
    assert each - launch == pytest.approx(8 * (one - launch))
    assert 4 * (one - launch) < eight - launch < each - launch, "the shared operand is read once"
    fused = product(replace(X, shape=(1, 8, 256, 1024)), W, ON_100.format(8, 4, 1))
    assert fused == pytest.approx(one), "as many rows in one matrix"


def test_what_lies_in_the_l1_of_all_cores_is_written_faster_than_to_dram_but_not_at_once() -> None:
    def ns(memory: str) -> float:
        out = replace(X, memory=memory)
        return price(DeviceOp("Matmul", "blackhole", 64, "HiFi2", (X, W), (out,), ON_100.format(8, 4, 1))).ns

    there, everywhere, far = (ns(f"DEV_0_{m}") for m in ("L1_BLOCK_SHARDED", "L1_INTERLEAVED", "DRAM_INTERLEAVED"))
    assert there < everywhere < far


def test_operands_have_dtypes_of_their_own() -> None:
    small = {name: replace(W, dtype=name) for name in ("bf16", "bfp8")}
    assert product(X, small["bfp8"]) < product(X, small["bf16"])
    mixed, whole = product(X, small["bfp8"]), product(replace(X, dtype="bfp8"), small["bfp8"])
    assert whole < mixed, "a bf16 operand beside bfp8 weights is read as bf16"
    params = device_ops.get_params("wormhole_b0")
    cycles = [tile_cycles(params, (2, 2), "LoFi", (x, w, "bf16")) for x, w in (("bf16", "bf16"), ("bf16", "bfp8"))]
    assert cycles[1] < cycles[0] and cycles[1] == tile_cycles(params, (2, 2), "LoFi", ("bfp8", "bf16", "bf16"))


def test_fidelity_counts_in_batched_products_too() -> None:
    few = replace(X, shape=(1, 4, 512, 512)), replace(X, shape=(1, 4, 512, 512))
    out = replace(X, shape=(1, 4, 512, 512))
    ns = [price(DeviceOp("Matmul", "blackhole", 4, f, few, (out,))).ns for f in ("LoFi", "HiFi4")]
    assert ns[0] < ns[1]


def attention(name: str, text: str = "", size: int = 1, width: int = 128, heads: int = 8) -> float:
    q, v = (OpTensor((1, heads, 4096, w), "bf16", X.memory, "TILE", 4096) for w in (width, 128))
    chunks = "q_chunk_size=128;k_chunk_size=256"
    return price(DeviceOp(name, "blackhole", 110, "HiFi2", (q, q, v), (v,), chunks + text, Wires(size, 8))).ns


def test_causal_attention_leaves_about_half_out() -> None:
    whole, causal = attention("SDPAOperation"), attention("SDPAOperation", "'is_causal': 'true'")
    assert 0.5 * whole < causal < 0.6 * whole
    now = "'is_causal': 'true'; 'is_cross': 'false'"
    ring, first_shards = (attention("RingJointSDPA", text, 4) for text in ("", now))
    balanced = attention("RingJointSDPA", f"{now}; 'is_balanced': 'true'", 4)
    assert first_shards == pytest.approx((1 + 2 + 3 + 4) / 16 * ring, rel=0.05)  # its own shard takes a whole step
    assert balanced == pytest.approx((1 + 3 / 2) / 4 * ring, rel=0.05)


def test_keys_wider_than_values_cost_what_they_add() -> None:
    narrow, wide = attention("SDPAOperation", width=128), attention("SDPAOperation", width=576)
    assert narrow < wide < 576 / 128 * narrow


@needs_traces
def test_no_operation_of_eight_blackholes_is_without_a_class() -> None:
    found = trace_accuracy.compare([TRACES / "bh_8xp150_deepseek_v3_d_p.csv"])
    assert trace_accuracy.unclassified(found).empty and len(found.runs) == 208
    devices = trace_accuracy.devices(found)
    assert len(devices) == 8 and devices["critical"].sum() == 1
    judged = found.shapes.query("kind in ('matmul', 'sdpa') or op.str.startswith('ReduceScatter')")
    size = judged["error"].abs()
    assert len(judged) == 11 and size.mean() <= 0.20
    assert (size * judged["total_ns"]).sum() / judged["total_ns"].sum() <= 0.15


def test_the_command_takes_a_folder_of_files(tmp_path: Path) -> None:
    from refsim.cli.app import app

    with pytest.raises(UserError, match="has no CSV file of ttnn's profiler"):
        CliRunner().invoke(app, ["bench", "accuracy", str(tmp_path)], catch_exceptions=False)
    write(tmp_path / "ops.csv", row("Unary", 9000), row("Unary", -1))
    result = CliRunner().invoke(app, ["bench", "accuracy", str(tmp_path), "--json"], catch_exceptions=False)
    assert loads("bench accuracy", result.stdout)["impossible"] == {"with a negative kernel time": 1}


@needs_traces
def test_the_command_reads_several_files_and_refuses_a_folder_among_them(tmp_path: Path) -> None:
    from refsim.cli.app import app

    files = [str(TRACES / name) for name in ("bh_8xp150_deepseek_v3_d_p.csv", "bh_64_clip_encoder_1.csv")]
    words = ["bench", "accuracy", *files, "--json", "--csv", str(tmp_path / "devices.csv")]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    document = loads("bench accuracy", result.stdout)
    notes = document["files"]
    exact = dict.fromkeys(("measured_us", "predicted_us", "error"), float)  # pandas below 3 rounds the last digit
    table = pd.read_csv(tmp_path / "devices.csv", dtype={"device": str}, converters=exact)
    assert table.to_dict("records") == document["devices"]
    assert (
        "nothing was fitted" in notes["bh_8xp150_deepseek_v3_d_p.csv"] and "fitted on it" in notes[Path(files[1]).name]
    )
    shown = CliRunner().invoke(app, ["bench", "accuracy", files[0]], catch_exceptions=False).stdout
    assert "unclassified: nothing" in shown and "critical" in shown
    with pytest.raises(UserError, match="a folder stands alone"):
        CliRunner().invoke(app, ["bench", "accuracy", str(TRACES), files[0]], catch_exceptions=False)
