"""Bytes that every rank sends in attention, against the closed formulas of ring.py, ulysses.py and usp.py."""

import pytest

from refsim.base.config import parse_parallel
from refsim.base.mesh import get_mesh
from tests.refsim.helpers import groups_of, passing_on_bytes, run, sent

FEATURES = 8
SIZES = {"float32": 4, "bfloat16": 2}
# id: (mesh, parallel, options of parse_parallel)
CONFIGS: dict[str, tuple[str, str, dict]] = {
    "t3k_1x8-ring8": ("t3k-1x8", "sp8", {}),
    "n300-ring2": ("n300", "sp2", {}),
    "t3k-sp4tp2-ring_line": ("t3k", "sp4_tp2", {}),
    "t3k_1x8-ulysses8": ("t3k-1x8", "sp8", {"attention": "ulysses"}),
    "t3k-sp4tp2-ulysses_line": ("t3k", "sp4_tp2", {"attention": "ulysses"}),
    "t3k-usp_ring2_ulysses4": ("t3k", "sp8", {"attention": "usp", "ring": 2, "ulysses": 4}),
    "t3k-usp_ring4_ulysses2": ("t3k", "sp8", {"attention": "usp", "ring": 4, "ulysses": 2}),
    "t3k-sp4tp2-usp_ring2_ulysses2": ("t3k", "sp4_tp2", {"attention": "usp", "ring": 2, "ulysses": 2}),
    "galaxy-usp_ring4_ulysses8": ("galaxy", "sp32", {"attention": "usp", "ring": 4, "ulysses": 8}),
    "n150-serial": ("n150", "sp1", {}),
}
RINGS = [name for name, (_, _, options) in CONFIGS.items() if options.get("attention") != "ulysses"]


def counted(config: str, **arguments):
    """Per rank: its groups and the bytes it sent, keyed ``collective@group``."""
    mesh, parallel, options = CONFIGS[config]
    spec = get_mesh(mesh)
    groups = groups_of(spec, parse_parallel(parallel, spec, **options))
    own = {name: arguments.pop(name) for name in ("heads", "rows", "prompt_rows", "with_lse") if name in arguments}
    own = {"heads": 8, "rows": 6, "prompt_rows": 0, **own}
    result = run("attention_only", mesh, parallel, own, **options, **arguments)
    return list(zip(groups, result.bytes_per_rank, strict=True))


def ring_bytes(group, keys_and_values: int) -> int:
    """Ring: (n-1) B. Line: ((i+1) [i < n-1] + (n-i) [i > 0]) B."""
    return passing_on_bytes(group, keys_and_values)


def ulysses_bytes(group, q: int, prompt_out: int) -> int:
    """4 (n-1)/n B for q, k, v and out, and all_gather's formula for the prompt's output, P/n."""
    n = group.size
    return 4 * (n - 1) * q // n + passing_on_bytes(group, prompt_out // n)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("prompt_rows", [0, 5], ids=["no_prompt", "replicated"])
@pytest.mark.parametrize("config", CONFIGS)
def test_bytes_follow_the_closed_formulas(config, prompt_rows, dtype):
    """Ulysses over the row, ring over the column, nothing else; a replicated prompt is never rotated."""
    row = 8 * FEATURES * SIZES[dtype]
    for groups, of_rank in counted(config, prompt_rows=prompt_rows, dtype=dtype):
        ring = ring_bytes(groups["ring"], 2 * 6 * row)
        ulysses = ulysses_bytes(groups["ulysses"], 6 * row, prompt_rows * row)
        assert sent(of_rank, "ring_attention", "ring") == ring
        assert sent(of_rank, "ulysses", "ulysses") == ulysses
        assert sum(of_rank.values()) == ring + ulysses


@pytest.mark.parametrize("config", CONFIGS)
def test_a_split_prompt_travels_with_the_image(config):
    """Each member's share of the prompt adds its rows to those of the image, and is not gathered."""
    row = 8 * FEATURES * 4
    for groups, of_rank in counted(config, prompt_rows=3, prompt_layout="split"):
        ring, ulysses = ring_bytes(groups["ring"], 2 * 9 * row), ulysses_bytes(groups["ulysses"], 9 * row, 0)
        assert sum(of_rank.values()) == ring + ulysses


@pytest.mark.parametrize("ring_order", ["gather", "block"])
@pytest.mark.parametrize("config", RINGS)
def test_ring_orders_send_the_same_bytes(config, ring_order):
    other = counted(config, ring_order=ring_order, k_chunk_size=4)
    for (_, of_rank), (_, stepwise) in zip(other, counted(config, k_chunk_size=4), strict=True):
        assert sent(of_rank, "ring_attention", "ring") == sent(stepwise, "ring_attention", "ring")
        assert sum(of_rank.values()) == sum(stepwise.values())


@pytest.mark.parametrize("heads", [5, 6, 9])
@pytest.mark.parametrize("config", ["t3k-sp4tp2-ulysses_line", "t3k-usp_ring2_ulysses4"])
def test_padded_heads_travel_too(config, heads):
    row = -(-heads // 4) * 4 * FEATURES * 4
    for groups, of_rank in counted(config, heads=heads, prompt_rows=5):
        wanted = ulysses_bytes(groups["ulysses"], 6 * row, 5 * row) + ring_bytes(groups["ring"], 2 * 6 * row)
        assert sum(of_rank.values()) == wanted


@pytest.mark.parametrize("config", ["t3k_1x8-ulysses8", "t3k-usp_ring2_ulysses4"])
def test_moving_the_log_sum_exp_costs_what_the_docstring_says(config):
    """1/E of out's bytes, and of the prompt's output, in fp32."""
    pairs = zip(counted(config, prompt_rows=5, with_lse=True), counted(config, prompt_rows=5), strict=True)
    for (groups, with_lse), (_, without) in pairs:
        u = groups["ulysses"].size
        extra = (u - 1) * 6 * 8 * 4 // u + passing_on_bytes(groups["ulysses"], 5 * 8 * 4 // u)
        assert sum(with_lse.values()) - sum(without.values()) == extra
