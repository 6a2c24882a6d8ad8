"""RunOptions: what users write becomes one object that checks itself and survives JSON."""

from __future__ import annotations

import json

import pytest
import torch

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, get_mesh
from refsim.base.options import RunOptions, as_options
from tests.refsim.helpers import assert_one_sentence

OWN = MeshSpec("own", "a mesh of nobody else's", "blackhole", (2, 3), (1, 2), (False, True))


@pytest.mark.parametrize(
    "given",
    [
        {"mesh": "n150"},
        {"mesh": "t3k", "parallel": "cfg2_sp2_tp2", "dtype": torch.bfloat16, "trace": True},
        {"mesh": "t3k", "parallel": "sp8", "attention": "usp", "ring": 2, "ulysses": 4, "prompt_layout": "split"},
        {"mesh": OWN, "parallel": "sp2_tp3", "ring_order": "block", "q_chunk_size": 7, "delay": (3, 0.5)},
        {"mesh": "n150", "math": "reference", "transport": "shared"},
        {"mesh": "t3k", "parallel": "sp2_tp4", "backend": "ttnn-mock", "fault": "a:b", "detect_hazards": False},
    ],
)
def test_a_round_trip_through_json_gives_equal_options(given):
    options = RunOptions.of(**given)
    assert RunOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


@pytest.mark.parametrize(
    ("given", "dtype"),
    [({}, "fp32"), ({"backend": "ttnn-mock"}, "bf16"), ({"dtype": "bfloat16"}, "bf16"), ({"dtype": "fp32"}, "fp32")],
)
def test_the_dtype_has_one_name(given, dtype):
    options = RunOptions.of(mesh="n150", **given)
    assert options.dtype == dtype
    assert options.storage is {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mesh": "moon"}, "choose one of n150"),
        ({"parallel": "sp3"}, "uses 3 devices"),
        ({"dtype": "fp16"}, "fp32 or bf16"),
        ({"prompt_layout": "halved"}, "replicated, split"),
        ({"weights_dtype": "bfp2_b", "backend": "ttnn-mock"}, "bf16, bfp8_b, bfp4_b"),
        ({"numerics": "fast"}, "device_numerics rounds on refsim's ranks"),
        ({"numerics": "fast", "backend": "ttnn-device"}, "kernels round there"),
        ({"numerics": "slow", "backend": "ttnn-mock"}, "off, fast, exact"),
        ({"weights_dtype": "bfp8_b"}, "choose a ttnn backend"),
        ({"ring_order": "eager"}, "gather, step, block"),
        ({"vae_parallel": "rows"}, "spatial, tensor"),
        ({"backend": "cuda"}, "ttnn-mock"),
        ({"math": "fp64"}, "choose one of reference, storage"),
        ({"transport": "tcp"}, "choose one of auto, gloo, shared"),
        ({"q_chunk_size": True}, "1 or more"),
        ({"k_chunk_size": 0}, "1 or more"),
        ({"timeout_s": float("nan")}, "above 0"),
        ({"timeout_s": -1}, "above 0"),
        ({"colour": "red"}, "option 'colour' does not exist"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(given, said):
    with pytest.raises(UserError, match=said) as caught:
        RunOptions.of(**{"mesh": "t3k", "parallel": "sp2_tp4", **given})
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("given", "chunks"),
    [
        ({}, (2048, 2048)),
        ({"math": "reference"}, (256, 512)),
        ({"ring_order": "block"}, (256, 512)),
        ({"q_chunk_size": 7}, (7, 2048)),
        ({"math": "reference", "k_chunk_size": 9}, (256, 9)),
    ],
)
def test_chunks_are_those_of_the_processor_unless_a_device_is_looked_at(given, chunks):
    assert RunOptions.of(mesh="n150", **given).chunk_sizes == chunks


def test_factors_of_another_mesh_are_refused():
    with pytest.raises(UserError, match="uses 8 devices but mesh n150"):
        RunOptions.of(mesh="t3k", parallel="sp2_tp4").but(mesh=get_mesh("n150"))


def test_options_and_keywords_do_not_mix():
    options = RunOptions.of(mesh="n150")
    with pytest.raises(UserError, match="not both"):
        as_options(options, {"dtype": "bf16"})
    with pytest.raises(UserError, match="needs a mesh"):
        as_options(None, {})
