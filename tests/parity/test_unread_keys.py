"""Keys of config.json that refsim does not read: a value that changes the library's answer is refused."""

import dataclasses
import json
import shutil

import pytest
import torch

from parity.checkpoints import MODELS, load_oracle
from parity.kinds import load
from parity.pipelines import quietly
from parity.published import NO_LIBRARY
from parity.store import CheckpointStore
from parity.suites import suite_cases
from refsim.errors import UserError
from refsim.models.registry import get

pytest.importorskip("diffusers")

_ACTIVATIONS = {"silu": "gelu", "gelu": "silu", "gelu_new": "relu", "gelu-approximate": "gelu", "quick_gelu": "gelu"}
_OTHERWISE = {"return_dict", "output_router_logits"}
"""Keys of how an answer is handed over."""


def one_case_a_class():
    found = {}
    for case in suite_cases("smoke"):
        whole = case.kind in ("transformer", "vae_decoder", "text_encoder", "causal_lm") and not case.needs_gb
        if whole and case.dtype == "fp32" and get(MODELS[case.model].class_name).name not in NO_LIBRARY:
            found.setdefault(MODELS[case.model].class_name, case)
    return found


CASES = one_case_a_class()


@pytest.fixture(scope="module")
def store():
    with CheckpointStore() as held, quietly():
        yield held


def other(value):
    """Another value of the same kind, None where there is none that a library would take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return _ACTIVATIONS.get(value) if isinstance(value, str) else None


def answer(kind, case, folder):
    """The library's, None if it has none with this config.json."""
    try:
        model = load_oracle(folder, torch.float32)
        given = dict(kind.inputs(case, 0))
        given |= kind.oracle(case).further_inputs(model, given)
        with torch.inference_mode():
            return kind.call(model, given)
    except Exception:
        return None


@pytest.mark.parametrize("class_name", CASES)
def test_what_changes_the_answer_is_read_or_refused(class_name, store, tmp_path):
    case, config_class = CASES[class_name], get(class_name).config_class
    kind, folder = load(case.kind)(store), store.folder(case.model, 0)
    said = json.loads((folder / "config.json").read_text())
    from parity.kinds.published import library_defaults

    right, read = answer(kind, case, folder), {field.name for field in dataclasses.fields(config_class)}
    assert right is not None
    shutil.copytree(folder, tmp_path / "changed")
    overlooked = []
    for key, value in (library_defaults(class_name) | said).items():
        changed = said | {key: other(value)}
        if key in read | _OTHERWISE or changed[key] is None:
            continue
        try:
            config_class.from_dict(changed)
        except UserError:
            continue
        (tmp_path / "changed" / "config.json").write_text(json.dumps(changed))
        theirs = answer(kind, case, tmp_path / "changed")
        if theirs is not None and not torch.equal(theirs, right):
            overlooked.append(f"{key} = {changed[key]}")
    assert overlooked == []
