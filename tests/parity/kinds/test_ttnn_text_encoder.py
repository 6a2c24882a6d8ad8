"""What the gate sees of an encoder of prompts: every result, every member's features, and what all tokens share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parity.kinds import thresholds_for
from parity.kinds.ttnn import text_encoder as ttnn_text_encoder
from parity.measure.thresholds import judge

TP, FEATURES = 4, 192


def results(seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"sample": torch.randn(2, 20, generator=g), "sequence": torch.randn(2, 77, FEATURES, generator=g)}


def beyond(change: dict[str, Tensor], *, causal: bool = True) -> set[str]:
    """The metrics that fail when the answer is the reference with ``change`` added."""
    ref = results()
    ours = {name: x + change.get(name, 0.0) for name, x in ref.items()}
    found, _ = ttnn_text_encoder.compare(ours, ref, TP, causal=causal)
    return {f.split()[0] for f in judge(found | {"comm_unexplained": 0}, thresholds_for("ttnn_text_encoder", "bf16"))}


def test_rounding_passes_and_each_result_counts():
    rounding = {name: 0.02 * torch.randn(x.shape) for name, x in results(1).items()}
    assert beyond({}) == beyond(rounding) == set()
    for name, x in results(2).items():
        assert "one_minus_pcc" in beyond({name: 0.1 * x})


def test_one_member_of_tp_that_is_wrong_is_not_averaged_away():
    """Features 128 to 191 are the third member's, and the fourth has only padding: 64 lanes a member."""
    assert ttnn_text_encoder.feature_shards(FEATURES, TP) == [(0, 64), (64, 128), (128, 192), (192, 192)]
    wrong = torch.zeros(2, 77, FEATURES)
    wrong[..., 128:] = 0.04 * torch.randn(2, 77, 64, generator=torch.Generator().manual_seed(3))
    assert beyond({"sequence": wrong}) == {"one_minus_pcc_shard"}


def test_an_error_that_all_tokens_share_counts_where_tokens_do_not_see_all():
    shared = 0.01 * torch.randn(1, 1, FEATURES, generator=torch.Generator().manual_seed(4)).expand(2, 77, -1)
    assert beyond({"sequence": shared}) == {"mean_token_rmse"}
    assert beyond({"sequence": shared}, causal=False) == set()


def test_not_a_number_and_other_results_do_not_pass():
    ref = results()
    nan = ref["sequence"].clone()
    nan[0, 0, 0] = float("nan")
    assert "non_finite" in beyond({"sequence": nan - ref["sequence"]})
    with pytest.raises(ValueError, match="the results are sample, and sample, sequence in the reference"):
        ttnn_text_encoder.compare({"sample": ref["sample"]}, ref, TP, causal=True)
