"""Each metric sees what it is there for, and nothing lets NaN through."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.kinds import thresholds_for
from parity.measure import metrics as m
from parity.measure import traces
from parity.measure.thresholds import judge

SHARDS = [(0, 32), (32, 64), (64, 96), (96, 120)]
FP32 = thresholds_for("attention", "fp32")
BF16 = thresholds_for("attention", "bf16")


@pytest.fixture
def ref():
    """(G, N, F) = (2, 120, 16)."""
    return torch.randn(2, 120, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def failures(out, ref, thresholds=FP32):
    rest = {"lse_rel_max": 0.0, "merged_gain": 0.0, "wrong_dtypes": 0} | {bound.metric: 0 for bound in traces.BOUNDS}
    return judge(m.compare(out, ref, SHARDS, digits=24) | rest, thresholds)


def test_equal_tensors_are_at_distance_zero(ref):
    found = m.compare(ref.clone(), ref, SHARDS, digits=24)
    assert set(found.values()) == {0.0}
    assert failures(ref.clone(), ref) == []


def test_fp32_rounding_passes(ref):
    assert failures(ref.float(), ref) == []


@pytest.mark.parametrize("spoil", [lambda x: x * 1.01, lambda x: x + 0.01], ids=["scale", "shift"])
def test_relative_rmse_sees_what_correlation_cannot(ref, spoil):
    out = spoil(ref)
    assert m.one_minus_pcc(out, ref) < 1e-15
    caught = {f.split()[0] for f in failures(out, ref)}
    assert caught == {"rel_rmse", "one_minus_ccc", "worst_token", "max_ulp", "gain"}
    assert m.rel_rmse(out, ref) == pytest.approx(0.01, rel=0.1)


def test_bf16_bounds_a_factor_too(ref):
    assert failures(ref * 1.05, ref, BF16)


def test_one_bad_shard_is_seen_where_the_whole_hides_it(ref):
    out = ref.clone()
    out[1, 96:120] += 0.15 * torch.randn(24, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = m.compare(out, ref, SHARDS, digits=24)
    assert found["one_minus_pcc"] < found["one_minus_pcc_shard"] / 5
    assert found["one_minus_pcc_shard"] == pytest.approx(0.5 * 0.15**2, rel=0.3)
    assert m.worst_shard(out, ref, SHARDS[:3]) < 1e-15


def test_an_error_at_the_seam_only_is_loudest_there(ref):
    out = ref.clone()
    out[:, 63:65] *= -1.0
    found = m.compare(out, ref, SHARDS, digits=24)
    assert found["one_minus_pcc_seam"] > 3 * found["one_minus_pcc_shard"] > 3 * found["one_minus_pcc"]


def test_seam_rows_are_those_next_to_a_border():
    assert m.seam_rows([(0, 8), (8, 16)]) == [6, 7, 8, 9]
    assert m.seam_rows([(0, 1), (1, 16)], width=2) == [0, 1, 2]
    assert m.seam_rows([(0, 8), (8, 8), (8, 8)]) == []
    assert m.seam_rows([(0, 8), (9, 16)]) == []
    assert m.seam(torch.ones(1, 8, 2), torch.ones(1, 8, 2), [(0, 8)]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_anything_non_finite_fails_every_metric(ref, bad):
    out = ref.clone()
    out[0, 31, 3] = bad
    found = m.compare(out, ref, SHARDS, digits=24)
    assert found.pop("non_finite") == 1
    assert all(math.isnan(value) for value in found.values())
    assert len(failures(out, ref)) == len(found)  # max_abs has no bound, non_finite was taken out
    assert failures(ref, out), "a reference with NaN must not pass either"


def test_nan_anywhere_is_the_worst_in_any_order():
    assert math.isnan(m.worst([0.0, math.nan, 1.0])) and math.isnan(m.worst([math.nan, 1.0]))
    assert math.isnan(m.worst([])), "nothing measured must not pass"


def test_correlation_has_no_cancellation():
    g = torch.Generator().manual_seed(2)
    ref = torch.randn(100_000, dtype=torch.float64, generator=g)
    out = ref + 1e-9 * torch.randn(100_000, dtype=torch.float64, generator=g)
    assert m.one_minus_pcc(out, ref) == pytest.approx(0.5e-18, rel=0.02)


def test_correlation_is_that_of_the_textbook(ref):
    out = ref + torch.randn(ref.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    textbook = torch.corrcoef(torch.stack([out.flatten(), ref.flatten()]))[0, 1]
    assert m.one_minus_pcc(out, ref) == pytest.approx(1 - float(textbook), rel=1e-9)


def test_constants():
    ones = torch.ones(64, dtype=torch.float64)
    noisy = ones + 1e-7 * torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert m.one_minus_pcc(ones, ones) == 0.0 and m.rel_rmse(ones, ones) == 0.0
    assert m.one_minus_pcc(noisy, ones) < 1e-13, "rounding of a constant is no lack of correlation"
    assert m.one_minus_pcc(1.1 * ones, ones) == pytest.approx(0.005)
    assert m.one_minus_pcc(ones, torch.arange(64.0)) == 1.0, "a constant answer to a varying reference"
    assert m.one_minus_pcc(torch.zeros(4), torch.zeros(4)) == 0.0
    assert m.one_minus_pcc(ones[:4], torch.zeros(4)) == 1.0 and m.rel_rmse(ones[:4], torch.zeros(4)) == math.inf


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shape"):
        m.compare(torch.ones(1, 4, 2), torch.ones(1, 5, 2), [(0, 4)])
    with pytest.raises(ValueError, match="nothing to compare"):
        m.rel_rmse(torch.ones(0), torch.ones(0))


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50),
    st.floats(0.1, 10.0),
    st.floats(-100.0, 100.0),
)
@settings(deadline=None, max_examples=60)
def test_correlation_is_bounded_and_its_range_is_used(values, factor, offset):
    ref = torch.tensor(values, dtype=torch.float64)
    assert 0.0 <= m.one_minus_pcc(factor * ref + offset, ref) <= 2.0 + 1e-9
    assert m.one_minus_pcc(ref, ref) == 0.0


def test_a_metric_that_was_not_measured_fails():
    assert judge({}, FP32) and any("not measured" in f for f in judge({"rel_rmse": None}, FP32))


def test_the_seam_ratio_compares_the_seam_with_the_rest(ref):
    noise = torch.randn(ref.shape, dtype=ref.dtype, generator=torch.Generator().manual_seed(1))
    out = ref + 1e-6 * noise
    assert 0.5 < m.seam_ratio(out, ref, SHARDS) < 1.2
    out[:, 31] += 1e-5
    assert m.seam_ratio(out, ref, SHARDS) > 2
    assert m.seam_ratio(out, ref, [(0, 120)]) is None
    out[0, 0, 0] = math.nan
    assert math.isnan(m.seam_ratio(out, ref, SHARDS))


def test_a_part_of_a_picture_that_is_rounded_more_is_no_seam():
    """A picture of one frame whose error grows gradually towards a border; what is off at the border alone is more."""
    size = 1 + 3 * torch.exp(-(((torch.arange(24) - 15.5) / 7) ** 2))[:, None].double()
    g = torch.Generator().manual_seed(0)
    for _ in range(100):
        rows = (size * torch.randn(24, 960, dtype=torch.float64, generator=g))[None]
        right = torch.zeros_like(rows)
        assert 1.0 < m.seam_ratio(rows, right, [(0, 16), (16, 24)]) < 1.5
        rows[:, 15] += 15
        assert m.seam_ratio(rows, right, [(0, 16), (16, 24)]) > 1.5


def test_the_error_of_a_picture_counts_levels_where_there_is_little_contrast():
    g = torch.Generator().manual_seed(0)
    for contrast in (8.0, 100.0):
        exact = 128 + contrast * torch.randn(1, 48, 64, 3, generator=g)
        other = exact + 0.01 * contrast * torch.randn(exact.shape, generator=g)
        right, rounded, wrong = (x.round().to(torch.int16) for x in (exact, other, exact.flip(1)))
        assert 0 < m.picture_error(rounded, right) < 0.025
        assert m.picture_error(wrong, right) > 0.3
        assert m.picture_error(right + 10, right) > 0.09, "brighter"
        assert not m.is_flat(right)
    assert m.is_flat(torch.full((1, 4, 4, 3), 130)) and m.is_flat(torch.tensor([126, 130] * 24))


def test_concordance_sees_what_correlation_does_not(ref):
    for wrong in (ref * 1.01, ref + 0.01):
        assert m.one_minus_pcc(wrong, ref) < 1e-12
        assert m.one_minus_ccc(wrong, ref) > 1e-6


def test_worst_token_is_not_averaged_away(ref):
    wrong = ref.clone()
    wrong[0, 3] *= 1.5
    assert m.worst_token(wrong, ref) > 5 * m.rel_rmse(wrong, ref) / wrong.shape[0]
    assert m.worst_token(wrong, ref) == pytest.approx(
        float((0.5 * ref[0, 3]).norm() / ref[0, 3].numel() ** 0.5 / ref.square().mean().sqrt()), rel=1e-6
    )


def test_a_factor_on_one_part_is_not_hidden_by_its_noise(ref):
    g = torch.Generator().manual_seed(1)
    noisy = ref + 0.005 * torch.randn(ref.shape, generator=g, dtype=ref.dtype)
    wrong = noisy.clone()
    wrong[1, 3:6] *= 1.01
    shards = [(0, 3), (3, 6), (6, ref.shape[1])]
    assert m.gain(ref, ref, shards) == 0.0
    assert m.gain(wrong, ref, shards) == pytest.approx(0.01, abs=0.003) and m.gain(noisy, ref, shards) < 0.003
    assert m.rel_rmse(wrong, ref) == pytest.approx(m.rel_rmse(noisy, ref), rel=0.3)
    silent = torch.zeros(1, 2, 3)
    assert m.gain(silent, silent, [(0, 2)]) == 0.0 and m.gain(silent + 1, silent, [(0, 2)]) == math.inf


def test_a_factor_on_merged_attention_counts_in_units_of_the_rounding_of_its_log_sum_exp(ref):
    wrong = ref.clone()
    wrong[1, 3:6] *= 1.01
    shards, lse = [(0, 3), (3, 6), (6, ref.shape[1])], torch.full(ref.shape[:2], 0.5)
    assert m.merged_gain(ref, ref, lse, shards) == 0.0
    assert m.merged_gain(wrong, ref, lse, shards) == pytest.approx(0.01)  # below 1 a log-sum-exp counts as 1
    lse[1, 4] = -20
    assert m.merged_gain(wrong, ref, lse, shards) == pytest.approx(0.01 / 20)
    assert math.isnan(m.merged_gain(wrong * math.nan, ref, lse, shards))
    wrong[0], alike = ref[0] * 2, ref.clone()
    alike[0] = ref[0, :, :1]
    assert m.merged_gain(wrong, alike, lse, shards) == pytest.approx(0.01 / 20)  # group 0 is left out


def test_ulps_are_those_of_the_storage():
    ref = torch.full((1, 4, 8), 1.0)
    wrong = ref.clone()
    wrong[0, 2, 3] += 3 * 2.0**-23
    assert m.max_ulp(wrong, ref, 24) == 3.0
    wrong[0, 0, 0] += 2.0**-7
    assert m.max_ulp(wrong, ref, 8) == 1.0
