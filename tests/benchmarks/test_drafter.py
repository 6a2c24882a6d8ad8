"""The drafter: programs counted as the document counts them, and what a cache must leave alone."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import drafter
from benchmarks.draft import measure, predicted_report
from benchmarks.drafter import DOCUMENT, DOCUMENT_OPS, Kernel, forward, split_ms
from refsim.timing.cost.ops import Cost
from refsim.timing.predict.stages import EAGER_GAP_NS


def test_the_programs_are_those_the_document_counts():
    counts = Counter(k.name for k in forward(8000) if k.toolchain == "tt-lang")
    assert counts == {name: runs for name, (_, runs, _) in DOCUMENT_OPS.items()}


def test_traffic_is_what_the_document_counts():
    """540.0 and 271.2 MiB read, 3.8 and 1.2 written."""
    moved = {k.name: k.moved / 2**20 for k in forward(8000)}
    assert moved["gate_up+silu"] == pytest.approx(540.0 + 3.8, rel=0.001)
    assert moved["down+resadd"] == pytest.approx(271.2 + 1.2, rel=0.001)


def test_attention_waits_five_times_for_nine_tiles():
    """A row of tiles of keys at a time: K and V are two waits for two tiles each, the mask one for one."""
    near, far = (next(k.cost for k in forward(rows) if k.name == "sdpa") for rows in (32000, 64000))
    waited = (5 * drafter.READ_CYCLES + 4 * drafter.MORE_CYCLES) / drafter.CHIP.clock_ghz
    assert far.bound == "noc" and far.ns - near.ns == pytest.approx(1000 * waited)


def test_wall_times_are_the_documents():
    """No parameter of the prediction is fitted on them."""
    for context, (wall, lang, _) in DOCUMENT.items():
        predicted = split_ms(forward(context))
        assert sum(predicted) == pytest.approx(wall, rel=0.2) and predicted[0] == pytest.approx(lang, rel=0.2)


def test_host_and_chip_work_side_by_side_but_for_kernels_that_are_timed():
    def split(*programs: tuple[str, float]) -> tuple[float, ...]:
        kernels = [Kernel("", lane, Cost(gaps * EAGER_GAP_NS, "", 0, 0, 0), 0, 0, 0) for lane, gaps in programs]
        return tuple(ms * 1e6 / EAGER_GAP_NS for ms in split_ms(kernels))

    assert split(("ttnn", 0.5), ("ttnn", 0.5)) == pytest.approx((0, 2.5))
    assert split(("ttnn", 3), ("ttnn", 0.5)) == pytest.approx((0, 4.5))
    assert split(("ttnn", 3), ("tt-lang", 2), ("ttnn", 1)) == pytest.approx((3, 6))


def test_reads_take_what_tt_metals_table_says():
    """noc_latencies.yaml: one core of Blackhole reads tiles of interleaved DRAM; cycles by how many before it waits."""
    for count, cycles in ((1, 539), (4, 649), (16, 1068), (64, 2669), (256, 9173)):
        assert drafter._read_ns(count) * drafter.CHIP.clock_ghz == pytest.approx(cycles, rel=0.02)


def test_a_cache_makes_the_kernels_independent_of_history_and_no_cache_does_not():
    cached, whole = ([split_ms(forward(n, cached=c)) for n in (2000, 64000)] for c in (True, False))
    assert cached[0][0] == cached[1][0] and cached[1][1] > 3 * cached[0][1]
    assert whole[1][0] > 3 * whole[0][0] and sum(whole[1]) > 2 * sum(cached[1])


def test_the_report_states_its_errors():
    text = predicted_report()
    assert "| 120,000 |" in text and "96% compute bound" in text and "-29%" not in text.splitlines()[0]


def test_a_cached_step_costs_the_same_but_for_attention_on_cpu():
    short, long = measure((256, 2048), repeats=2)
    assert short.cached_flops[1] == long.cached_flops[1]
    assert 7 < long.cached_flops[0] / short.cached_flops[0] <= 8
    assert 5 < long.uncached_flops[1] / short.uncached_flops[1] < 8
    assert long.uncached_s / long.cached_s > short.uncached_s / short.cached_s
