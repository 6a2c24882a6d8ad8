"""Classifier-free guidance: which samples a group takes, and how the halves are put together."""

import pytest
import torch

from refsim.base.errors import UserError
from refsim.parallel.cfg import check_batch, guide
from tests.refsim.helpers import assert_one_sentence, run


@pytest.mark.parametrize(
    ("mesh", "parallel", "halves"),
    [
        ("n300", "cfg2", [(0, 2), (2, 4)]),
        ("t3k", "cfg2_sp2_tp2", [(0, 2), (0, 2), (2, 4), (2, 4)] * 2),
        ("n300", "sp2", [(0, 4), (0, 4)]),
    ],
    ids=["n300-cfg2", "t3k-cfg2sp2tp2", "n300-cfg1"],
)
def test_groups_take_their_half_and_gather_the_batch(mesh, parallel, halves):
    result = run("batch_round_trip", mesh, parallel, {"batch": 4})
    assert [tuple(value["samples"]) for value in result.values] == halves
    assert all(value["same"] for value in result.values)
    output = 2 * 3 * 4 if "cfg2" in parallel else 0
    assert [sum(of_rank.values()) for of_rank in result.bytes_per_rank] == [output] * len(halves)


def test_guidance_moves_away_from_the_negative_prompt():
    uncond, cond = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])
    assert guide(torch.cat([uncond, cond]), 4.0).tolist() == [[9.0, -2.0]]
    assert torch.equal(guide(torch.cat([uncond, cond]), 1.0), cond)
    assert torch.equal(guide(torch.cat([uncond, cond]), 0.0), uncond)


@pytest.mark.parametrize(
    "refused",
    [lambda: check_batch(3, 2), lambda: guide(torch.zeros(3, 2), 1.0)],
    ids=["cfg2_of_3", "guidance_of_3"],
)
def test_a_batch_that_has_no_halves_is_refused(refused):
    with pytest.raises(UserError, match="3") as caught:
        refused()
    assert_one_sentence(str(caught.value))
