"""What a model takes, dim by dim: which inputs cfg cuts, which keep their dtype, and sizes that have to agree."""

from __future__ import annotations

import pytest
import torch

from refsim.base.errors import UserError
from refsim.models.inputs import BATCH, fits, is_exact, is_per_sample, named_sizes, required, unbatched

INPUTS = {
    "hidden_states": (BATCH, "image tokens", 64),
    "timestep": (BATCH,),
    "img_ids": ("image tokens", 3),
}


def test_what_is_cut_and_what_is_rounded():
    assert [name for name, dims in INPUTS.items() if is_per_sample(dims)] == ["hidden_states", "timestep"]
    assert [name for name, dims in INPUTS.items() if is_exact(dims)] == ["timestep", "img_ids"]


@pytest.mark.parametrize(
    ("shape", "good"),
    [((2, 77, 64), True), ((2, 77, 63), False), ((2, 0, 64), False), ((77, 64), False), ((2, 1, 77, 64), False)],
)
def test_shapes_that_fit(shape, good):
    assert fits(shape, INPUTS["hidden_states"]) == good


def test_a_dim_that_may_be_left_out():
    dims = (BATCH, "[video tokens]")
    assert required(dims) == (BATCH,) and is_exact(dims) and not is_exact((BATCH, "video tokens"))
    assert [fits(shape, dims) for shape in ((2,), (2, 72), (2, 72, 1), ())] == [True, True, False, False]
    assert named_sizes({"timestep": dims}, {"timestep": (2,)}) == {BATCH: 2}


def test_sizes_by_name():
    shapes = {"hidden_states": (2, 77, 64), "timestep": (2,), "img_ids": (77, 3)}
    assert named_sizes(INPUTS, shapes) == {BATCH: 2, "image tokens": 77}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"timestep": (3,)}, r"the batch \(hidden_states 2, timestep 3\)"),
        ({"img_ids": (78, 3)}, r"the image tokens \(hidden_states 77, img_ids 78\)"),
    ],
    ids=["batch", "tokens"],
)
def test_sizes_that_disagree(changed, said):
    shapes = {"hidden_states": (2, 77, 64), "timestep": (2,), "img_ids": (77, 3)}
    with pytest.raises(UserError, match=said):
        named_sizes(INPUTS, shapes | changed)


def test_positions_as_pipelines_hand_them_on():
    ids = torch.arange(12.0).view(4, 3)
    assert torch.equal(unbatched(ids[None].expand(2, -1, -1), INPUTS["img_ids"]), ids)
    assert unbatched(ids, INPUTS["img_ids"]) is ids
    latents = torch.zeros(2, 4, 64)
    assert unbatched(latents, INPUTS["hidden_states"]) is latents
    with pytest.raises(UserError, match="another one for each sample"):
        unbatched(torch.stack([ids, ids + 1]), INPUTS["img_ids"])
