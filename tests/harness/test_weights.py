"""Weights that are not there: values from the name and the seed alone, and no memory before they are used."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from refsim.base.errors import UserError
from tt_impl.harness import weights
from tt_impl.harness.weights import RandomWeights

SHAPE = (1 << 20, 1 << 20)
"""A TiB and more."""


def test_the_same_seed_gives_the_same_bits() -> None:
    first, again, other = (RandomWeights(seed, True).tensor("a.weight", (8, 4), torch.bfloat16) for seed in (1, 1, 2))
    assert torch.equal(first + 0, again + 0) and not torch.equal(first + 0, other + 0)
    assert torch.equal(
        first.to(torch.float32) + 0, RandomWeights(1, True).tensor("a.weight", (8, 4), torch.float32) + 0
    )
    assert torch.equal(first.sum(dtype=torch.float64), (first + 0).sum(dtype=torch.float64))
    assert not torch.equal(first + 0, RandomWeights(1, True).tensor("b.weight", (8, 4), torch.bfloat16) + 0)


@pytest.mark.parametrize("values", [True, False])
def test_a_model_takes_no_memory_and_computes(values: bool) -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"small": nn.Linear(4, 8), "huge": nn.Linear(*SHAPE)})
    RandomWeights(0, values).fill(model, torch.bfloat16)
    assert model["huge"].weight.shape == SHAPE and model["huge"].weight.dtype == torch.bfloat16
    result = model["small"](torch.ones(2, 4, dtype=torch.bfloat16))
    assert result.shape == (2, 8) and bool(result.any()) == values
    if not values:
        assert model["huge"](torch.ones(2, SHAPE[0], dtype=torch.bfloat16)).shape == (2, SHAPE[1])


def safetensors_file(folder: Path, tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str]) -> Path:
    """A file that has its header only."""
    header: dict[str, Any] = {"__metadata__": metadata}
    header |= {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps(header).encode()
    path = folder / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return path


def test_a_file_is_its_header(tmp_path: Path) -> None:
    """The data may be missing; the values are those of the same name in any file."""
    path = safetensors_file(tmp_path, {"a.weight": ("BF16", [8, 4]), "huge": ("F32", list(SHAPE))}, {"format": "pt"})
    tensors = RandomWeights(0, True).file(path)
    assert tensors["huge"].shape == SHAPE
    assert torch.equal(tensors["a.weight"] + 0, RandomWeights(0, True).tensor("a.weight", (8, 4), torch.bfloat16) + 0)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="has no header of safetensors"):
        RandomWeights(0, True).file(path)


def test_a_configuration_that_is_missing() -> None:
    with pytest.raises(UserError, match=r"from_pretrained\('no/such/model/transformer'\) has no config.json here"):
        RandomWeights(0, True).model(nn.Linear, "no/such/model", "transformer", torch.float32)


class Part(nn.Module):
    """Parameters of all kinds: of its own, tied, none, of integers; and buffers. Says how it was made."""

    def __init__(self, width: int, tie: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.first = nn.Linear(width, 2 * width, bias=False)
        self.second = nn.Linear(2 * width, width)
        self.tied = nn.Linear(width, 2 * width, bias=False)
        if tie:
            self.tied.weight = self.first.weight
        self.places = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
        self.register_buffer("table", torch.arange(3.0))
        self.register_buffer("numbers", torch.arange(3))
        self.made = [parameter.is_meta for parameter in self.parameters()], self.table.tolist()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != len(self.scale):
            raise ValueError("another width")
        return self.second(self.first(x * self.scale))


def models() -> dict[str, Any]:
    """A class of each library that has a :class:`Part`."""
    from diffusers.configuration_utils import ConfigMixin, register_to_config
    from diffusers.models.modeling_utils import ModelMixin
    from transformers.configuration_utils import PretrainedConfig
    from transformers.modeling_utils import PreTrainedModel

    class Tiny(ModelMixin, ConfigMixin):
        config_name = "config.json"

        @register_to_config
        def __init__(self, width: int = 2, tie: bool = False) -> None:
            super().__init__()
            self.part = Part(width, tie)

    class TinyConfig(PretrainedConfig):
        model_type = "tiny"

        def __init__(self, width: int = 2, tie: bool = False, **more: Any) -> None:
            super().__init__(**more)
            self.width = width
            self.tie = tie

    class Other(PreTrainedModel):
        config_class = TinyConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.part = Part(config.width, config.tie)

    return {"diffusers": Tiny, "transformers": Other}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RandomWeights]:
    """Install random weights until the test ends."""
    import safetensors
    import safetensors.torch
    from diffusers.models.modeling_utils import ModelMixin
    from transformers.modeling_utils import PreTrainedModel

    places = [(ModelMixin, "from_pretrained"), (PreTrainedModel, "from_pretrained"), (safetensors, "safe_open")]
    for owner, name in [*places, (safetensors.torch, "safe_open"), (safetensors.torch, "load_file")]:
        monkeypatch.setattr(owner, name, getattr(owner, name))

    def install(seed: int, values: bool) -> RandomWeights:
        made = RandomWeights(seed, values)
        weights.install(made)
        return made

    return install


def config(folder: Path, **fields: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("library", ["diffusers", "transformers"])
def test_a_model_of_its_configuration(library: str, installed: Any, tmp_path: Path) -> None:
    made = installed(3, True)
    cls = models()[library]
    register = nn.Module.register_parameter
    config(tmp_path / "model" / "part", width=4, tie=True, _class_name="Tiny", _diffusers_version="0")
    config(tmp_path / "model", width=3)
    whole = cls.from_pretrained(tmp_path / "model", subfolder="part", torch_dtype=torch.bfloat16)
    part = whole.part
    assert nn.Module.register_parameter is register and not whole.training
    assert part.made == ([True] * 5, [0.0, 1.0, 2.0])
    for name, shape in (("scale", (4,)), ("first.weight", (8, 4)), ("second.bias", (4,))):
        found = part.get_parameter(name)
        assert (
            torch.equal(found + 0, made.tensor(f"part.{name}", shape, torch.bfloat16) + 0) and not found.requires_grad
        )
    assert part.tied.weight is part.first.weight and part.first.bias is None
    assert (part.places.dtype, part.numbers.dtype) == (torch.int32, torch.int64)
    assert part.table.dtype == torch.bfloat16 and part.table.tolist() == [0.0, 1.0, 2.0]
    assert part(torch.ones(1, 4, dtype=torch.bfloat16)).any()
    for options in ({}, {"dtype": "auto"}, {"subfolder": None}):
        part = cls.from_pretrained(str(tmp_path / "model"), **options).part
        assert (
            part.scale.shape == (3,) and part.scale.dtype == torch.float32 and part.tied.weight is not part.first.weight
        )
    assert cls.from_pretrained(tmp_path / "model", dtype=torch.float16).part.scale.dtype == torch.float16


def test_a_model_without_values_gives_zeros_of_the_right_shape(installed: Any, tmp_path: Path) -> None:
    """Also of modules within modules, and after an error."""
    installed(0, False)
    config(tmp_path, width=4)
    part = models()["diffusers"].from_pretrained(tmp_path).part
    with pytest.raises(ValueError, match="another width"):
        part(torch.ones(1, 5))
    result = part(torch.ones(3, 4))
    assert type(result) is torch.Tensor and result.shape == (3, 4) and not result.any() and not result.requires_grad


class Choosing(nn.Module):
    """Has results whose shapes depend on how many values are chosen; ``how`` says by what."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor, how: str) -> torch.Tensor:
        if how == "nonzero":
            return (x * self.scale).flatten(0, 1)[torch.nonzero(mask.flatten()).flatten()]
        if how == "where":
            return (x * self.scale)[torch.where(mask)]
        if how == "mask":
            return (x * self.scale)[:, mask[0]]
        if how == "select":
            return torch.masked_select(x * self.scale, mask[..., None])
        return x[:, : int(mask.sum())]


def test_a_model_without_values_chooses_all_and_has_no_single_value() -> None:
    model = Choosing()
    RandomWeights(seed=0, values=False).fill(model, torch.bfloat16)
    mask = torch.tensor([[True, False, True, True, False]] * 2)
    shapes = {"nonzero": (10, 3), "where": (10, 3), "mask": (2, 5, 3), "select": (30,)}
    for how, shape in shapes.items():
        assert model(torch.ones(2, 5, 3), mask, how).shape == shape, how
    with pytest.raises(UserError, match=r"forward goes by a value .*_local_scalar_dense.*: run it with values"):
        model(torch.ones(2, 5, 3), mask, "value")


def test_where_configurations_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder comes before the hub's cache, which may not be there, or hold no such file."""
    import huggingface_hub

    asked = []

    def in_cache(name: str, file: str) -> Any:
        asked.append((name, file))
        if name == "no name":
            raise ValueError(name)
        return None if name == "another" else str(tmp_path / "cached.json")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", in_cache)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cached.json").write_text('{"of": "cache"}')
    config(tmp_path / "here" / "sub", of="folder")

    def first(name: str, subfolder: str) -> Any:
        found = (source(nn.Linear, name, subfolder) for source in weights.SOURCES)
        return next((one["of"] for one in found if one is not None), None)

    assert [first("here", "sub"), first("here", ""), first("model", "sub")] == ["folder", "cache", "cache"]
    assert first("no name", "") is None and first("another", "sub") is None
    assert asked == [(name, f"{sub}config.json") for name, sub in (
        ("here", ""), ("model", "sub/"), ("no name", ""), ("another", "sub/"))]  # fmt: skip
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert first("model", "") is None
    with pytest.raises(UserError, match=r"^Linear.from_pretrained\('model'\) has no config.json here: "):
        RandomWeights(0, True).model(nn.Linear, "model", "", torch.float32)


def test_files_of_safetensors(installed: Any, tmp_path: Path) -> None:
    import safetensors.torch

    made = installed(5, True)
    path = safetensors_file(tmp_path, {"a": ("BF16", [8, 4]), "b": ("I64", [3])}, {"format": "pt"})
    a = made.tensor("a", (8, 4), torch.bfloat16) + 0
    loaded = safetensors.torch.load_file(path, device="cpu")
    assert list(loaded) == ["a", "b"] and torch.equal(loaded["a"] + 0, a)
    assert loaded["b"].dtype == torch.int64 and loaded["b"].shape == (3,)
    for opening in (safetensors.safe_open, safetensors.torch.safe_open):
        with opening(path, framework="pt", device="cpu") as file:
            assert file.keys() == file.offset_keys() == ["a", "b"] and file.metadata() == {"format": "pt"}
            assert torch.equal(file.get_tensor("a") + 0, a)
            part = file.get_slice("a")
            assert part.get_shape() == [8, 4] and torch.equal(part[2:, 1] + 0, a[2:, 1])
    assert weights._DTYPES.items() <= safetensors.torch._TYPES.items()
