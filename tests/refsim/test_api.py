"""Mistakes in a call of the Python interface are one sentence, found before any rank is started."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import refsim
import tt_impl.api
from refsim.api.inputs import as_file
from refsim.base.errors import UserError
from refsim.files import output
from refsim.files.tensor_file import TensorFile
from refsim.runtime.ranks.pool import Pool
from tests.refsim.helpers import assert_one_sentence, attention_inputs, relative_rmse, serial_attention
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

GOOD = attention_inputs(heads=4, n=64, prompt=3)


def changed(**tensors):
    return {**GOOD, **tensors}


def without(*names):
    return {name: x for name, x in GOOD.items() if name not in names}


def poked(name, value):
    x = GOOD[name].clone()
    x[0, 1, 2, 3] = value
    return changed(**{name: x})


@pytest.fixture
def no_rank_starts(monkeypatch):
    def refuse(*_):
        raise AssertionError("ranks were asked for")

    monkeypatch.setattr(Pool, "__init__", refuse)
    monkeypatch.setattr(Pool, "run", refuse)


@pytest.mark.usefixtures("no_rank_starts")
@pytest.mark.parametrize(
    ("tensors", "options", "says"),
    [
        (GOOD, {"mesh": "t9k"}, "n150, n300"),
        (GOOD, {"scheme": "flash"}, "ring, ulysses, usp"),
        (GOOD, {"scheme": "usp", "mesh": "t3k-1x8", "ring": 3}, "ring=2 ulysses=4"),
        (GOOD, {"ring": 3}, "sp2"),
        (GOOD, {"logical_n": 0}, "between 1 and the 64 rows"),
        (GOOD, {"logical_n": 65}, "between 1 and the 64 rows"),
        (GOOD, {"dtype": "fp8"}, "fp32 or bf16"),
        (GOOD, {"dtype": torch.float64}, "fp32 or bf16"),
        (GOOD, {"prompt_layout": "rotated"}, "replicated, split"),
        (GOOD, {"ring_order": "eager"}, "gather, step, block"),
        (GOOD, {"q_chunk_size": 0}, "1 or more"),
        (GOOD, {"k_chunk_size": -1}, "1 or more"),
        (GOOD, {"timeout_s": 0}, "above 0"),
        (GOOD, {"parallel": "sp4"}, "tp2"),
        (changed(q=torch.zeros(4, 64, 16)), {}, "(batch, heads, tokens, features)"),
        (changed(k=torch.zeros(1, 4, 32, 16)), {}, "(1, 4, 64, 16)"),
        (changed(v=torch.zeros(1, 4, 64, 8)), {}, "(1, 4, 64, 16)"),
        (changed(joint_k=torch.zeros(1, 4, 5, 16)), {}, "(1, 4, tokens, 16)"),
        (changed(joint_v=torch.zeros(1, 2, 3, 16)), {}, "(1, 4, tokens, 16)"),
        (without("joint_v"), {}, "joint_q, joint_k and joint_v"),
        (changed(joint_mask=torch.ones(1, 4, dtype=torch.bool)), {}, "joint_mask must be a bool tensor"),
        (poked("q", torch.nan), {}, "input q holds 1 non-finite value(s), the first at (0, 1, 2, 3)"),
        (poked("joint_v", -torch.inf), {}, "input joint_v holds 1 non-finite"),
    ],
    ids=lambda value: (
        "-".join(f"{k}_{v}" for k, v in value.items()) if isinstance(value, dict) and "q" not in value else ""
    ),
)
def test_a_mistake_is_one_sentence(tensors, options, says):
    with pytest.raises(UserError) as caught:
        refsim.simulate_attention(**{"mesh": "n300", "scheme": "ring", **tensors, **options})
    assert_one_sentence(str(caught.value))
    assert caught.value.exit_code == 2
    assert says in str(caught.value)


def test_one_tensor_may_be_query_key_and_value():
    x = torch.randn(1, 4, 64, 16)
    out, _, _ = refsim.simulate_attention(x, x, x, mesh="n300", scheme="ring")
    assert relative_rmse(out, serial_attention({"q": x, "k": x, "v": x})["out"]) <= 1e-6


def test_views_of_a_fused_projection_are_taken_as_they_are():
    qkv = torch.randn(1, 64, 3, 4, 16)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    out, _, _ = refsim.simulate_attention(q, k, v, mesh="n300", scheme="ring")
    assert relative_rmse(out, serial_attention({"q": q, "k": k, "v": v})["out"]) <= 1e-6


def test_inputs_that_need_gradients_are_taken_and_left_alone():
    x = torch.randn(1, 4, 64, 16, requires_grad=True)
    before = x.detach().clone()
    out, _, _ = refsim.simulate_attention(x, x * 2, x + 1, mesh="n300", scheme="ring")
    assert not out.requires_grad
    assert torch.equal(x, before)


def test_another_backend_is_not_run_on_ranks(tmp_path):
    with pytest.raises(UserError, match="for ttnn-mock call tt_impl"):
        refsim.run(save(make_model(), tmp_path / "model"), inputs={}, mesh="n300", parallel="tp2", backend="ttnn-mock")


@pytest.mark.parametrize("backend", ["cpu", "ttnn-mock"])
@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("model/out.safetensors", "out '.*' would overwrite the input"),
        ("x.safetensors", "out '.*' would overwrite the input"),
        ("link.safetensors", "out '.*' would overwrite the input"),
        ("nowhere/out.safetensors", "out '.*' is not a file in an existing folder"),
        ("other.safetensors", "out '.*' is a link"),
        ("pipe", "out '.*' is not a file"),
    ],
)
def test_an_output_is_checked_before_the_run(tmp_path, backend, out, says):
    """Never a file of the checkpoint, the input, or a link to one of them; nothing is started first."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"_class_name": "SD3Transformer2DModel"}')
    (tmp_path / "model" / "diffusion_pytorch_model.safetensors").touch()
    (tmp_path / "x.safetensors").write_bytes(b"input")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "x.safetensors")
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "other.safetensors").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    how = {"inputs": tmp_path / "x.safetensors", "out": tmp_path / out, "mesh": "n300", "parallel": "tp2"}
    with pytest.raises(UserError, match=says):
        run = refsim.run if backend == "cpu" else tt_impl.api.run
        run(tmp_path / "model", **how)
    assert (tmp_path / "x.safetensors").read_bytes() == b"input"


@pytest.mark.parametrize("name", ["pipe", "link", "dangling", "folder"])
def test_what_is_no_ordinary_file_is_never_replaced(tmp_path, name):
    """Not even where a caller has not checked: pictures, traces and reports are written by the same function."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=r"out '.*' is (a link|not an ordinary file)"):
        output.write(tmp_path / name, b"overwritten")
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_paths_start_from_the_current_folder(tmp_path, monkeypatch):
    for name in ("one", "two"):  # ranks that were forked in the first folder run the second job
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        save(make_model(), Path(f"model_{name}"))
        save_file(make_inputs(), f"{name}.safetensors")
        result = refsim.run(f"model_{name}", inputs=f"{name}.safetensors", mesh="n300", parallel="sp2")
        assert torch.isfinite(result.tensors["sample"]).all()


def test_public_names_are_loaded_on_use():
    assert refsim.get_mesh("n150").num_devices == 1
    assert {getattr(refsim, name).__name__ for name in refsim.__all__} == set(refsim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = refsim.nothing


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")
def test_inputs_lie_in_memory() -> None:
    """No disk is written, and nothing is left of them."""
    x = torch.arange(6.0).reshape(2, 3)
    with as_file({"x": x}) as path:
        assert "memfd" in str(Path(os.readlink(path)).readlink())
        assert torch.equal(TensorFile(path)["x"], x)
    assert not path.parent.exists()
