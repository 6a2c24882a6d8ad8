"""Copies of one tensor on all devices: equal, apart by rounding, or another tensor, which is named."""

import pytest
import torch

from refsim.base.errors import InvariantError
from tt_impl.run import copies

WHOLE = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)


def test_copies_that_differ_by_rounding_are_read_as_device_0s_and_the_difference_is_told():
    with copies.noting() as entries:
        taken = copies.first([WHOLE, WHOLE, WHOLE * 1.01, WHOLE * 1.02], rounds=True)
    assert torch.equal(taken, WHOLE)
    (entry,) = entries
    assert (entry.device, entry.shape, entry.bound) == (3, [1, 1, 8, 8], copies.BOUND)
    assert entry.rel_rmse == pytest.approx(0.02, rel=1e-3)
    assert "device 3's most" in str(entry)


def test_equal_copies_are_not_told_of():
    with copies.noting() as entries:
        assert copies.first([WHOLE, WHOLE.clone()], rounds=True) is WHOLE
    assert not entries


@pytest.mark.parametrize(
    ("other", "rounds", "says"),
    [
        (WHOLE * 1.01, False, "differ in it$"),
        (WHOLE.roll(4, 2), True, "by more than rounding: device 2's copy"),
        (WHOLE.masked_fill(WHOLE > 0.9, torch.nan), True, "device 2's copy is nan"),
    ],
)
def test_another_tensor_is_named(other, rounds, says):
    with pytest.raises(InvariantError, match=says):
        copies.first([WHOLE, WHOLE * (1.01 if rounds else 1), other], rounds=rounds)


def test_integers_do_not_round():
    with pytest.raises(InvariantError):
        copies.first([torch.tensor([7]), torch.tensor([8])], rounds=True)
