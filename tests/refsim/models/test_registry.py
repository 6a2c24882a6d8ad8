"""Specs: every model is found by each of its names, the names are nobody else's, and nothing heavy is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from refsim.base.errors import UserError
from refsim.files.folder import class_name_of
from refsim.models import registry
from refsim.models.spec import ModelSpec, Published, resolve
from tests.refsim.helpers import assert_one_sentence

ROOT = Path(__file__).resolve().parents[3]
SPECS = registry.builtin()
TOY = {"name": "toy", "class_names": ("Toy",), "kind": "transformer", "model": "toy:Toy", "config": "toy:Config"}


def test_every_folder_is_listed_and_has_its_name():
    folders = {path.parent.name for path in (ROOT / "refsim/models").glob("*/spec.py")}
    assert folders == set(registry.FOLDERS)
    assert folders == {path.name for path in (ROOT / "refsim/models").iterdir() if (path / "__init__.py").is_file()}
    assert [spec.name for spec in SPECS] == list(registry.FOLDERS)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_spec_is_what_its_classes_say(spec):
    assert spec.model_class.__module__ == spec.model.partition(":")[0]
    # A model whose counterpart is another one's, as FLUX.2's decoder is that of Flux.1, has no folder there.
    of_its_own = (spec.ttnn or "").startswith(f"tt_impl.models.{spec.name}.")
    assert (ROOT / "tt_impl/models" / spec.name).is_dir() == of_its_own
    for name in spec.claims:
        assert registry.get(name) is spec
    for model in spec.published:
        config = spec.config_class.from_dict(model.config)
        known = set(vars(config))
        assert known & set(model.config), "its keys are those of another configuration"
        assert registry.get_published(model.name) == (spec, model)
        for encoder in model.encoders:
            assert registry.get_published(encoder.published)[0].encoder_keys is not None
        if model.decoder:
            # Qwen-Image's pictures are videos of one frame to its decoder
            assert registry.get_published(model.decoder)[0].latent in (spec.latent, "video")


@pytest.mark.parametrize("spec", [s for s in SPECS if s.kind == "transformer"], ids=lambda spec: spec.name)
def test_published_inputs_fit_the_model(spec):
    for model in spec.published:
        assert model.steps > 0
        for size in model.sizes.values():
            shapes = spec.input_shapes(model, size, 2)
            assert shapes.keys() == spec.inputs(model.config).keys()
            assert all(type(n) is int and n > 0 for shape in shapes.values() for n in shape)
            if not spec.timing_only:  # what is only read takes tokens, some of which are patches
                assert shapes["hidden_states"][spec.channel_dim] == model.config["in_channels"]


def test_the_specs_load_no_torch():
    code = "import sys; from refsim.models import registry; registry.models(); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kind": "painting"}, "painting"),
        ({"class_names": ()}, "class_names"),
        ({"model": "toy.Toy"}, "toy.Toy"),
        ({"ttnn": "toy/tt:Toy"}, "toy/tt:Toy"),
        ({"published": (Published("toy-1", {"_class_name": "Other"}),)}, "Other"),
    ],
)
def test_a_spec_that_cannot_be(changes, word):
    ModelSpec(**TOY)
    with pytest.raises(UserError, match=word) as caught:
        ModelSpec(**TOY | changes)
    assert_one_sentence(str(caught.value))


def test_what_follows_from_a_folders_name_and_what_a_spec_says_instead():
    given = {"class_names": ("Toy",), "kind": "transformer", "model": "transformer:Toy", "config": "ToyConfig"}
    spec = ModelSpec.of_folder("toy", **given, pipeline="toys:ToyPipeline", ttnn_block="elsewhere:bind")
    assert (spec.model, spec.config) == ("refsim.models.toy.transformer:Toy", "refsim.models.toy.config:ToyConfig")
    assert (spec.ttnn, spec.block) == ("tt_impl.models.toy.transformer:Toy", "refsim.models.toy.transformer:bind_block")
    assert (spec.pipeline, spec.ttnn_pipeline) == (
        "refsim.pipelines.toys:ToyPipeline",
        "tt_impl.pipelines.toys:ToyPipeline",
    )
    assert (spec.pipeline_classes, spec.ttnn_block) == (("ToyPipeline",), "elsewhere:bind")
    borrowed = ModelSpec.of_folder("toy", **given | {"model": "refsim.models.other.transformer:Other"})
    assert borrowed.model == "refsim.models.other.transformer:Other"
    assert (borrowed.ttnn, borrowed.block, borrowed.pipeline, borrowed.pipeline_classes) == (None, None, None, ())


def test_names_that_are_unknown():
    for ask in (registry.get, registry.get_published, registry.find):
        with pytest.raises(UserError, match="toy") as caught:
            ask("toy")
        assert_one_sentence(str(caught.value))
    assert registry.by_class_name("Toy") is None
    assert registry.by_class_name("sd35") is None  # a folder's name is no class
    assert registry.by_pipeline("Toy") is None
    with pytest.raises(UserError, match="not a published model"):
        registry.get_published("sd35")


@pytest.mark.parametrize("reference", ["refsim.models.nothing:X", "refsim.models.registry:Nothing"])
def test_a_class_that_is_not_there(reference):
    with pytest.raises(UserError, match=reference) as caught:
        resolve(reference)
    assert_one_sentence(str(caught.value))


def test_class_names_of_both_libraries():
    assert class_name_of({"_class_name": "A", "architectures": ["B"]}) == "A"
    assert class_name_of({"architectures": ["B", "C"]}) == "B"
    assert class_name_of({"architectures": []}) == "None"
