"""What a model is called and what others measured of it stands in its own folder, not all over the product."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from refsim.models import registry
from refsim.models.spec import ModelSpec
from tests.tree import PRODUCT, ROOT

SPECS = registry.builtin()


def own_files(spec: ModelSpec) -> tuple[str, ...]:
    """Where a model's names may stand: its two folders, its pipelines, and what makes and judges random ones of it."""
    module = (spec.pipeline or "").partition(":")[0].replace(".", "/")
    beside = (f"{module}.py", f"{module.replace('refsim', 'tt_impl', 1)}.py") if module else ()
    return f"refsim/models/{spec.name}/", f"tt_impl/models/{spec.name}/", *beside, *OF_PARITY, *ALSO.get(spec.name, ())


OF_PARITY = (
    "parity/cases/oracles/",
    *(
        f"parity/cases/{name}.py" for name in ("checkpoints", "model_folders", "pipelines")
    ),  # random models and their folders
    "parity/cases/suites/",
    "parity/faults/",
    "benchmarks/programs/",  # of others, which load models by their names
)
DECODING = ("refsim/pipelines/speculative.py", "tt_impl/pipelines/speculative.py")
"""Decoding has no pipeline folder of its own."""
ALSO = {
    "qwen3_moe": DECODING,
    "dflash": (*DECODING, "parity/kinds/ttnn/calls.py"),  # a drafter that is called wrongly
    "sd35": ("parity/kinds/cpu/single_file.py",),  # which refuses a file of another class
    **dict.fromkeys(("qwenimage", "mochi"), ("benchmarks/upstream/weights.py",)),  # sizes of upstream's own tests
}


@cache
def product() -> dict[str, str]:
    paths = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def names(spec: ModelSpec) -> list[str]:
    """Its classes and pipelines, and the sources and parameter counts of what is published of it."""
    found = [*spec.class_names, *spec.pipeline_classes]
    for count in (model.parameters for model in spec.published if model.parameters):
        found += [f"{count:_}", str(count)]
    return [*dict.fromkeys([*found, *(f.source for f in registry.figures().values() if registry.get(f.model) == spec)])]


def elsewhere(spec: ModelSpec, texts: dict[str, str]) -> list[str]:
    """``file: name`` for every name of the model in a file that is not its own."""
    mine = own_files(spec)
    return [
        f"{file}: {name}"
        for file, text in texts.items()
        if not file.startswith(mine)
        for name in names(spec)
        if name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_model_is_named_in_its_own_files_only(spec):
    assert elsewhere(spec, product()) == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_name_elsewhere_is_found(spec):
    for name in names(spec):
        text = f"x = {{'{name}': 1}}"
        assert elsewhere(spec, {"refsim/api/images.py": text}) == [f"refsim/api/images.py: {name}"]
        assert elsewhere(spec, {"parity/kinds/base.py": text}) == [f"parity/kinds/base.py: {name}"]
        assert elsewhere(spec, {"tests/x.py": f"Not{name}Here"}) == []
        assert elsewhere(spec, {f"refsim/models/{spec.name}/x.py": text}) == []


def test_seconds_of_others_stand_beside_their_model_only():
    """A figure as it would be written in a table of another module: (..., 12.2, 20 ...); layouts of cases are none."""
    for model, _, _, _ in registry.figures():
        assert any(p.name == model for spec in SPECS for p in spec.published)
    for (_, _, mesh, parallel), figure in registry.figures().items():
        row = re.compile(rf'"{mesh}", "{parallel}"[^\n]*{re.escape(f"{figure.seconds:g}")}')
        found = [file for file, text in product().items() if row.search(text)]
        assert [file for file in found if not file.endswith("/figures.py") and not file.startswith(OF_PARITY)] == []


def test_every_name_is_in_the_spec_of_its_folder():
    texts = product()
    for spec in SPECS:
        home = texts[f"refsim/models/{spec.name}/spec.py"]
        assert all(name in home for name in (*spec.class_names, *spec.pipeline_classes))
        assert Path(ROOT / "refsim/models" / spec.name / "config.py").is_file()
