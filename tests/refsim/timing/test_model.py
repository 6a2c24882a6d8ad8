"""The timing model against arithmetic done by hand, against figures published by others, and against its own data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import accuracy
from refsim.base.mesh import Topology
from refsim.timing.cost import device_ops, fitted, ops, power
from refsim.timing.cost.chips import get_chip
from refsim.timing.cost.fabric import Fabric, fused_ns
from refsim.timing.cost.matmul import (
    MatmulConfig,
    MulticastConfig,
    _issued,
    k_block,
    matmul,
    multicast_matmul,
    sliced_conv2d,
    tile_cycles,
)
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.fit import calibrate, measured, published, spread
from refsim.timing.read.program import programs
from refsim.timing.read.recorder import Op

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no measured traces at {TRACES}")
WH, BH = get_chip("wormhole_b0"), get_chip("blackhole")


def test_peaks_are_the_published_ones():
    assert WH.peak_tflops("HiFi2") == pytest.approx(131, rel=0.01)
    assert BH.peak_tflops("HiFi2") == pytest.approx(304, rel=0.01)
    assert get_chip("blackhole", galaxy=True).peak_tflops("HiFi4") == pytest.approx(166, rel=0.01)


@pytest.mark.parametrize("arch", ["wormhole_b0", "blackhole"])
@pytest.mark.parametrize("m,k,n", [(32, 64, 32), (2048, 2432, 3648), (4096, 4096, 4096), (1, 2432, 14592)])
def test_no_matmul_beats_its_roofline_and_more_work_takes_longer(arch, m, k, n):
    chip, params = get_chip(arch), fitted.get_params(arch)
    cost = matmul(chip, params, m, k, n)
    assert cost.ns > cost.ideal_ns
    assert matmul(chip, params, m, 2 * k, n).ns >= cost.ns
    assert matmul(chip, params, m, k + 256, n).ns > cost.ns  # one more block of K
    assert matmul(chip, params, m, k, n, MatmulConfig("HiFi4")).ns >= cost.ns


def test_a_large_matmul_is_bound_by_compute_and_one_row_by_what_its_readers_draw():
    params = fitted.get_params("wormhole_b0")
    assert matmul(WH, params, 4096, 4096, 4096, MatmulConfig("HiFi4")).bound == "compute"
    assert matmul(WH, params, 1, 2432, 14592).bound == "noc"


def test_ring_attention_of_the_performance_gates_which_nothing_was_fitted_on(monkeypatch):
    """Within 15 % each, latent heads of 576 among them; with the products alone two of the four are off by more."""

    def errors() -> list[float]:
        return [device_ops.price(m.op).ns / m.ns - 1 for m in measured.gates()]

    assert len(errors()) == 4 and all(abs(error) < 0.15 for error in errors())
    whole = fitted.get_params
    monkeypatch.setattr(
        device_ops, "get_params", lambda arch: replace(whole(arch), softmax_cycles=0.0, chunk_cycles=0.0)
    )
    assert sum(abs(error) > 0.15 for error in errors()) >= 2


def test_a_causal_ring_of_before_june_2026_took_as_long_as_published_then():
    serial, *_ = measured.gates(published.SDPA_SERIAL)
    op, ns = serial.op, serial.ns
    before = replace(op, attributes=op.attributes.replace("'is_cross': 'false'", ""))
    assert device_ops.price(before).ns == pytest.approx(ns, rel=0.01)
    assert device_ops.price(op).ns < 0.9 * ns


def test_fewer_keys_a_chunk_and_rows_that_fill_no_chunk_take_longer():
    params = fitted.get_params("blackhole")

    def ns(rows: int, **chunks: int) -> float:
        return sdpa(BH, params, 1, 10, rows, 8192, 128, SDPAConfig(cores=110, **chunks)).ns

    assert ns(2816, q_chunk=256, k_chunk=128) > 1.2 * ns(2816, q_chunk=256, k_chunk=512)
    assert ns(32, q_chunk=256) == ns(256, q_chunk=256)  # padded to a whole chunk


def test_on_the_diagonal_a_ring_keeps_step_with_the_core_of_the_last_rows():
    """Device 0 of a causal ring of two has one step, device 1 two: three steps of two devices."""
    op, *_ = [m.op for m in measured.gates() if "is_causal" in m.op.attributes]
    wires = replace(op.wires, size=2)
    causal = replace(op, wires=wires, attributes=op.attributes.replace("'is_balanced': 'true'", ""))
    full = replace(causal, attributes=causal.attributes.replace("'is_causal': 'true'", ""))
    assert device_ops.price(causal).ns == pytest.approx(0.75 * device_ops.price(full).ns, rel=0.02)


def test_collectives_follow_the_published_fits():
    """tech_reports/CCLs SUMMARY_wormhole, written out: Line of 4, 1 link, packets of 6 KiB, 1 MiB per device."""
    size = 2**20
    line = Fabric(WH, 4, 1, Topology.LINEAR, payload=6144, workers=4)
    assert line.collective_ns("all_gather", size) == pytest.approx(4470 + 3 * 1910 + 3 * size / 11.8, rel=0.1)
    ring = Fabric(WH, 8, 1, Topology.RING, payload=6144).collective_ns("all_gather", size)
    assert ring == pytest.approx(4470 + 4 * 2500 + 7 * size / 20.8, rel=0.05)
    scatter = line.collective_ns("reduce_scatter", 4 * size)
    assert scatter == pytest.approx(3230 + 3 * 3970 + 3 / 4 * 4 * size / 11.1, rel=0.05)


def test_smaller_packets_and_fewer_workers_slow_a_collective_down():
    size = 2**24
    tt_dit, large = Fabric(WH, 4, 4, Topology.RING), Fabric(WH, 4, 4, Topology.RING, payload=6144, workers=4)
    assert tt_dit.collective_ns("all_gather", size) > 1.3 * large.collective_ns("all_gather", size)
    assert tt_dit.collective_ns("reduce_scatter", size) > 1.3 * large.collective_ns("reduce_scatter", size)


def test_packets_of_two_tiles_gather_by_what_two_boards_measured_slower():
    """Issue 57083: 8 KiB gather 8.6 to 22.8 % faster than the default's two tiles; a Galaxy has 8 KiB."""
    box, galaxy = (Fabric(get_chip("blackhole", galaxy=large), 4, 2, Topology.LINEAR) for large in (False, True))
    assert 1.086 < galaxy.rate("gather") / box.rate("gather") < 1.228
    assert replace(box, payload=8192).rate("gather") == galaxy.rate("gather") == pytest.approx(2 * 25 * 0.955)


@needs_traces
def test_gathers_of_a_trace_that_had_no_part_in_the_time_of_a_packet():
    """Four gathers of eight P150 in packets of two tiles; at the rate of 8 KiB they were 16 to 20 % too short."""
    found = [m for m in measured.trace(TRACES / spread.UNSEEN) if "AllGather" in m.op.name]
    errors = [device_ops.price(m.op).ns / m.ns - 1 for m in found]
    assert len(errors) >= 4 and max(map(abs, errors)) < 0.11


def test_a_scatter_worker_moves_every_byte_that_ff2_counts():
    """3.25 x M x N x 2 bytes with addcmul on a ring of 4, 9 GB/s each: 6.6 ms on 8 workers, 3.3 ms on 16."""
    nbytes = 13664 * 5376 * 2
    for workers, ms in ((1, 6.6), (2, 3.3)):
        fabric = Fabric(WH, 4, 4, Topology.RING, workers=workers)
        assert fabric.scatter_workers_ns(nbytes, addcmul=True) / 1e6 == pytest.approx(ms, rel=0.01)


def test_a_gather_inside_a_matmul_fills_packets_only_with_large_blocks():
    fabric = Fabric(get_chip("wormhole_b0", galaxy=True), 8, 4, Topology.RING)
    one, eight = fabric.fused_gather_ns(1024, 6144, 1), fabric.fused_gather_ns(1024, 6144, 8)
    assert one > 2 * eight  # a block of one tile has no second half and half-fills its packet
    assert eight >= fabric.collective_ns("all_gather", 1024 * 6144 / 8 * 2)


@pytest.mark.parametrize("topology", list(Topology))
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_shard_but_ones_own_arrives_once(size, topology):
    arrivals = Fabric(BH, size, 2, topology).arrivals(1e6)
    assert len(arrivals) == size - 1 and list(arrivals) == sorted(arrivals)


def test_two_axes_at_once_share_dram():
    fabric = Fabric(WH, 4, 4, Topology.RING)
    assert fabric.arrivals(1e7, beside_gbps=200)[-1] > 1.5 * fabric.arrivals(1e7)[-1]


@pytest.mark.parametrize("fidelity,cycles", [("HiFi2", 209), ("HiFi4", 281), ("LoFi", 200)])
def test_a_step_of_four_tiles_takes_the_cycles_measured_on_wormhole(fidelity, cycles):
    """minimax_h3_wormhole/ff1.md, experiment 17, unmodified kernel; LoFi and HiFi2 wait for the unpacker alike."""
    params = fitted.get_params("wormhole_b0")
    assert 4 * tile_cycles(params, (2, 2), fidelity) == pytest.approx(cycles, rel=0.05)


def test_blocks_are_computed_in_whole_subblocks():
    """to_qkv of agmm_fused_vs_unfused.md: 21 columns in blocks of 12 are issued as 12 and 10, 54 rows as 54."""
    assert _issued(21, 12, 2) == 22 and _issued(54, 8, 2) == 54 and _issued(3, 16, 4) == 4


def test_fusing_hides_all_but_one_shard():
    assert fused_ns(100.0, 40.0, 4) == 110.0
    assert fused_ns(40.0, 100.0, 4) == 110.0


def test_gathers_inside_matmuls_of_a_model_that_nothing_was_fitted_on():
    """In blocks of 8; the longer of the two and a shard of the other would be up to a third too short."""
    chip = get_chip("blackhole", galaxy=True)
    fabric, priced, longer = Fabric(chip, 4, 2, Topology.RING), [], []
    for line in published.FUSED_GATHERS.split("|"):
        *sizes, us = line.split()
        m, k, n = map(int, sizes)
        config = MatmulConfig("HiFi2", grid=(12, 9), block=(8, 8, 8))
        alone = matmul(chip, fitted.get_params("blackhole"), m, k, n, config).ns
        gather = fabric.fused_gather_ns(m, k, 8)
        priced.append(fabric.gathered_matmul_ns(alone, gather) / float(us) / 1000 - 1)
        longer.append(fused_ns(alone, gather, 4) / float(us) / 1000 - 1)
    assert max(map(abs, priced)) <= 0.15 and min(longer) < -0.30


def test_what_a_blackhole_keeps_up_is_that_of_three_runs():
    assert power.SUSTAINED_TFLOPS == pytest.approx(121, abs=0.5)
    for seconds in power.H3_DENOISING:
        assert power.H3_TFLOP / seconds == pytest.approx(power.SUSTAINED_TFLOPS, rel=0.08)


@needs_traces
def test_the_stored_parameters_are_what_calibration_finds():
    stored = json.loads(fitted.FITTED.read_text())["params"]
    for arch in stored:
        found = calibrate.fit_stored(arch, [m for m in measured.calibration(TRACES) if m.op.arch == arch])
        assert vars(found) == pytest.approx(stored[arch], rel=1e-3)


@needs_traces
def test_validation_files_are_never_fitted_on(monkeypatch):
    opened = []
    whole = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: opened.append(self.name) or whole(self, *a, **k))
    measured.calibration(TRACES)
    assert opened and not set(opened) & set(measured.VALIDATION)


@needs_traces
@pytest.mark.parametrize("arch,most", [("wormhole_b0", 0.20), ("blackhole", 0.20)])
def test_matmuls_of_the_calibration_set(arch, most):
    params = fitted.get_params(arch)
    samples = [s for s in measured.calibration(TRACES) if s.op.arch == arch and s.kind == "matmul"]

    def mape(p: ops.Params) -> float:
        return sum(abs(device_ops.price(s.op, p).ns / s.ns - 1) for s in samples) / len(samples)

    assert mape(params) <= most
    assert mape(replace(params, step_cycles=params.step_cycles + 100)) > most  # the bound means something


@needs_traces
def test_validation_errors_are_within_the_stated_bounds():
    """Matmuls within 20 %, all ops weighted by time within 30 %, on data that nothing was fitted on."""
    rows = {(arch, kind): row for arch, kind, row in accuracy.table(measured.validation(TRACES))}
    for arch in ("wormhole_b0", "blackhole"):
        assert rows[arch, "matmul"]["mape"] <= 0.20
        assert rows[arch, "all"]["by_time"] <= 0.30


@needs_traces
def test_parts_of_the_model_matter_on_validation_data(monkeypatch):
    """Without the relay's pace or the reads' the errors exceed the bounds, without the unpacker's they grow."""

    def errors(arch: str, kind: str) -> float:
        found = [s for s in measured.validation(TRACES) if s.op.arch == arch and s.kind == kind]
        return accuracy.summary(accuracy.errors(found))["mape"]

    whole = fitted.get_params
    stated = errors("wormhole_b0", "matmul")
    monkeypatch.setattr(accuracy, "get_params", lambda arch: replace(whole(arch), unpack_cycles=0.0, step_cycles=0.0))
    assert errors("wormhole_b0", "matmul") > stated
    monkeypatch.setattr(accuracy, "get_params", lambda arch: replace(whole(arch), relay_gbps=1000.0))
    assert errors("wormhole_b0", "matmul") > 0.20
    monkeypatch.setattr(accuracy, "get_params", lambda arch: replace(whole(arch), block_ns=0.0, page_ns=0.0))
    assert errors("blackhole", "matmul") > 0.20


def test_ttnn_matmul_takes_its_blocks_of_k_as_its_source_does():
    assert k_block(64, (103, 1)) == 2 and k_block(9, (1, 8)) == 1  # 1-D
    assert k_block(44, (10, 11)) == 4 and k_block(32, (10, 11)) == 1  # a share for each column, or one


def test_partial_sums_that_leave_the_engine_cost_time():
    params, size = fitted.get_params("blackhole"), (2048, 1024, 2048)
    kept = multicast_matmul(BH, params, *size, MulticastConfig((10, 11), "LoFi", kb=1))
    spilled = multicast_matmul(BH, params, *size, MulticastConfig((10, 11), "LoFi", kb=1, spills=True))
    once = multicast_matmul(BH, params, *size, MulticastConfig((10, 11), "LoFi", kb=32, spills=True))
    assert spilled.ns > kept.ns and spilled.compute_ns > once.compute_ns


def test_several_operands_are_read_together_and_local_ops_wait_for_nothing():
    params = fitted.get_params("blackhole")
    one = ops.by_tiles(BH, params, 2**20, 2 * 2**20)
    two = ops.by_tiles(BH, params, 2**20, 3 * 2**20)
    assert one.ns <= two.ns < 1.6 * one.ns
    assert ops.by_tiles(BH, params, 2**20, 0.0, sharded=True).ns < one.ns / 4


def test_a_distributed_norm_is_two_programs_and_its_scale_and_bias_are_its_own():
    """As in tt_dit's layers/normalization.py and blocks/transformer_block.py."""
    x, row = (1, 1024, 608), (1, 1, 608)
    found = programs([
        *[op("matmul", "linear", ((1, 2432), (608, 2432)), (1, 608))] * 6,
        op("norm", "layer_norm", (x,), x),
        op("collective", "all_gather", ((1, 1024, 2),), (), bytes=8192, size=4),
        op("elementwise", "mul", (x, row), x),
        op("elementwise", "add", (x, row), x),
        op("matmul", "linear", ((1, 1024, 640), (2432, 640)), (1, 1024, 2432)),
        op("collective", "reduce_scatter", ((1, 1024, 2432),), (), bytes=1, size=4),
        op("elementwise", "add", ((608,), x), x),
        op("elementwise", "mul", (x, row), x),
        op("elementwise", "add", (x, x), x),
    ])  # fmt: skip
    assert [o.name for o in found] == [
        "linear", *["slice"] * 6, "statistics", "all_gather", "layer_norm", "linear", "reduce_scatter", "addcmul"
    ]  # fmt: skip
    assert found[0].inputs == ((1, 2432), (6 * 608, 2432))
    assert found[8].bytes == 32 * 8192, "whole tiles travel"


def op(kind: str, name: str, inputs: tuple, output: tuple, **more) -> Op:
    return Op(kind, name, inputs, output, "bf16", "block 0", **more)


def test_a_convolution_costs_more_in_more_slices_and_at_more_fidelity():
    params = fitted.get_params("wormhole_b0")

    def conv(slices: int, fidelity: str) -> float:
        return sliced_conv2d(WH, params, 512 * 512, 256, 128, 3, slices=slices, fidelity=fidelity).ns

    assert conv(16, "HiFi4") > conv(4, "HiFi4") > conv(4, "HiFi2")
    ideal = 2 * 512 * 512 * 256 * 128 * 9 / 1000 / WH.peak_tflops("HiFi4")
    assert conv(16, "HiFi4") > ideal
