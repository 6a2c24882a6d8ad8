"""Every key of every JSON file of a pipeline's folder: accepted without a word, or one sentence and exit code 2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from parity.cases.pipelines import PIPELINES, build
from parity.cases.suites import registry
from refsim.api.images import generate_images
from refsim.pipelines.request import PipelineRequest
from tests.fuzz.command import Said, assert_refused, assert_refused_or_accepted, in_process
from tests.fuzz.examples import MANY
from tests.fuzz.malformed import WRONG
from tests.refsim.tiny import flux_pipeline, sd3_pipeline, wan_pipeline

MAKERS = {
    "wan": wan_pipeline.make_pipeline,
    "sd3": sd3_pipeline.make_pipeline,
    "flux": flux_pipeline.make_pipeline,
}
REQUEST = PipelineRequest("a cat", "slow dog", steps=2, guidance=3.5, height=64, width=96, max_text=24)
COGVIDEOX = "cogvideox_2b_pipeline_small"
registry()  # which makes parity's pipelines known
REQUESTS = {
    "flux": replace(REQUEST, negative_prompt=""),  # it has none
    "cogvideox": replace(PIPELINES[COGVIDEOX].request, steps=2),
}
NAMES = (*MAKERS, "cogvideox")
STRIDE = 17
"""Values left out between two of a key, in the ordinary suite."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny folder of each pipeline."""
    place = tmp_path_factory.mktemp("pipelines")
    for name, make in MAKERS.items():
        make().save_pretrained(place / name)
    build(COGVIDEOX, 0, place / "cogvideox")
    return {name: place / name for name in NAMES}


def run(folder: Path) -> Said:
    asked = REQUESTS.get(folder.name, REQUEST)
    return in_process(lambda: generate_images(folder, asked, mesh="n150"))


def spoil(path: Path, folder: Path, changes: dict[str, Any]) -> Said:
    """What is said with these changes to one JSON file, which is put back."""
    good = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(good) | changes))
        return run(folder)
    finally:
        path.write_text(good)


@pytest.mark.parametrize("name", NAMES)
def test_a_good_folder_is_accepted(folders: dict[str, Path], name: str):
    assert run(folders[name]).code is None


@pytest.mark.parametrize(
    "file",
    [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/tokenizer.json",
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_every_file(folders: dict[str, Path], name: str, file: str):
    path = folders[name] / file
    for index, key in enumerate(json.loads(path.read_text())):
        for value in WRONG if settings.default.max_examples == MANY else WRONG[index % STRIDE :: STRIDE]:
            said = spoil(path, folders[name], {key: value})
            assert_refused_or_accepted(said)


@pytest.mark.parametrize(
    ("name", "file", "changes"),
    [
        ("wan", "model_index.json", {"_class_name": ["WanPipeline"]}),
        ("wan", "model_index.json", {"boundary_ratio": "half"}),
        ("wan", "model_index.json", {"boundary_ratio": 1.5}),
        ("wan", "model_index.json", {"vae": 3}),
        ("sd3", "model_index.json", {"text_encoder_3": "T5"}),
        ("sd3", "vae/config.json", {"_class_name": "AutoencoderTiny"}),
        ("sd3", "vae/config.json", {"_class_name": "AutoencoderKLWan"}),
        ("wan", "vae/config.json", {"scale_factor_spatial": 16}),
        ("wan", "scheduler/scheduler_config.json", {"flow_shift": 0.0}),
        ("wan", "scheduler/scheduler_config.json", {"flow_shift": float("nan")}),
        ("wan", "scheduler/scheduler_config.json", {"num_train_timesteps": 10**12}),
        ("wan", "scheduler/scheduler_config.json", {"solver_order": 2**27}),  # a list as long
        ("wan", "scheduler/scheduler_config.json", {"beta_end": 5.0, "use_flow_sigmas": False}),
        ("sd3", "scheduler/scheduler_config.json", {"shift": 0}),
        ("sd3", "scheduler/scheduler_config.json", {"shift": [3.0]}),
        ("flux", "model_index.json", {"vae": 3}),
        ("flux", "model_index.json", {"vae": []}),
        ("flux", "model_index.json", {"vae": ["diffusers", ["AutoencoderKL"]]}),
        ("flux", "scheduler/scheduler_config.json", {"shift": 0}),
        ("flux", "scheduler/scheduler_config.json", {"base_shift": 10**400}),
        ("flux", "scheduler/scheduler_config.json", {"max_shift": True}),
        ("flux", "scheduler/scheduler_config.json", {"max_image_seq_len": 256}),
        ("sd3", "tokenizer/tokenizer.json", {"model": {"a": 1}}),
        ("sd3", "tokenizer/tokenizer_config.json", {"model_max_length": 10**30}),
        ("sd3", "tokenizer/tokenizer_config.json", {"tokenizer_class": ["CLIPTokenizer"]}),
    ],
    ids=str,
)
def test_a_value_that_makes_no_pipeline(folders: dict[str, Path], name: str, file: str, changes: dict[str, Any]):
    assert_refused(spoil(folders[name] / file, folders[name], changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2**64},
        {"seed": -(2**63) - 1},
        {"seed": 1.0},
        {"seed": True},
        {"prompt": "a \ud800 cat"},
        {"prompt": 3},
        {"negative_prompt": None},
        {"steps": "3"},
        {"steps": None},
        {"height": 64.0},
        {"frames": True},
        {"guidance": None},
        {"guidance": [1]},
    ],
    ids=str,
)
def test_python_arguments_of_a_wrong_kind(changes: dict[str, Any]):
    assert_refused(in_process(lambda: PipelineRequest(**{"prompt": "a cat", "steps": 2} | changes) and None))


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), 0])
def test_every_seed_of_64_bits_is_good(seed: int):
    assert PipelineRequest("a cat", steps=2, seed=seed).seed == seed
