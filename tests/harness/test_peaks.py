"""Peaks, owners, holes and leaks of programs whose memory can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.conftest import HAS_TTNN, REASON
from tests.tt_impl.worker import launch

BANKS = 12
TILE_BYTES = 2048


def in_dram(*shape: int) -> int:
    """Bytes of a bank that a bf16 tensor of whole tiles takes, its tiles dealt out to the banks."""
    tiles = 1
    for n in shape:
        tiles *= n
    return -(-tiles // 1024 // BANKS) * TILE_BYTES


def mesh(program: dict[str, Any]) -> dict[str, Any]:
    (found,) = program["memory"]["meshes"]
    return found


def test_memory_is_the_same_without_values(measured: dict[str, Any]) -> None:
    """Only who owned memory at the peak is a matter of lines; nothing is computed, so what is read are zeros."""
    with_values, without = measured["leaking_loop"]["memory"], measured["leaking_loop"]["values_off"]
    assert without["memory"] == with_values and without["read"] == 0


def test_peak_inside_an_operation(measured: dict[str, Any]) -> None:
    """``linear(activation=...)`` without a config is two programs, and holds the product and its gelu at once."""
    found = mesh(measured["peak"])
    assert found["devices"] == list(range(8)) and found["DRAM"]["banks"] == BANKS
    peak = found["DRAM"]["peak"]
    assert peak["bytes_per_bank"] == in_dram(512, 256) + in_dram(256, 1024) + 2 * in_dram(512, 1024)
    assert peak["bytes"] == BANKS * peak["bytes_per_bank"]
    assert peak["op"] == "ttnn.linear" and peak["where"].startswith("tests/harness/measured.py:")
    first = peak["live"][0]
    assert (first["op"], first["shape"], first["dtype"], first["count"]) == ("ttnn.linear", [512, 1024], "BFLOAT16", 2)
    assert sum(owner["bytes_per_bank"] for owner in peak["live"]) == peak["bytes_per_bank"]


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_l1_is_never_less_than_its_tensors() -> None:
    """Also where ttnn does not tell the circular buffers of the only program, or none was run."""
    from tt_impl.harness.reports import peaks

    meter: Any = SimpleNamespace(levels=[], history=[], launches=[SimpleNamespace(layout=None, event=0)])
    peak = {"bytes_per_bank": 4096, "bytes": 8192, "event": 0, "op": "ttnn.add", "where": "a.py:1", "live": []}
    place = {"event": 0, "op": "ttnn.add", "where": "a.py:1"}
    assert peaks._with_programs(meter, 0, peak) == {"bytes": 4096, "cb_bytes": 0} | place


def test_what_is_left_at_the_end(measured: dict[str, Any]) -> None:
    """x and w; y was given back by hand and its slice by Python."""
    assert mesh(measured["peak"])["DRAM"]["end_bytes_per_bank"] == in_dram(512, 256) + in_dram(256, 1024)


def test_tensors_and_programs_share_l1(measured: dict[str, Any]) -> None:
    found = mesh(measured["peak"])["L1"]
    assert found["peak"]["bytes_per_bank"] == 512 * 256 // 1024 // 64 * TILE_BYTES
    assert found["peak"]["op"] == "ttnn.add"
    assert 0 < found["with_programs"]["cb_bytes"] <= found["with_programs"]["bytes"] < found["bank_bytes"]
    assert measured["peak"]["memory"]["unknown_layouts"] == 0


def test_holes(measured: dict[str, Any]) -> None:
    """Eight holes, between tensors that are still there, and the rest in one piece."""
    found = mesh(measured["holes"])["L1"]
    each = 512 * 512 // 1024 // 64 * TILE_BYTES
    fragmentation = found["fragmentation"]
    assert fragmentation["free_per_bank"] == found["bank_bytes"] - 8 * each
    assert fragmentation["largest_free_per_bank"] == found["bank_bytes"] - 16 * each
    assert fragmentation["share"] == pytest.approx(8 * each / fragmentation["free_per_bank"], abs=1e-6)
    assert measured["holes"]["memory"]["leaks"] == []


def test_a_loop_that_gives_back_what_it_takes_leaks_nothing(measured: dict[str, Any]) -> None:
    """Although its collective keeps two semaphores: they are made once."""
    assert measured["clean_loop"]["memory"]["leaks"] == []
    assert mesh(measured["clean_loop"])["L1_SMALL"]["end_bytes_per_bank"] > 0


@pytest.mark.parametrize("program", ["leaking_loop", "unmarked_loop"])
def test_leaks_are_named(measured: dict[str, Any], program: str) -> None:
    """A gathered tensor and a semaphore per iteration, whether iterations are marked or found."""
    gathered, semaphore = measured[program]["memory"]["leaks"]
    assert (gathered["op"], gathered["memory"], gathered["shape"]) == ("ttnn.all_gather", "DRAM", [1, 1, 64, 256])
    assert gathered["bytes_per_bank_each"] == in_dram(64, 256)
    assert (semaphore["op"], semaphore["memory"], semaphore["bytes_per_bank_each"]) == (
        "ttnn.create_global_semaphore",
        "L1",
        32,
    )
    assert gathered["marked"] == (program == "leaking_loop")
    assert gathered["iterations"] == 4 and gathered["where"] in gathered["sentence"]


def test_two_leaks_of_one_line(measured: dict[str, Any]) -> None:
    narrow, wide = sorted(measured["two_leaks"]["memory"]["leaks"], key=lambda leak: leak["shape"])
    assert narrow["where"] == wide["where"] and (narrow["shape"], wide["shape"]) == ([64, 64], [64, 256])
    assert [leak["bytes_per_bank_each"] for leak in (narrow, wide)] == [in_dram(64, 64), in_dram(64, 256)]
    assert {leak["iterations"] for leak in (narrow, wide)} == {4}


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
@pytest.mark.parametrize(("name", "banks", "devices"), [("galaxy", 12, 32), ("bh-qb", 8, 4)])
def test_other_machines(name: str, banks: int, devices: int, tmp_path: Path) -> None:
    """The same program takes the same tiles, dealt to the banks of that chip."""
    ran = launch("tests.harness.measured", str(tmp_path), name, "peak", folder=tmp_path, timeout=170)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = mesh(json.loads((tmp_path / "peak.json").read_text(encoding="utf-8")))
    tiles = (512 * 256 // 1024, 256 * 1024 // 1024, 512 * 1024 // 1024, 512 * 1024 // 1024)
    assert sorted(found["devices"]) == list(range(devices)) and found["DRAM"]["banks"] == banks
    assert found["DRAM"]["peak"]["bytes_per_bank"] == sum(-(-count // banks) * TILE_BYTES for count in tiles)
