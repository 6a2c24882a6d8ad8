"""Every key of every config.json x every wrong value: accepted without a word, or one sentence and exit code 2."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings

import refsim
from refsim.api.text import TextRequest, generate_text
from tests.fuzz.command import Said, assert_refused, assert_refused_or_accepted, in_process
from tests.fuzz.examples import MANY
from tests.fuzz.malformed import SPECS, WRONG, Tiny, make

STRIDE = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tiny]:
    """A tiny folder of each model."""
    place = tmp_path_factory.mktemp("tiny")
    return {spec.name: make(spec, place / spec.name) for spec in SPECS}


def run(model: Tiny, target: Tiny) -> Said:
    """What the Python interface says to a folder, and to a drafter beside its target: without the second that the
    command line needs to build its options."""
    if model.inputs is None:
        request = TextRequest(draft=model.folder)
        return in_process(lambda: generate_text(target.folder, [[1]], request, mesh="n150"))
    return in_process(lambda: refsim.run(model.folder, inputs=model.inputs, mesh="n150"))


def kind_of(value: Any) -> str:
    """The kind of a JSON value, a whole number being a number too."""
    for kind in (bool, int | float, str, list | tuple, dict):
        if isinstance(value, kind):
            return str(kind)
    return "null"


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
def test_a_good_folder_is_accepted(models: dict[str, Tiny], name: str):
    assert run(models[name], models["qwen3_moe"]).code is None


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
def test_every_key_with_every_wrong_value_is_read_or_refused(models: dict[str, Tiny], name: str):
    model = models[name]
    for key in model.keys:
        for value in WRONG:
            config = json.loads(json.dumps(model.config | {key: value}))
            said = in_process(lambda config=config: model.spec.config_class.from_dict(config) and None)
            if said.code is not None:
                assert_refused(said)
            assert said.code == 2 or not must_be_refused(model, key, value), (key, value)


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
def test_every_key_with_wrong_values_through_the_entry_point(models: dict[str, Tiny], name: str):
    """All of them in ``nox -s fuzz``; otherwise a few a key, others for each key."""
    model = models[name]
    for index, key in enumerate(model.keys):
        for value in WRONG if settings.default.max_examples == MANY else WRONG[index % STRIDE :: STRIDE]:
            model.write(**{key: value})
            said = run(model, models["qwen3_moe"])
            assert_refused_or_accepted(said)
            assert said.code == 2 or not must_be_refused(model, key, value), (key, value)
    model.write()


def must_be_refused(model: Tiny, key: str, value: Any) -> bool:
    """Whether a key that the model reads is given a value of another kind than the good one."""
    good = model.fields
    return key in good and value is not None and kind_of(value) != kind_of(good[key])


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
def test_unknown_keys_are_left_alone(models: dict[str, Tiny], name: str):
    models[name].write(a_key_of_tomorrow={"a": [1]}, _note="x")
    assert run(models[name], models["qwen3_moe"]).code is None
    models[name].write()
