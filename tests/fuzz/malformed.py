"""Values that no key of a JSON file can mean, and tiny folders of every model to put them into."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from parity.cases.checkpoints import MODELS
from parity.cases.suites import registry
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.models.registry import builtin
from refsim.models.spec import ModelSpec
from refsim.runtime.device import Device

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *(0.5, -1.5, 1e300, 1e-300, float("nan"), float("inf"), float("-inf")),
    *("", "16", "null", "\ud800", "../../etc/passwd", "x" * 5000),
    *([], [0], [-1], [None], ["a"], [[1]], [0.5], list(range(2000))),
    *({}, {"a": 1}, {"": None}),
)
"""More than thirty."""
TINY = {
    "sd35": "sd35_tiny",
    "wan22": "wan22_tiny",
    "cogvideox": "cogvideox_2b_tiny",
    "mochi": "mochi_tiny",
    "vae": "sd35_vae_tiny",
    "vae_wan": "wan_vae_tiny",
    "vae_cogvideox": "cogvideox_vae_tiny",
    "vae_mochi": "mochi_vae_tiny",
    "clip": "clip_l_tiny",
    "t5": "t5_tiny",
    "qwen3_moe": "qwen3_moe_tiny",
    "dflash": "dflash_tiny",
    "qwenimage": "qwenimage_tiny",
}
_FLUX = {"num_attention_heads": 2, "attention_head_dim": 16, "axes_dims_rope": [4, 4, 8], "num_layers": 1}
_FLUX |= {"num_single_layers": 1, "joint_attention_dim": 24, "pooled_projection_dim": 12, "in_channels": 16}
_FLUX2 = {name: x for name, x in _FLUX.items() if name != "pooled_projection_dim"} | {"axes_dims_rope": [4] * 4}
_FLUX2_VAE = {"block_out_channels": [8, 8], "norm_num_groups": 4, "latent_channels": 4, "layers_per_block": 1}
_MORE: dict[str, dict[str, Any]] = {
    "vae_wan": {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16, "temperal_downsample": [False, True, True]},
    "dflash": {"dflash_config": {"mask_token_id": 39, "target_layer_ids": [0, 1]}},
}
LARGEST = 50
"""Of a dim that only has a name."""


@dataclass(frozen=True)
class Tiny:
    """A model's folder with zeros for weights, and its inputs."""

    spec: ModelSpec
    folder: Path
    config: dict[str, Any]
    inputs: Path | None

    @property
    def fields(self) -> dict[str, Any]:
        """What the model reads of its configuration, with the good values."""
        config = self.spec.config_class.from_dict(self.config)
        return {f.name: getattr(config, f.name) for f in fields(config) if f.name in self.keys}

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.config)

    def write(self, **changes: Any) -> None:
        """Write config.json with ``changes``."""
        (self.folder / "config.json").write_text(json.dumps(self.config | changes))


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """Every key of the published config.json and every key that the model reads, with tiny sizes."""
    published = dict(spec.published[0].config) if spec.published else {"architectures": list(spec.class_names[:1])}
    registry()  # suites register models, too
    own = {"flux1": _FLUX, "flux2": _FLUX2, "vae_flux2": _FLUX2_VAE}
    tiny = own[spec.name] if spec.name in own else MODELS[TINY[spec.name]].config
    tiny = tiny | _MORE.get(spec.name, {})
    config = published | json.loads(json.dumps(tiny))
    read = spec.config_class.from_dict(config)
    written = {f.name: getattr(read, f.name) for f in fields(read) if f.name != "projected"}
    return json.loads(json.dumps(written | config))


def make(spec: ModelSpec, folder: Path) -> Tiny:
    """Write the folder of a model: zeros for every tensor that it asks for."""
    folder.mkdir()
    config = config_of(spec)
    read = spec.config_class.from_dict(config)
    weights = ShapeWeights(torch.float32)
    model = spec.model_class(weights, Device(RunOptions.of(mesh="n150")), read)
    save_file({name: torch.zeros(shape) for name, shape in weights.shapes.items()}, folder / "model.safetensors")
    inputs = None
    if spec.kind != "drafter":
        inputs = folder.with_suffix(".inputs")
        save_file(_inputs(spec, read, model), inputs)
    made = Tiny(spec, folder, config, inputs)
    made.write()
    return made


def _inputs(spec: ModelSpec, config: Any, model: Any) -> dict[str, torch.Tensor]:
    sizes = {"batch": 2, "frames": 2, "height": 8, "width": 8, "prompt tokens": 13, "tokens": 13, "image tokens": 16}
    found = {}
    for name, dims in spec.model_class.input_shapes(config).items():
        named = [dim for dim in dims if not str(dim).startswith("[")]  # those in brackets may be left out
        shape = [sizes.get(dim, LARGEST) if isinstance(dim, str) else dim for dim in named]
        whole = name in ("input_ids", "attention_mask", "encoder_attention_mask")
        found[name] = torch.zeros(shape, dtype=torch.int64 if whole else torch.float)
        if name == "img_shapes":
            found[name] = torch.tensor([[1, 4, 4]])
        elif name.endswith("states_mask"):
            found[name] = torch.ones(shape, dtype=torch.bool)
    if hasattr(model, "check_inputs"):
        model.check_inputs({name: tuple(x.shape) for name, x in found.items()})
    return found


SPECS = [spec for spec in builtin() if not spec.timing_only]
