"""A block on a ttnn backend: what its metrics see, and that the acceptance's layouts are all in the suite."""

import pytest
import torch

from parity.cases import BlockShape
from parity.cases.oracles import cogvideox
from parity.cases.suites import suite_cases
from parity.kinds import thresholds_for
from parity.kinds.cpu import block
from parity.kinds.ttnn import block as ttnn_block
from parity.measure.thresholds import judge

SHARDS = [(0, 64), (64, 75)]


@pytest.fixture(scope="module")
def streams():
    inputs = block.block_inputs(BlockShape(75, 29), 192, seed=3)
    g = torch.Generator().manual_seed(1)
    after = {name: inputs[name] + 0.3 * torch.randn(inputs[name].shape, generator=g) for name in block.STREAMS}
    return inputs, after


def failures(streams, change):
    inputs, ref = streams
    ours = {name: x.clone() for name, x in ref.items()}
    change(ours, inputs)
    found, by_stream = block.compare(inputs, ours, ref, SHARDS)
    assert set(by_stream) == set(block.STREAMS)
    return {f.split()[0] for f in judge(found | {"comm_unexplained": 0}, thresholds_for("ttnn_block", "bf16"))}


def test_the_same_answer_passes(streams):
    assert failures(streams, lambda ours, inputs: None) == set()


def test_only_what_was_added_shows_a_block_that_does_too_little(streams):
    def change(ours, inputs):
        ours["prompt"].lerp_(inputs["prompt"], 0.05)

    assert failures(streams, change) == {"added_rel_rmse"}  # a factor: PCC cannot see it, the whole stream hides it


def test_noise_that_the_residual_hides(streams):
    def change(ours, inputs):
        ours["spatial"] += 0.012 * torch.randn(ours["spatial"].shape, generator=torch.Generator().manual_seed(2))

    assert {"added_one_minus_pcc", "added_one_minus_pcc_shard"} <= failures(streams, change)
    assert not {"one_minus_pcc", "rel_rmse"} & failures(streams, change)


def test_one_wrong_shard(streams):
    def change(ours, inputs):
        ours["spatial"][:, 64:] += 0.015 * torch.randn(11, 192, generator=torch.Generator().manual_seed(2))

    found = failures(streams, change)
    assert "added_one_minus_pcc_shard" in found and "added_one_minus_pcc" not in found


def test_not_finite(streams):
    def change(ours, inputs):
        ours["prompt"][0, 0, 0] = float("nan")

    assert {"non_finite", "one_minus_pcc", "added_rel_rmse"} <= failures(streams, change)


def test_inputs_are_seeded_and_fit_bf16():
    a, b = (block.block_inputs(BlockShape(8, 4), 64, seed=5) for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(torch.equal(x, x.bfloat16().float()) for x in a.values())


def test_blocks_and_transformers_on_every_layout_of_the_acceptance():
    wanted = {
        ("n300", "tp2"),
        ("t3k", "cfg2_sp2_tp2"),
        ("t3k", "sp2_tp4"),
        ("t3k-1x8", "tp8"),
        ("galaxy", "cfg2_sp4_tp4"),
        ("bh-qb-1x4", "tp4"),
        ("bh-loudbox", "sp2_tp4"),
    }
    cases = suite_cases("smoke", "ttnn-mock")
    for model in ("sd35_medium", "sd35_large", "sd35_medium_block", "sd35_large_block"):
        assert {(c.mesh, c.layout.parallel) for c in cases if c.model == model} == wanted


def test_cogvideox_gets_a_box_of_patches_and_a_narrow_time_step():
    found = {case.shape.n: case for case in suite_cases("full", "ttnn-mock") if case.model == "cogvideox_5b_block"}
    inputs = ttnn_block.TTNNBlock(None).inputs(found[315], seed=0)
    assert inputs["grid"].tolist() == [5, 7, 9] and inputs["time"].shape == (1, 512)
    assert [cogvideox.box(n) for n in (175, 76, 7)] == [(5, 5, 7), (4, 1, 19), (1, 1, 7)]
