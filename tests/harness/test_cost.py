"""Predicted device times of a program: bounds that no device beats, ranges, and what has no price."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.conftest import HAS_TTNN, REASON

PEAK_FLOPS = 2 * 32**3 / 32 * 64 * 1e9
"""Of a Wormhole's 64 cores at HiFi2: a product of two tiles in 32 cycles of 1 ns."""
LINK_BYTES_PER_NS = 12.5


@pytest.fixture
def predictions(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {p["device_op"]: p for p in measured["costs"]["predictions"]}


def test_matmul_is_no_faster_than_its_cores(predictions: dict[str, dict[str, Any]]) -> None:
    found = predictions["MatmulDeviceOperation"]
    assert found["kind"] == "matmul" and found["op"] == "ttnn.linear" and found["measured"]
    ideal = 2 * 2048 * 1024 * 4096 / PEAK_FLOPS * 1e9
    assert ideal < found["ns"] < 10 * ideal


def test_gather_is_no_faster_than_its_link(predictions: dict[str, dict[str, Any]]) -> None:
    """A line of four: three shards cross the middle link."""
    found = predictions["AllGatherDeviceOperation"]
    least = 3 * 2048 * 1024 * 2 / LINK_BYTES_PER_NS
    assert (found["kind"], found["bound"], found["assumed"]) == ("collective", "fabric", [])
    assert least < found["ns"] < 3 * least


def test_what_the_program_left_to_ttnn_is_said(predictions: dict[str, dict[str, Any]]) -> None:
    assert predictions["ReduceScatterDeviceOperation"]["assumed"] == ["1 link"]


def test_every_price_has_a_range(measured: dict[str, Any]) -> None:
    priced = [p for p in measured["costs"]["predictions"] if "ns" in p]
    assert len(priced) >= 5
    for p in priced:
        assert 0 < p["low_ns"] < p["ns"] < p["high_ns"]


def test_what_has_no_price_is_named(measured: dict[str, Any]) -> None:
    total = measured["costs"]["cost"]
    assert total["unpriced"] == [{"device_op": "ReduceDeviceOperation", "reason": "no formula", "count": 1}]
    assert total["launches"] == total["priced"] + 1
    assert "not measured" in total["source"]


def test_totals(measured: dict[str, Any]) -> None:
    """Every device runs all launches, one after the other, with a gap after each."""
    total, found = measured["costs"]["cost"], measured["costs"]["predictions"]
    gaps = (total["priced"] - 1) * 619.0
    for bound in ("ns", "low_ns", "high_ns"):
        assert total[bound] == pytest.approx(sum(p.get(bound, 0.0) for p in found) + gaps, abs=0.5)
    alone = sum(p.get("ns", 0.0) for p in found)
    assert total["gap_ns"] == 619.0 and sum(total["by_kind"].values()) == pytest.approx(alone, rel=1e-6)
    assert total["busy_ns"] == {str(i): pytest.approx(total["ns"] + 619.0, rel=1e-6) for i in range(8)}


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
@pytest.mark.parametrize(
    ("options", "grid", "wires", "assumed"),
    [
        ({"axis": 0, "links": 2, "ring": True}, [8, 8], (2, 2, True, False), []),
        ({"axis": 1, "links": (3, 1), "ring": False}, [8, 9], (4, 3, False, True), []),
        ({"axis": None, "links": None, "ring": False}, [12, 10], (8, 1, False, True), ["1 link"]),
        ({"axis": 1, "links": 1, "ring": None}, [13, 10], (4, 1, False, False), ["Linear"]),
        ({"axis": 1, "links": 1, "ring": None, "is": "Topology::Ring"}, [8, 8], (4, 1, True, False), ["Ring"]),
    ],
)
def test_wires_of_a_collective(options: dict[str, Any], grid: list[int], wires: tuple, assumed: list[str]) -> None:
    from tt_impl.harness.reports.cost import _wires

    launch: Any = SimpleNamespace(options=options, program=SimpleNamespace(attributes=options.get("is", "")))
    found, said = _wires(launch, {"shape": [2, 4], "grid": grid})
    assert (found.size, found.links, found.ring, found.galaxy) == wires and said == assumed


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
@pytest.mark.parametrize(
    ("op", "causal", "found"),
    [
        ("ttnn.transformer.scaled_dot_product_attention", None, True),
        ("ttnn.transformer.scaled_dot_product_attention", False, False),
        ("ttnn.transformer.joint_scaled_dot_product_attention", None, False),
        ("ttnn.transformer.joint_scaled_dot_product_attention", True, True),
    ],
)
def test_attention_is_causal_by_default(op: str, causal: bool | None, found: bool) -> None:
    from tt_impl.harness.reports.cost import _is_causal

    launch: Any = SimpleNamespace(op=op, options={"causal": causal})
    assert _is_causal(launch) == found


def test_submeshes_run_at_once_unless_the_host_waits_between(measured: dict[str, Any]) -> None:
    at_once, serial = measured["halves"]["cost"], measured["serial_halves"]["cost"]
    assert at_once["busy_ns"] == serial["busy_ns"] and len(at_once["busy_ns"]) == 8
    assert serial["ns"] == pytest.approx(2 * at_once["ns"] + 619.0, rel=1e-6)
