"""No run ends in a silent NaN: weights, inputs and answers are looked at in the dtype they are stored in."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

import refsim
from refsim.base.errors import NotFiniteError, UserError
from refsim.base.finite import NotFinite, first_not_finite
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import assert_one_sentence
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

FILE = "diffusion_pytorch_model.safetensors"
WEIGHT = "transformer_blocks.1.ff.net.0.proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    save(make_model(num_layers=3, dual_attention_layers=()), folder)
    return folder


def spoilt(good: Path, place: Path, value: float, dtype: torch.dtype = torch.float32) -> Path:
    """Make a folder with one value of a weight, at (5, 2), replaced."""
    weights = load_file(good / FILE)
    weights[WEIGHT] = weights[WEIGHT].to(dtype)
    weights[WEIGHT][5, 2] = value
    save_file(weights, place / FILE)
    (place / "config.json").write_bytes((good / "config.json").read_bytes())
    return place


@pytest.mark.parametrize(
    ("value", "dtype", "storage", "where"),
    [
        (float("nan"), torch.float32, "fp32", ("n150", "sp1")),
        (float("nan"), torch.float32, "fp32", ("t3k", "cfg2_sp2_tp2")),
        (1e300, torch.float64, "fp32", ("n150", "sp1")),
        (3.4e38, torch.float32, "bf16", ("n300", "sp2")),
    ],
    ids=["nan", "nan_on_a_mesh", "too_large_for_fp32", "too_large_for_bf16"],
)
def test_a_weight_that_is_not_finite_in_the_storage_dtype(good, tmp_path, value, dtype, storage, where):
    folder = spoilt(good, tmp_path, value, dtype)
    with pytest.raises(UserError, match=r"1\.ff\.net\.0\.proj\.weight.*not finite at \(5, 2\)") as caught:
        refsim.run(folder, inputs=make_inputs(), mesh=where[0], parallel=where[1], dtype=storage)
    assert caught.value.exit_code == 2
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("value", "dtype", "storage"), [(1e300, torch.float64, "fp32"), (3.4e38, torch.float32, "bf16")]
)
def test_an_input_that_is_not_finite_in_the_storage_dtype(good, value, dtype, storage):
    inputs = make_inputs()
    inputs["hidden_states"] = inputs["hidden_states"].to(dtype)
    inputs["hidden_states"][0, 0, 1, 2] = value
    with pytest.raises(UserError, match=r"1 non-finite .*first at \(0, 0, 1, 2\)"):
        refsim.run(good, inputs=inputs, mesh="n150", dtype=storage)


def test_an_answer_that_is_not_finite_says_where_it_began(good, tmp_path):
    """The weight is finite, its product is not: only rank 1 of tp has these columns."""
    weights = load_file(good / FILE)
    columns = weights[WEIGHT].shape[0]
    weights[WEIGHT][columns // 2 :] = 3e38
    save_file(weights, tmp_path / FILE)
    (tmp_path / "config.json").write_bytes((good / "config.json").read_bytes())
    with pytest.raises(NotFiniteError, match=r"output sample .* rank 1's linear while running block 1") as caught:
        refsim.run(tmp_path, inputs=make_inputs(), mesh="n300", parallel="tp2")
    assert caught.value.exit_code == 1
    assert_one_sentence(str(caught.value))


def test_guidance_that_overflows_is_no_answer(good):
    with pytest.raises(NotFiniteError, match=r"output guided .* every op read finite values only"):
        refsim.run(good, inputs=make_inputs(), mesh="n150", guidance=3e38)


@pytest.mark.parametrize("guidance", [float("nan"), float("inf"), 1e39, 10**400, "4", True])
def test_guidance_is_a_finite_number(good, guidance):
    with pytest.raises(UserError, match="a finite number") as caught:
        refsim.run(good, inputs=make_inputs(), mesh="n150", guidance=guidance)
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool, None])
def test_attention_takes_real_numbers_only(name, dtype):
    tensors = {n: torch.randn(1, 2, 32, 16) for n in "qkv"}
    tensors[name] = [1.0] if dtype is None else tensors[name].to(dtype)
    with pytest.raises(UserError, match=f"^{name} is .*must be a tensor of float32") as caught:
        refsim.simulate_attention(**tensors, mesh="n150", dtype="fp32")
    assert_one_sentence(str(caught.value))


def test_attention_that_is_too_large_for_its_storage():
    q = torch.randn(1, 2, 32, 16, dtype=torch.float64)
    q[0, 1, 3, 4] = 1e300
    with pytest.raises(UserError, match=r"the first at \(0, 1, 3, 4\), as float32"):
        refsim.simulate_attention(q, q, q, mesh="n150", dtype="fp32")


def test_the_first_value_is_found():
    x = torch.full((3, 4), 3e38)
    assert first_not_finite(x) is None  # its sum overflows, it does not
    x[1, 2] = float("-inf")
    assert first_not_finite(x) == (1, 2)
    assert first_not_finite(torch.zeros(0)) is None
    found = NotFinite(3, "linear", "running block 1", (0, 2), (4, 5))
    assert NotFinite.from_json(found.to_json()) == found


@pytest.mark.parametrize("changes", [{"guidance": 1e39}, {"guidance_2": float("nan")}, {"guidance": "4"}])
def test_a_pipeline_is_asked_for_finite_guidance(changes):
    with pytest.raises(UserError, match="finite number"):
        PipelineRequest("a cat", **{"steps": 50} | changes)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_every_row_of_a_weight_is_looked_at_by_one_of_the_ranks_that_hold_it(tmp_path, count):
    """However few rows it has; and by each rank where it takes rows that the others do not."""
    shapes = {"one": (1, 2), "two": (2, 3), "seven": (7, 2)}
    (tmp_path / "config.json").write_text("{}")
    for name, shape in shapes.items():
        for row in range(shape[0]):
            tensors = {other: torch.zeros(size) for other, size in shapes.items()}
            tensors[name][row, 1] = torch.nan
            save_file(tensors, tmp_path / "model.safetensors")
            refused = 0
            for number in range(count):
                weights = Weights(Checkpoint(tmp_path), torch.float32, replica=(number, count))
                try:
                    weights.take(name, shape)
                except UserError as e:
                    assert f"not finite at ({row}, 1)" in str(e)
                    refused += 1
                with pytest.raises(UserError, match="not finite"):
                    weights.alone().take(name, shape)
            assert refused == 1


def test_what_an_earlier_job_has_looked_at_is_looked_at_again_only_if_it_differs(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": torch.zeros(4, 6)}, tmp_path / "model.safetensors")
    looked_at: list[tuple[int, ...]] = []

    def take(*ranges: tuple[int, int], dtype: torch.dtype = torch.float32, replica: tuple[int, int] = (0, 1)) -> int:
        """Return how many slices this job has looked at."""
        looked_at.clear()
        Weights(Checkpoint(tmp_path), dtype, replica=replica).take("w", (4, 6), *ranges)
        return len(looked_at)

    def look(x: torch.Tensor) -> tuple[int, ...] | None:
        looked_at.append(tuple(x.shape))
        return first_not_finite(x)

    with (
        mock.patch("refsim.files.checkpoint.first_not_finite", look),
        mock.patch("refsim.files.tensor_file._COARSE_NS", 0),
    ):
        asked = [{}, {"dtype": torch.bfloat16}, {"replica": (0, 2)}, {"replica": (1, 2)}]
        assert [take(**more) for more in asked] == [1, 1, 1, 1]
        assert [take((0, 2)), take((0, 4), (1, 6)), take((0, 4))] == [1, 1, 0]  # the last is all of it
        assert [take(**more) for more in asked] == [0, 0, 0, 0]
        changed = Checkpoint(tmp_path)
        changed.__dict__["changes"] = {"w": ["by a LoRA"]}
        infinite = mock.Mock(return_value=torch.full((4, 6), torch.inf))
        with mock.patch("refsim.files.checkpoint.merged", infinite), pytest.raises(UserError, match="not finite at"):
            Weights(changed, torch.float32).take("w", (4, 6))
        save_file({"w": torch.full((4, 6), torch.nan)}, tmp_path / "model.safetensors")
        os.utime(tmp_path / "model.safetensors", ns=(1, 1))
        with pytest.raises(UserError, match="not finite at"):
            take()
