"""What holds of every matmul, collective and attention: none beats its roofline, none gets faster with more to do."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refsim.base.mesh import Topology, get_mesh
from refsim.timing.cost import power
from refsim.timing.cost.chips import get_chip
from refsim.timing.cost.fabric import Fabric
from refsim.timing.cost.fitted import get_params
from refsim.timing.cost.matmul import MulticastConfig, matmul, multicast_matmul
from refsim.timing.cost.sdpa import SDPAConfig, sdpa

ARCHES = st.sampled_from(["wormhole_b0", "blackhole"])
COLLECTIVES = st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"])
FEW = settings(max_examples=int(os.environ.get("REFSIM_EXAMPLES", "60")), deadline=None)
"""``nox -s fuzz`` draws 10,000."""


@FEW
@given(
    ARCHES, COLLECTIVES, st.integers(2, 16), st.integers(1, 4), st.sampled_from(list(Topology)),
    st.integers(2**11, 2**28), st.integers(0, 2**28),
)  # fmt: skip
def test_collectives_grow_with_bytes_and_shrink_with_links(arch, name, size, links, topology, nbytes, more):
    fabric = Fabric(get_chip(arch), size, links, topology)
    took = fabric.collective_ns(name, nbytes)
    assert took >= fabric.ideal_ns(name, nbytes) > 0
    assert fabric.collective_ns(name, nbytes + more) >= took * (1 - 1e-9)
    assert replace(fabric, links=links + 1).collective_ns(name, nbytes) <= took * (1 + 1e-9)


NS = st.floats(1.0, 1e8)


@FEW
@given(ARCHES, NS, NS, st.floats(0.0, 1e8), st.sampled_from([0, 1]))
def test_a_gather_inside_a_matmul_takes_no_less_than_either_and_no_more_than_both(arch, matmul, gather, more, which):
    fabric, times = Fabric(get_chip(arch), 4, 2, Topology.RING), [matmul, gather]
    took = fabric.gathered_matmul_ns(*times)
    assert max(times) <= took <= sum(times) * (1 + 1e-9)
    times[which] += more
    assert fabric.gathered_matmul_ns(*times) >= took * (1 - 1e-9)


@FEW
@given(
    st.sampled_from(["bh-qb", "bh-loudbox", "bh-galaxy"]), st.sampled_from(["LoFi", "HiFi2", "HiFi4"]),
    st.floats(1e6, 1e18), st.floats(0.0, 1e18),
)  # fmt: skip
def test_the_power_limit_is_below_the_rate_of_the_engines_and_grows_with_the_work(mesh, fidelity, flops, more):
    on = get_mesh(mesh)
    least = power.least_ns(flops, on, fidelity)
    assert least > flops / get_chip("blackhole", galaxy=on.num_devices >= 32).peak_tflops(fidelity) / 1000
    assert power.least_ns(flops + more, on, fidelity) >= least
    assert power.least_ns(flops, get_mesh("galaxy"), fidelity) == 0


@pytest.mark.parametrize("topology", list(Topology))
def test_an_all_reduce_ideally_is_a_scatter_and_a_gather(topology):
    """Each moves a share of the tensor (N - 1) times; not the whole one."""
    fabric = Fabric(get_chip("blackhole"), 4, 2, topology)
    parts = fabric.ideal_ns("reduce_scatter", 2**24) + fabric.ideal_ns("all_gather", 2**24 / 4)
    assert fabric.ideal_ns("all_reduce", 2**24) == pytest.approx(parts)


@FEW
@example("blackhole", True, 1, 1, 441, 64, 72)  # keys of a second chunk are not read by a query that sees the first
@example("wormhole_b0", True, 16, 1, 8192, 128, 1)  # one query of many keys sees one of them
@given(
    ARCHES, st.booleans(), st.integers(1, 40), st.integers(1, 8192), st.integers(1, 8192),
    st.sampled_from([64, 128, 576]), st.integers(1, 4096),
)  # fmt: skip
def test_attention_grows_with_rows_keys_heads_and_width(arch, causal, heads, rows, keys, width, more):
    chip, params, config = get_chip(arch), get_params(arch), SDPAConfig(causal=causal)

    def ns(heads: int = heads, rows: int = rows, keys: int = keys, width: int = width) -> float:
        return sdpa(chip, params, 1, heads, rows, keys, width, config).ns

    whole = sdpa(chip, params, 1, heads, rows, keys, width, config)
    assert whole.ns >= whole.ideal_ns
    assert ns(keys=keys + more) >= whole.ns * (1 - 1e-9)
    assert ns(rows=rows + more) >= whole.ns * (1 - 1e-9)
    assert ns(heads=heads + 1) >= whole.ns * (1 - 1e-9)
    assert ns(width=width + 32) > whole.ns * (1 - 1e-9)


SIZES = st.one_of(st.integers(1, 300), st.integers(1, 8192))


@FEW
@example("wormhole_b0", 1661, 5427, 1241, 84, 2)  # from 5 x 7 tiles a core to 6 x 7
@example("wormhole_b0", 1767, 235, 740, 49, 1)  # a second block of K, of one tile
@example("wormhole_b0", 227, 233, 2028, 24, 2)  # a second block of N, of one tile
@given(ARCHES, SIZES, SIZES, SIZES, st.integers(1, 4096), st.integers(0, 2))
def test_matmuls_grow_with_every_size(arch, m, k, n, more, which):
    chip, params, sizes = get_chip(arch), get_params(arch), [m, k, n]
    whole = matmul(chip, params, *sizes)
    sizes[which] += more
    assert whole.ns >= whole.ideal_ns
    assert matmul(chip, params, *sizes).ns >= whole.ns * (1 - 1e-9)


@FEW
@given(ARCHES, SIZES, SIZES, SIZES, st.floats(0.1, 1.0), st.sampled_from([(8, 8), (4, 8), (1, 8), (8, 1)]))
def test_a_multicast_matmul_is_above_its_roofline_and_no_faster_where_it_is_held_back(arch, m, k, n, busy, grid):
    chip, params = get_chip(arch), get_params(arch)
    free = multicast_matmul(chip, params, m, k, n, MulticastConfig(grid))
    assert free.ns >= free.ideal_ns
    assert multicast_matmul(chip, params, m, k, n, MulticastConfig(grid, busy=busy)).ns >= free.ns * (1 - 1e-9)
