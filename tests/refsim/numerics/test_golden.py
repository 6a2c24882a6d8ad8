"""Level exact, bit for bit: the values that Tenstorrent's simulator (ttsim 1.10) gave, and published silicon results.

A key of the golden file says what its values are: ``matmul.normal.bf16.k64.both.HiFi2.dst16`` has its operands under
``matmul.normal.bf16.k64.in0`` and ``in1``; ``both`` are the two architectures.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from refsim.numerics import ARCHES, accumulate, eltwise, matmul, pack

GOLDEN = Path(__file__).with_name("golden.safetensors")
DTYPES = {"bf16": "bfloat16", "bfp8_b": "bfloat8_b", "bfp4_b": "bfloat4_b"}


@cache
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN)


def keys(operation: str, *ends: str) -> list[str]:
    with safe_open(GOLDEN, "pt") as file:
        return [key for key in file.keys() if key.startswith(f"{operation}.") and key.endswith(ends)]


def assert_same_bits(ours: Tensor, wanted: Tensor) -> None:
    assert ours.shape == wanted.shape
    assert torch.equal(ours.contiguous().view(torch.int32), wanted.contiguous().view(torch.int32))


MATMULS = keys("matmul", "fp32", "dst16")
ELTWISES = keys("eltwise", "fp32", "dst16")
PACKS = [key for key in keys("pack", "") if ".to_" in key]
ACCUMULATIONS = keys("l1acc", "to_bf16")


def test_every_result_of_the_file_is_compared():
    outputs = {*MATMULS, *ELTWISES, *PACKS, *ACCUMULATIONS}
    inputs = [key for key in golden() if key not in outputs]
    assert (len(MATMULS), len(ELTWISES), len(PACKS), len(ACCUMULATIONS)) == (128, 36, 21, 6)
    assert all(key.endswith((".in0", ".in1", ".a", ".b", "_dst", ".held")) for key in inputs)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("key", MATMULS)
def test_matmul(key, arch):
    operands = key.split(".both.")[0]
    fidelity, destination = key.split(".")[-2:]
    pairs = zip(golden()[f"{operands}.in0"], golden()[f"{operands}.in1"], golden()[key], strict=True)
    for in0, in1, wanted in pairs:
        ours = matmul(in0, in1, fidelity=fidelity, fp32_dest_acc_en=destination == "fp32", arch=arch)
        assert_same_bits(ours, wanted)


@pytest.mark.parametrize("key", ELTWISES)
def test_eltwise(key):
    _, family, operation, *fidelity, destination = key.split(".")
    a, b = (golden()[f"eltwise.{family}.{name}"] for name in "ab")
    chosen = {"fidelity": fidelity[0]} if fidelity else {}
    assert_same_bits(eltwise(operation, a, b, fp32_dest_acc_en=destination == "fp32", **chosen), golden()[key])


@pytest.mark.parametrize("key", PACKS)
def test_pack(key):
    source, _, name = key.rpartition(".to_")
    dtype = DTYPES[name.removesuffix("_precise")]
    assert_same_bits(pack(golden()[source], dtype, precise=name.endswith("_precise")), golden()[key])


@pytest.mark.parametrize("key", ACCUMULATIONS)
def test_accumulate(key):
    _, family, way = key.split(".")
    wide = way.startswith("fp32")
    x = golden()[f"pack.{family}.{'fp32' if wide else 'bf16'}_dst"]
    held = golden()[f"l1acc.{family}.held"]
    assert_same_bits(accumulate(held, x, dtype="bfloat16", fp32_dest_acc_en=wide), golden()[key])


@pytest.mark.parametrize(
    ("operation", "a", "b", "fidelity", "wanted"),
    [
        ("mul", 1.3125, 7.96875, "HiFi2", 10.4375),  # tt-metal 12923
        ("mul", 1.3125, 7.96875, "HiFi4", 10.5),
        ("mul", -3.640625, 0.298828125, "HiFi4", -1.09375),  # 16448
        ("mul", -3.640625, 0.30078125, "HiFi4", -1.1015625),
    ],
)
def test_products_of_silicon(operation, a, b, fidelity, wanted):
    given = torch.full((1, 1), a), torch.full((1, 1), b)
    assert eltwise(operation, *given, fidelity=fidelity, fp32_dest_acc_en=False).item() == wanted


@pytest.mark.parametrize(("wide", "wanted"), [(False, 8192.0), (True, 6144.0)])
def test_ones_summed_on_silicon(wide, wanted):
    """tt-metal 8449: ones, K = 6144."""
    assert matmul(torch.ones(1, 6144), torch.ones(6144, 1), fp32_dest_acc_en=wide).item() == wanted


def test_packing_on_silicon():
    """tt-metal 17018: fp32 1.00390625 to bf16; 57410: 3.875 beside 8 in bfp4, from the packer."""
    assert pack(torch.tensor([1.00390625]), "bfloat16").item() == 1.0078125
    block = torch.zeros(16)
    block[:2] = torch.tensor([8.0, 3.875])
    assert pack(block, "bfloat4_b")[:2].tolist() == [8.0, 2.0]
