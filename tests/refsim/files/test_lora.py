"""LoRA files against torch: the merged weights by a formula of their own, in slices, and through diffusers' model."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

import refsim
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

ALPHA, RANK = 6.0, 4
MODULES = ("transformer_blocks.0.attn.to_q", "transformer_blocks.1.ff.net.0.proj", "pos_embed.proj")
"""The last one is a convolution."""
METADATA = {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": ALPHA, "transformer.r": RANK})}


def pairs(model) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Draw (A, B) of every module, as large as its weight."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for name in MODULES:
        out, *rest = model.get_submodule(name).weight.shape
        down = torch.randn(RANK, *rest, generator=generator) / torch.tensor(rest).prod() ** 0.5
        found[name] = down, torch.randn(out, RANK, *[1] * (len(rest) - 1), generator=generator)
    return found


def change(down, up):
    return torch.einsum("or,r...->o...", up.flatten(1), down)


def diffusers_names(pairs):
    return {
        f"transformer.{n}.lora_{half}.weight": x for n, ab in pairs.items() for half, x in zip("AB", ab, strict=True)
    }


def peft_names(pairs):
    found = {f"{n}.lora_{half}.default.weight": x for n, ab in pairs.items() for half, x in zip("AB", ab, strict=True)}
    return found | {f"{n}.alpha": torch.tensor(ALPHA) for n in pairs}


def kohya_names(pairs):
    found = {}
    for name, (down, up) in pairs.items():
        plain = f"lora_unet_{name.replace('.', '_')}"
        found |= {
            f"{plain}.lora_down.weight": down,
            f"{plain}.lora_up.weight": up,
            f"{plain}.alpha": torch.tensor([ALPHA]),
        }
    return found


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return save(model, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("names", "metadata"),
    [(diffusers_names, METADATA), (peft_names, None), (kohya_names, None)],
    ids=lambda x: str(x)[:20],
)
def test_slices_of_merged_weights(names, metadata, model, folder, tmp_path):
    """Two files, one of them scaled."""
    given, file = pairs(model), str(tmp_path / "lora.safetensors")
    save_file(names(given), file, metadata)
    weights = Weights(Checkpoint(folder, lora=(f"{file}:0.5", file)), torch.float32)
    for name, (down, up) in given.items():
        weight = model.get_submodule(name).weight.detach()
        expected = weight + 1.5 * ALPHA / RANK * change(down, up)
        half = weight.shape[0] // 2
        found = weights.take(f"{name}.weight", tuple(weight.shape), (half, 2 * half + 3), (3, weight.shape[1]))
        torch.testing.assert_close(found[:half], expected[half : 2 * half, 3:], rtol=1e-5, atol=1e-5)
        assert not found[half:].any()
    assert weights.copied_bytes > 0


def test_without_alpha_it_is_the_rank(model, folder, tmp_path):
    given, file = pairs(model), str(tmp_path / "lora.safetensors")
    save_file(diffusers_names(given), file)
    name = MODULES[0]
    weight = model.get_submodule(name).weight.detach()
    found = Weights(Checkpoint(folder, lora=(file,)), torch.float32).take(f"{name}.weight", tuple(weight.shape))
    torch.testing.assert_close(found, weight + change(*given[name]), rtol=1e-5, atol=1e-5)


def test_a_run_with_a_lora_equals_diffusers_with_the_merged_weights(model, folder, tmp_path):
    given, file, inputs = pairs(model), tmp_path / "lora.safetensors", make_inputs()
    save_file(diffusers_names(given), file, METADATA)
    other = make_model()
    with torch.no_grad():
        for name, (down, up) in given.items():
            other.get_submodule(name).weight += 0.7 * ALPHA / RANK * change(down, up)
        expected = other(**inputs, return_dict=False)[0]
    found = refsim.run(folder, inputs=inputs, mesh="bh-qb", parallel="sp2_tp2", lora=f"{file}:0.7").tensors["sample"]
    assert relative_rmse(found, expected) <= 5e-6


def _without_half(tensors):
    del tensors[f"transformer.{MODULES[0]}.lora_B.weight"]


def _too_narrow(tensors):
    key = f"transformer.{MODULES[0]}.lora_A.weight"
    tensors[key] = tensors[key][:, 1:].contiguous()


def _other_rank(tensors):
    for half, dim in (("A", 0), ("B", 1)):
        key = f"transformer.{MODULES[0]}.lora_{half}.weight"
        tensors[key] = tensors[key].narrow(dim, 0, 2).contiguous()


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda tensors: tensors.update({"transformer.x.lora_A.weight": torch.ones(4, 4)}),
            "x.lora_A.weight', which changes",
        ),
        (
            lambda tensors: tensors.update({f"{MODULES[0]}.dora_scale": torch.ones(4)}),
            "dora_scale', which changes no weight",
        ),
        (_without_half, "lora_A.weight' without its other half"),
        (_too_narrow, r"of shape \(48, 48\) by \(48, 4\) times \(4, 47\), which do not fit"),
        (_other_rank, "has ranks 2, 4 and no alpha"),
    ],
    ids=["module", "kind", "half", "shape", "ranks"],
)
def test_a_file_that_does_not_fit(edit, said, model, folder, tmp_path):
    file = str(tmp_path / "lora.safetensors")
    tensors = diffusers_names(pairs(model))
    edit(tensors)
    save_file(tensors, file)
    with pytest.raises(UserError, match=said):
        refsim.run(folder, inputs=make_inputs(), mesh="n150", lora=file)


def test_what_is_no_file_and_no_scale(folder, tmp_path):
    for given, said in (
        ("none.safetensors", "is no file"),
        ("none:inf", "scale inf"),
        (f"{folder}/config.json", "readable"),
    ):
        with pytest.raises(UserError, match=said):
            Weights(Checkpoint(folder, lora=(given,)), torch.float32).take("proj_out.bias", (64,))
    with pytest.raises(UserError, match="lora is 3"):
        RunOptions.of(mesh="n150", lora=3)
    options = RunOptions.of(mesh="n150", lora=["a", "b:2"])
    assert RunOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_what_takes_no_lora():
    from refsim.api.text import TextRequest, _check_request

    with pytest.raises(UserError, match="decoding takes no LoRA"):
        _check_request([[1]], TextRequest(), RunOptions.of(mesh="n300", parallel="tp2", lora="x"), check=False)
