"""Every attention scheme against one float64 call on the concatenated tokens.

The bounds for fp32 are absolute; for bf16 the bound is the error of rounding the exact answer to bf16 once.
"""

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from tests.refsim.helpers import (
    LSE_BOUND,
    assert_matches,
    assert_one_sentence,
    attention_inputs,
    lse_error,
    relative_rmse,
    run,
    serial_attention,
)
from tests.refsim.parallel.schemes import RINGS, SCHEMES, SOME, ULYSSES, answer, assert_same_bits

PROMPTS = {"no_prompt": (0, "replicated"), "replicated": (21, "replicated"), "split": (21, "split")}
FEW_CHUNKS = {"q_chunk_size": 24, "k_chunk_size": 20}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_matches_the_serial_answer(scheme, prompt):
    rows, layout = PROMPTS[prompt]
    tensors = attention_inputs(heads=8, n=256, prompt=rows, batch=2)
    assert_matches(answer(tensors, scheme, prompt_layout=layout), serial_attention(tensors))


@pytest.mark.parametrize(
    ("n", "logical_n", "prompt"),
    [
        pytest.param(256, 250, "replicated", id="end-replicated"),
        pytest.param(256, 96, "replicated", id="whole_shards-replicated"),
        pytest.param(256, 96, "split", id="whole_shards-split"),
        pytest.param(256, 33, "split", id="not_a_tile-split"),
        pytest.param(256, 1, "no_prompt", id="one_row-no_prompt"),
        pytest.param(40, 40, "replicated", id="40_rows-replicated"),
        pytest.param(40, 37, "split", id="37_of_40_rows-split"),
        pytest.param(300, 257, "no_prompt", id="not_aligned-no_prompt"),
    ],
)
@pytest.mark.parametrize("scheme", SOME)
def test_padding_is_no_key(scheme, n, logical_n, prompt):
    """Fewer valid tokens than rows, whole shards of padding, and rows that the harness has to pad itself."""
    rows, layout = PROMPTS[prompt]
    tensors = attention_inputs(heads=8, n=n, prompt=rows)
    got = answer(tensors, scheme, prompt_layout=layout, logical_n=logical_n, **FEW_CHUNKS)
    assert_matches(got, serial_attention(tensors, logical_n))


@pytest.mark.parametrize("prompt", ["replicated", "split"])
@pytest.mark.parametrize("scheme", SOME)
def test_garbage_in_the_padding_changes_no_bit(scheme, prompt):
    rows, layout = PROMPTS[prompt]
    clean = attention_inputs(heads=8, n=256, prompt=rows)
    dirty = {name: x.clone() for name, x in clean.items()}
    for name in ("q", "k", "v"):
        clean[name][:, :, 75:] = 0
        dirty[name][:, :, 75:] = 1e4
    options = {"prompt_layout": layout, "logical_n": 75, **FEW_CHUNKS}
    assert_same_bits(answer(dirty, scheme, **options), answer(clean, scheme, **options))


@pytest.mark.parametrize("prompt", ["replicated", "split"])
@pytest.mark.parametrize("scheme", ["n150-serial", *SOME])
def test_masked_prompt_tokens_are_no_keys(scheme, prompt):
    """A mask with holes over three blocks of keys, one that begins with them, no token at all, and all of them."""
    rows = 50
    tensors = attention_inputs(heads=8, n=96, prompt=rows, batch=4)
    mask = torch.rand(4, rows, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[1, :25] = False
    mask[2] = False
    mask[3] = True
    tensors["joint_mask"] = mask
    got = answer(tensors, scheme, prompt_layout=prompt, logical_n=75, **FEW_CHUNKS)
    assert_matches(got, serial_attention(tensors, 75))
    if scheme == SOME[0]:
        tensors |= {f"joint_{x}": torch.where(mask[:, None, :, None], tensors[f"joint_{x}"], 1e4) for x in "kv"}
        dirty = answer(tensors, scheme, prompt_layout=prompt, logical_n=75, **FEW_CHUNKS)
        assert_same_bits(dirty, got)
        everything = tensors | {"joint_mask": torch.ones_like(mask)}
        without = {name: x for name, x in tensors.items() if name != "joint_mask"}
        assert_same_bits(
            answer(everything, scheme, prompt_layout=prompt), answer(without, scheme, prompt_layout=prompt)
        )


@pytest.mark.parametrize(("heads", "prompt"), [(1, "replicated"), (5, "no_prompt"), (6, "replicated"), (10, "split")])
@pytest.mark.parametrize("scheme", ULYSSES)
def test_uneven_heads_are_padded(scheme, heads, prompt):
    rows, layout = PROMPTS[prompt]
    tensors = attention_inputs(heads=heads, n=64, prompt=rows)
    assert_matches(answer(tensors, scheme, prompt_layout=layout), serial_attention(tensors))


@pytest.mark.parametrize(
    ("scheme", "heads", "what", "works"),
    [
        ("t3k_1x8-ulysses8", 6, "ulysses 8 cannot split 6 heads", "padded to 8"),
        ("t3k-sp4tp2-ulysses", 4, "ulysses 4 cannot split 2 heads", "(1, 2)"),
        ("t3k-usp_ring2@0_ulysses4@1", 38, "ulysses 4 cannot split 38 heads", "(1, 2, 19, 38)"),
        ("t3k-sp2tp4-ring", 38, "tp4 cannot split 38 heads", "pad_heads"),
    ],
)
def test_uneven_heads_are_refused_without_padding(scheme, heads, what, works):
    with pytest.raises(UserError) as caught:
        answer(attention_inputs(heads=heads, n=64), scheme, pad_heads=False)
    assert_one_sentence(str(caught.value))
    assert what in str(caught.value)
    assert works in str(caught.value)


@pytest.mark.parametrize("scheme", [name for name in SOME if name != "t3k-sp4tp2-ring_line"])
def test_even_heads_need_no_padding(scheme):
    tensors = attention_inputs(heads=8, n=64)
    assert_same_bits(answer(tensors, scheme, pad_heads=False), answer(tensors, scheme, pad_heads=True))


@pytest.mark.parametrize(
    ("scheme", "prompt"),
    [(scheme, "replicated") for scheme in RINGS] + [("t3k_1x8-ring8", "split"), ("t3k-sp4tp2-ring_line", "no_prompt")],
)
def test_ring_orders_give_the_same_bits(scheme, prompt):
    rows, layout = PROMPTS[prompt]
    tensors = attention_inputs(heads=8, n=256, prompt=rows)
    gather, step, block = (
        answer(tensors, scheme, prompt_layout=layout, ring_order=ring_order, logical_n=230, **FEW_CHUNKS)
        for ring_order in ("gather", "step", "block")
    )
    assert_same_bits(step, gather)
    assert_same_bits(block, gather)


@pytest.mark.parametrize("prompt", ["replicated", "split"])
@pytest.mark.parametrize("scheme", SOME)
def test_bf16_is_rounded_once(scheme, prompt):
    """Against the exact answer for the rounded inputs: no more error than rounding that answer to bf16."""
    rows, layout = PROMPTS[prompt]
    tensors = attention_inputs(heads=8, n=256, prompt=rows, dtype=torch.bfloat16)
    got, want = answer(tensors, scheme, prompt_layout=layout, **FEW_CHUNKS), serial_attention(tensors)
    for name in got.keys() - {"lse"}:
        assert got[name].dtype == torch.bfloat16
        floor = relative_rmse(want[name].bfloat16(), want[name])
        assert relative_rmse(got[name], want[name]) <= 1.05 * floor
    assert got["lse"].dtype == torch.float32
    assert lse_error(got["lse"], want["lse"]) <= LSE_BOUND


@pytest.mark.parametrize("size", [1, 16, 257], ids=lambda size: f"chunk{size}")
@pytest.mark.parametrize("scheme", ["t3k-sp4tp2-ring_line", "t3k-usp_ring4@1_ulysses2@0"])
def test_chunk_sizes_only_move_roundings(scheme, size):
    tensors = attention_inputs(heads=8, n=128, prompt=5, features=8)
    got = answer(tensors, scheme, q_chunk_size=size, k_chunk_size=size)
    assert_matches(got, serial_attention(tensors))


@pytest.mark.parametrize(("ring_order", "seed"), [("gather", 1), ("step", 2), ("step", 3), ("block", 4)])
@pytest.mark.parametrize("scheme", ["t3k_1x8-ring8", "t3k-sp4tp2-ring_line", "t3k-usp_ring2@0_ulysses4@1"])
def test_delays_change_no_bit(scheme, ring_order, seed):
    tensors = attention_inputs(heads=8, n=256, prompt=21)
    quiet = answer(tensors, scheme, ring_order=ring_order, k_chunk_size=20)
    assert_same_bits(answer(tensors, scheme, ring_order=ring_order, k_chunk_size=20, delay=(seed, 0.01)), quiet)


@pytest.mark.parametrize("layout", ["replicated", "split"])
@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("bh-qb-1x4", "sp4", {}),
        ("bh-qb-1x4", "sp4", {"attention": "ulysses"}),
        ("t3k", "sp8", {"attention": "usp", "ring": 2, "ulysses": 4}),
    ],
    ids=["ring4", "ulysses4", "usp_ring2_ulysses4"],
)
def test_a_prompt_that_asks_nothing_is_still_attended(mesh, parallel, options, layout):
    """A last block drops the prompt's queries; the image's answer stays what it was."""
    values = run("silent_prompt", mesh, parallel, {"split": layout == "split"}, **options).values
    assert [value["prompt_rows"] for value in values] == [0] * len(values)
    assert max(value["difference"] for value in values) <= 1e-6


def test_large_scores_do_not_overflow():
    """Scores far beyond what exp can hold in fp32."""
    tensors = attention_inputs(heads=8, n=256, prompt=21)
    tensors = {name: x * 7 if name.endswith(("q", "k")) else x for name, x in tensors.items()}
    want = serial_attention(tensors)
    assert want["lse"].max() > 150
    assert_matches(answer(tensors, "t3k_1x8-ring8"), want)


def test_simulate_attention_returns_out_joint_out_and_lse():
    tensors = attention_inputs(heads=4, n=64, prompt=5)
    want = serial_attention(tensors)
    out, joint_out, lse = refsim.simulate_attention(
        tensors["q"],
        tensors["k"],
        tensors["v"],
        joint_q=tensors["joint_q"],
        joint_k=tensors["joint_k"],
        joint_v=tensors["joint_v"],
        mesh="n300",
        scheme="ring",
    )
    assert_matches({"out": out, "joint_out": joint_out, "lse": lse}, want)
    out, joint_out, lse = refsim.simulate_attention(
        tensors["q"], tensors["k"], tensors["v"], mesh="n300", scheme="ulysses", dtype="bf16"
    )
    assert joint_out is None
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
