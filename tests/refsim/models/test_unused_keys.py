"""Every model takes every key of its checkpoint: one that is left over is an error that names it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights, Weights
from refsim.models.registry import models
from refsim.models.spec import resolve
from refsim.runtime.device import Device

LEFT_ON_PURPOSE = ("encoder.", "quant_conv.")
"""Of an autoencoder's folder when it decodes."""


class Folder:
    """A checkpoint of tensors that have shapes only."""

    folder = Path("somewhere")

    def __init__(self, shapes):
        self.shapes, self.changes = shapes, {}

    @property
    def names(self):
        return set(self.shapes)

    def file(self, name):
        return SimpleNamespace(shape=lambda name: self.shapes[name], dtype=lambda name: "F32")


def small(config):
    """Return the configuration with just as many layers as show every kind of name."""
    layers = {"num_layers": 2, "num_single_layers": 1, "num_hidden_layers": 2, "num_experts": 8}
    found = {name: min(layers.get(name, value), value) if name in layers else value for name, value in config.items()}
    if "dual_attention_layers" in found:
        found["dual_attention_layers"] = found["dual_attention_layers"][:1]
    if "target_layer_ids" in found:
        found["target_layer_ids"] = found["target_layer_ids"][:1]
    return found


PUBLISHED = [(spec, published) for spec in models().all for published in spec.published]


@pytest.mark.parametrize(("spec", "published"), PUBLISHED, ids=[published.name for _, published in PUBLISHED])
def test_a_key_that_is_left_over(spec, published):
    device = Device(RunOptions.of(mesh="n150", parallel="sp1"))
    config = resolve(spec.config).from_dict(small(published.config))
    asked = ShapeWeights(torch.float32)
    resolve(spec.model)(asked, device, config)
    prefixes = ["", *sorted({f"{name.split('.')[0]}." for name in asked.shapes if "." in name})]
    for prefix in prefixes:
        if spec.kind == "vae_decoder" and prefix in LEFT_ON_PURPOSE:
            continue
        shapes = {**asked.shapes, f"{prefix}spare": (1,)}
        with pytest.raises(UserError, match=f"'{prefix}spare', which"):
            resolve(spec.model)(Weights(Folder(shapes), torch.float32, meta=True), device, config)
    resolve(spec.model)(Weights(Folder(asked.shapes), torch.float32, meta=True), device, config)
