"""Prices of device operations by ttnn's names, and how far measurements may lie from them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from refsim.timing.cost.device_ops import Unpriced, price
from refsim.timing.fit import measured, spread
from refsim.timing.fit.measured import Measured
from refsim.timing.predict import ranges
from refsim.timing.read.device_op import DeviceOp, Wires
from refsim.timing.read.op_names import KINDS
from refsim.timing.read.tensors import OpTensor

X = OpTensor((1, 1, 2048, 1024), "bf16", "DEV_0_DRAM_INTERLEAVED", "TILE", 2048)


def op(name: str, *inputs: OpTensor, out: OpTensor = X, **options) -> DeviceOp:
    return DeviceOp(name, "wormhole_b0", 64, "HiFi2", inputs or (X,), (out,), **options)


def test_a_collective_by_links_and_topology() -> None:
    gather = op("AllGatherAsyncDeviceOperation", wires=Wires(8, 1))
    assert price(gather).kind == "collective" and price(gather).measured
    four = price(replace(gather, wires=Wires(8, 4))).ns
    assert four < price(replace(gather, wires=Wires(8, 1, ring=True))).ns < price(gather).ns


def test_collectives_that_nobody_measured_are_called_so() -> None:
    """Measurements of gathers and scatters alone are among those that ``spread.json`` is made of."""
    wires = Wires(8, 1)
    assert price(op("ReduceScatterMinimalAsyncDeviceOperation", wires=wires)).measured
    for name in ("AllReduceAsyncDeviceOperation", "AllToAllAsyncDeviceOperation"):
        assert not price(op(name, wires=wires)).measured


def test_heads_are_priced_by_all_that_is_written() -> None:
    """Three results of a third each cost what one whole result costs."""
    whole = op("NlpCreateHeadsDeviceOperation", X)
    third = replace(X, shape=(1, 16, 2048, 64))
    none = replace(X, shape=(1, 0, 2048, 64))
    heads = replace(whole, outputs=(third, none, none))
    assert price(heads).ns == pytest.approx(price(whole).ns, rel=0.05)
    assert not price(heads).measured and price(op("SliceDeviceOperation")).measured


def test_blocks_that_the_program_chose() -> None:
    w = replace(X, shape=(1, 1, 1024, 1024))
    small = "MinimalMatmulConfig(M_block_size=1,K_block_size=1,N_block_size=1,compute_with_storage_grid_size=8-8)"
    product = op("MinimalMatmulDeviceOperation", X, w)
    assert price(replace(product, attributes=small)).ns > 1.5 * price(product).ns


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (op("ReduceDeviceOperation"), "no formula"),
        (op("AllGatherAsyncDeviceOperation", wires=Wires(size=0)), "how many devices"),
        (op("AllReduceAsync", replace(X, dtype="INT4"), wires=Wires(8)), "dtype 'INT4'"),
        (op("OptimizedConvNew", X, X), "num_cores_nhw"),
        (op("Matmul"), "one operand"),
        (op("SDPAOperation", X, causal=True, attributes="q_chunk_size=32;k_chunk_size=32"), "keys and values"),
        (op("SDPAOperation", X, X, X), "chunk sizes"),
        (op("UnaryDeviceOperation", replace(X, shape=(1, 0, 32, 32))), "no tensor"),
    ],
)
def test_what_has_no_price_says_why(operation: DeviceOp, reason: str) -> None:
    with pytest.raises(Unpriced, match=reason):
        price(operation)


def test_a_profiler_file_is_read_by_its_own_names(tmp_path: Path) -> None:
    """Signposts, which have no duration, are left out; the same operation twice is one, with the mean time."""
    row = {
        "OP CODE": "AllGatherAsyncDeviceOperation",
        "DEVICE ARCH": "blackhole",
        "ATTRIBUTES": "{'num_links': '2'; 'ring_size': '4'; 'topology': 'Topology::Ring'}",
        "MATH FIDELITY": "",
        "CORE COUNT": "20",
        **{f"{n}_{axis}_PAD[LOGICAL]": f"{s}[{s}]" for n in ("INPUT_0", "OUTPUT_0") for axis, s in _sizes(n)},
        **{f"{n}_{what}": v for n in ("INPUT_0", "OUTPUT_0") for what, v in _kinds()},
    }
    rows = [row | {"DEVICE KERNEL DURATION [ns]": ns} for ns in ("1000", "3000", "")]
    with (tmp_path / "ops.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (read,) = measured.trace(tmp_path / "ops.csv")
    found = read.op
    assert read.ns == 2000 and found.wires == Wires(4, 2, ring=True)
    assert found.inputs[0].shape == (1, 1, 64, 32) and found.outputs[0].shape == (1, 1, 64, 128)


def _sizes(name: str) -> list[tuple[str, int]]:
    return list(zip("WZYX", (1, 1, 64, 32 if name == "INPUT_0" else 128), strict=True))


def _kinds() -> list[tuple[str, str]]:
    return [("DATATYPE", "BFLOAT16"), ("MEMORY", "DEV_0_DRAM_INTERLEAVED"), ("LAYOUT", "TILE")]


def test_spread_is_that_of_measured_over_predicted() -> None:
    """Eleven operations, measured from 0.5 to 1.5 times as long as predicted: four in five lie in 0.6 to 1.4."""
    predicted = price(op("UnaryDeviceOperation")).ns
    samples = [Measured(op("UnaryDeviceOperation"), predicted * (0.5 + i / 10)) for i in range(11)]
    found = spread.of(spread.ratios(samples))["wormhole_b0"]
    assert found["elementwise"] == {"low": 0.6, "high": 1.4, "shapes": 11, "fitted": False}


def test_every_class_has_a_spread() -> None:
    for arch in spread.ARCHES:
        for kind in (*KINDS, "all"):
            found = ranges.get_spread(kind, arch)
            assert 0.3 < found.low <= 1 <= found.high < 4 and found.low < found.high and found.shapes >= ranges.LEAST
