"""Weights that are not there: models and checkpoints from their configuration or header alone, random by a seed.

``from_pretrained`` of diffusers and transformers gives a model of the configuration that lies in the folder, or in the
hub's cache; ``load_file`` and ``safe_open`` of safetensors give what the file's header lists. No weight is downloaded
or read, and none takes memory until it is used: see :mod:`tt_impl.mock.storage.seeded`. Where no values are computed,
weights are zeros that take none at all, and such a model's ``forward`` gives zeros of the right shape, in no time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from refsim.base.errors import UserError
from tt_impl.mock.storage.constants import constant
from tt_impl.mock.storage.seeded import Seeded

OPTION = "--ttnn-mock-weights"
Source = Callable[[type, str, str], dict[str, Any] | None]
"""Gives the configuration of a class, by the name that ``from_pretrained`` got and the subfolder, or None."""
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class RandomWeights:
    """What makes models and tensors; ``values`` says whether their numbers are to be computed."""

    def __init__(self, seed: int, values: bool) -> None:
        self.seed = seed
        self.values = values

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that takes no memory."""
        return Seeded(name, shape, dtype, self.seed) if self.values else constant(0, shape, dtype)

    def model(self, cls: Any, name: str, subfolder: str, dtype: torch.dtype) -> nn.Module:
        """Make a model of ``cls`` as ``from_pretrained(name)`` does, from its configuration alone.

        Raises:
            UserError: there is no configuration.
        """
        configs = (source(cls, name, subfolder) for source in SOURCES)
        config = next((config for config in configs if config is not None), None)
        if config is None:
            place = f"{name}/{subfolder}" if subfolder else name
            raise UserError(
                f"{cls.__name__}.from_pretrained('{place}') has no config.json here: {OPTION} needs no weights, but "
                "that file; put it into a folder of that name, or download it alone."
            )
        known = getattr(cls, "config_class", None)
        fields = {key: value for key, value in config.items() if key not in ("_class_name", "_diffusers_version")}
        with _without_memory():
            model = cls(known(**fields)) if known is not None else cls.from_config(fields)
        self.fill(model, dtype)
        return model.eval()

    def fill(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Give every parameter of ``model`` values that take no memory."""
        shared: dict[int, nn.Parameter] = {}
        for prefix, module in model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                if id(parameter) not in shared:
                    kind = dtype if parameter.dtype.is_floating_point else parameter.dtype
                    full = f"{prefix}.{name}" if prefix else name
                    value = self.tensor(full, tuple(parameter.shape), kind)
                    shared[id(parameter)] = nn.Parameter(value, requires_grad=False)
                module._parameters[name] = shared[id(parameter)]
            if not self.values:
                module.forward = _shapes_only(module.forward)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.data = buffer.data.to(dtype)

    def file(self, path: str | Path) -> dict[str, torch.Tensor]:
        """Return the tensors that the header of a safetensors file lists.

        Raises:
            UserError: there is no such file, or no header in it.
        """
        return {
            name: self.tensor(name, tuple(about["shape"]), _DTYPES[about["dtype"]])
            for name, about in _header(Path(path)).items()
            if name != "__metadata__"
        }


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            return json.loads(file.read(size))
    except (OSError, ValueError, struct.error) as error:
        raise UserError(
            f"'{path}' has no header of safetensors: {error}; {OPTION} needs it, but no weights."
        ) from error


def _in_folder(cls: type, name: str, subfolder: str) -> dict[str, Any] | None:
    path = Path(name, subfolder, "config.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _in_cache(cls: type, name: str, subfolder: str) -> dict[str, Any] | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    with contextlib.suppress(ValueError):  # no name of a repository
        path = try_to_load_from_cache(name, f"{subfolder}/config.json" if subfolder else "config.json")
        if isinstance(path, str):
            return json.loads(Path(path).read_text(encoding="utf-8"))
    return None


SOURCES: list[Source] = [_in_folder, _in_cache]
"""Where configurations are looked for, in order; others may be added."""


@contextlib.contextmanager
def _without_memory() -> Iterator[None]:
    """Have parameters of modules take no memory, as soon as they belong to one; buffers stay as they are."""
    register = nn.Module.register_parameter

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    nn.Module.register_parameter = registered
    try:
        yield
    finally:
        nn.Module.register_parameter = register


class _AllChosen(TorchDispatchMode):
    """Have every element of a mask or condition count as one that is chosen, where a shape depends on how many are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.nonzero.default:
            return self._places(args[0])
        if func is torch.ops.aten.masked_select.default:
            return args[0].new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape).numel())
        if func is torch.ops.aten.index.Tensor:
            x, indices = args
            apart = [self._places(i).unbind(1) if i is not None and i.dtype == torch.bool else (i,) for i in indices]
            args = (x, [index for places in apart for index in places])
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _places(mask: torch.Tensor) -> torch.Tensor:
        return mask.new_zeros((mask.numel(), mask.dim()), dtype=torch.int64)


_running = False


def _shapes_only(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Run a module for the shapes of its results, which are zeros; ``UserError`` where it asks for a single value."""

    @functools.wraps(forward)
    def run(*args: Any, **options: Any) -> Any:
        global _running
        if _running:
            return forward(*args, **options)
        _running = True
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), _AllChosen(), torch.no_grad():
                result = forward(*args, **options)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            what = f"{forward.__qualname__} goes by a value that it computes ({error.func})"
            raise UserError(f"{what}, and no values are computed: run it with values.") from error
        finally:
            _running = False
        return pytree.tree_map_only(FakeTensor, lambda t: constant(0, t.shape, t.dtype), result)

    return run


class _File:
    """What ``safe_open`` gives, of a file's header."""

    def __init__(self, weights: RandomWeights, path: str | Path) -> None:
        self._tensors = weights.file(path)
        self._metadata = _header(Path(path)).get("__metadata__")

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def keys(self) -> list[str]:
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name])


class _Slice:
    """What ``get_slice`` gives."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self._tensor[place]


def install(weights: RandomWeights) -> None:
    """Replace the ways to weights for the life of the process, in the libraries that are installed."""
    if importlib.util.find_spec("safetensors") is not None:
        import safetensors
        import safetensors.torch as of_torch

        of_torch.load_file = lambda filename, *args, **options: weights.file(filename)
        opened = lambda filename, *args, **options: _File(weights, filename)  # noqa: E731 - two names for it
        safetensors.safe_open = opened
        of_torch.safe_open = opened

    def from_pretrained(cls: type, name: Any = "", *args: Any, **options: Any) -> nn.Module:
        dtype = options.get("torch_dtype", options.get("dtype"))
        kind = dtype if isinstance(dtype, torch.dtype) else torch.float32
        return weights.model(cls, str(name), options.get("subfolder") or "", kind)

    for library, name in (("diffusers", "ModelMixin"), ("transformers", "PreTrainedModel")):
        if importlib.util.find_spec(library) is not None:
            base = getattr(importlib.import_module(library), name)
            base.from_pretrained = classmethod(from_pretrained)
