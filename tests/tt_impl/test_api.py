"""What ``tt_impl.api.run`` refuses before anything is started; that it computes is shown by the command line's test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from refsim.base.errors import NotFiniteError, UserError
from refsim.base.options import RunOptions
from tt_impl import api
from tt_impl.run.launch import Outcome

OPTIONS = RunOptions.of(mesh="n300", parallel="tp2", backend="ttnn-mock", dtype="bf16")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"options": OPTIONS, "mesh": "n300"}, "give options or mesh, not both"),
        ({"parallel": "tp2"}, "a run needs a mesh"),
        ({"mesh": "n300", "parallel": "tp2", "dtype": "fp32"}, "stores bf16, not fp32"),
        ({"mesh": "n300", "parallel": "tp2", "backend": "cpu"}, "is not a ttnn one"),
        ({"mesh": "n300", "parallel": "sp2", "ring_order": "gather"}, "has ring_order step only"),
        ({"options": OPTIONS}, "checkpoint '.*nowhere' does not exist"),
    ],
)
def test_refused_in_one_sentence(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        api.run(tmp_path / "nowhere", inputs=tmp_path / "in.safetensors", **given)


@pytest.mark.parametrize(
    ("fault", "value"), [("", 1.0), ("", float("nan")), ("", float("inf")), ("a:fault", float("nan"))]
)
def test_an_answer_that_is_not_finite_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, value: float
) -> None:
    """And nothing is written; a planted mistake is left to whoever judges it."""
    (tmp_path / "model").mkdir()
    sample = torch.ones(2, 3, dtype=torch.bfloat16)
    sample[1, 2] = value
    monkeypatch.setattr(api, "_check_installed", lambda options: None)
    monkeypatch.setattr(api, "execute", lambda *_, **__: Outcome({"sample": sample}, "nowhere", [], {}))
    how = {"inputs": {"x": torch.ones(1)}, "options": OPTIONS.but(fault=fault), "out": tmp_path / "out"}
    if fault or value == 1.0:
        assert api.run(tmp_path / "model", **how).tensors["sample"] is sample
    else:
        with pytest.raises(NotFiniteError, match=r"output sample .* first at \(1, 2\); it was computed on ttnn-mock"):
            api.run(tmp_path / "model", **how)
    assert (tmp_path / "out").exists() == bool(fault or value == 1.0)
