"""Epsilons of a model's norms are those of the modules that diffusers and transformers make of its configuration.

Where a norm sees ordinary values, no answer in bf16 tells 1e-5 from 1e-6: those of whole models are compared as such.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers
from safetensors.torch import save_file

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.cases.model_folders import diffusers_class
from parity.cases.store import CheckpointStore
from parity.cases.suites import registry
from parity.kinds import load
from refsim.base.options import RunOptions
from tt_impl.run.launch import Worker

WHOLE = ("sd35_tiny64", "flux1_tiny64", "qwenimage_tiny64", "cogvideox_5b_tiny64", "wan22_tiny64")
WHOLE += ("flux2_klein_tiny64", "t5_tiny64", "clip_l_tiny64")
TARGET = "qwen3_moe_tiny32"
OPTIONS = RunOptions.of(mesh="n150", parallel="sp1", dtype="bf16", backend="ttnn-mock")


@pytest.fixture(scope="module")
def store() -> Iterator[CheckpointStore]:
    with CheckpointStore() as kept:
        yield kept


def norms_of_oracle(name: str) -> set[tuple[int, float]]:
    """(Features, epsilon) of every norm."""
    spec = MODELS[name]
    with torch.device("meta"):
        if (cls := diffusers_class(spec.class_name)) is not None:
            model = cls(**spec.config)
        else:
            cls = getattr(transformers, spec.class_name)
            model = cls(cls.config_class(**spec.config))
    norms = [module for module in model.modules() if not list(module.children())]
    return {(_features(norm), round(_epsilon(norm), 12)) for norm in norms if _epsilon(norm) is not None}


def _epsilon(module: torch.nn.Module) -> float | None:
    return getattr(module, "eps", getattr(module, "variance_epsilon", None))


def _features(norm: torch.nn.Module) -> int:
    shape = getattr(norm, "normalized_shape", None) or getattr(norm, "dim", None)
    return len(norm.weight) if shape is None else shape[-1]


def case_of(name: str) -> Case:
    return next(case for case in registry().cases if case.model == name and case.backends == "ttnn")


@pytest.mark.parametrize("name", WHOLE)
def test_of_a_whole_model(name: str, store: CheckpointStore, worker: Worker, tmp_path) -> None:
    case = case_of(name)
    inputs = load(case.kind)(store).inputs(case, 0)
    save_file({key: x.contiguous() for key, x in inputs.items()}, tmp_path / "inputs")
    arguments = {"checkpoint": str(store.folder(name, 0)), "inputs": str(tmp_path / "inputs")}
    of = "tt_impl.pipelines.transformer:program"
    ran = worker.execute("tests.tt_impl.epsilons:program", OPTIONS, {"of": of, **arguments}, values=False)
    assert {(n, round(eps, 12)) for n, eps in ran.report["norms"]} == norms_of_oracle(name)


def test_of_a_language_model(store: CheckpointStore, worker: Worker, tmp_path) -> None:
    save_file({"ids": torch.tensor([3, 5, 7]), "lengths": torch.tensor([3])}, tmp_path / "inputs")
    arguments = {"target": str(store.folder(TARGET, 0)), "inputs": str(tmp_path / "inputs"), "max_new_tokens": 2}
    of = "tt_impl.pipelines.speculative:program"
    ran = worker.execute("tests.tt_impl.epsilons:program", OPTIONS, {"of": of, **arguments}, values=False)
    assert {(n, round(eps, 12)) for n, eps in ran.report["norms"]} == norms_of_oracle(TARGET)
