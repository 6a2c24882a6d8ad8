"""The FLUX.2 transformer against diffusers: packed projections, configurations a checkpoint may have, refusals."""

from __future__ import annotations

import pytest
import torch

import refsim
from parity.cases.checkpoints import MODELS
from parity.cases.oracles.flux2 import Flux2Oracle
from parity.cases.pipelines import _tokenizer
from parity.cases.suites import registry
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.blocks.single import AttentionAndMLPOut
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.layers.linear import PackedColumns
from refsim.models.flux2.config import Flux2Config
from refsim.models.flux2.spec import SPEC
from refsim.parallel.padding import padded_features, padded_heads
from refsim.pipelines.hosts.flux2 import encoded
from refsim.runtime.device import Device
from tests.refsim.helpers import relative_rmse

diffusers = pytest.importorskip("diffusers")
registry()  # the suites register the models
CONFIG = dict(MODELS["flux2_tiny"].config)
TEXT = 13


def made(folder, **changes):
    """(folder, inputs, diffusers' answer) of a random model with norm weights that count."""
    torch.manual_seed(3)
    config = CONFIG | changes
    model = diffusers.Flux2Transformer2DModel(**config).eval()
    for name, x in model.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight")):
            torch.nn.init.normal_(x, 1.0, 0.3)
    model.save_pretrained(folder)
    shape = type("Shape", (), {"latent": (10, 6), "text": TEXT, "batch": 2})
    inputs = Flux2Oracle().inputs(config, shape, "normal", 0)
    with torch.no_grad():
        return folder, inputs, model(**inputs, return_dict=False)[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return made(tmp_path_factory.mktemp("flux2"))


@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [("n150", "sp1", {}), ("t3k", "cfg2_sp2_tp2", {"prompt_layout": "split"}), ("t3k-1x8", "tp8", {})],
    ids=["serial", "cfg", "more_devices_than_heads"],
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, inputs, expected = tiny
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0, "mlp_ratio": 0.7},
        {"num_single_layers": 0, "guidance_embeds": False},
        {"attention_head_dim": 22, "axes_dims_rope": (22,), "num_layers": 1, "num_single_layers": 1},
    ],
    ids=["single_blocks_alone", "double_blocks_alone", "one_axis"],
)
def test_configurations_that_a_checkpoint_may_have(tmp_path, changes):
    folder, inputs, expected = made(tmp_path, **changes)
    if "axes_dims_rope" in changes:
        inputs = {name: x[:, :1].contiguous() if name.endswith("_ids") else x for name, x in inputs.items()}
        model = diffusers.Flux2Transformer2DModel.from_pretrained(folder).eval()
        with torch.no_grad():
            expected = model(**inputs, return_dict=False)[0]
    as_pipelines = {name: x[None] if name.endswith("_ids") else x for name, x in inputs.items()}
    result = refsim.run(folder, inputs=as_pipelines, mesh="n300", parallel="tp2")
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6


@pytest.mark.parametrize(("mesh", "parallel"), [("n150", "tp1"), ("bh-qb-1x4", "tp4"), ("t3k-1x8", "tp8")])
def test_a_device_has_its_lanes_of_every_part(tiny, mesh, parallel):
    """Three heads of 16 and 120 lanes of gate, up and MLP, each cut and padded by itself."""
    folder = tiny[0]
    config = Flux2Config.from_dict(CONFIG)
    d = config.features
    hidden = config.mlp_features
    name = "single_transformer_blocks.1.attn"
    weights = Weights(Checkpoint(folder), torch.float32)
    packed = weights.take(f"{name}.to_qkv_mlp_proj.weight", (3 * d + 2 * hidden, d)).split([d] * 3 + [hidden] * 2)
    out = weights.take(f"{name}.to_out.weight", (d, d + hidden)).split([d, hidden], 1)
    options = RunOptions.of(mesh=mesh, parallel=parallel)
    tp = options.parallel.tp
    heads = padded_heads(3, tp) * 16
    lanes = padded_features(hidden, tp)
    for member in range(tp):
        device = Device(options, member)
        sizes = [(d, heads)] * 3 + [(hidden, lanes)] * 2
        columns = PackedColumns(weights, device, f"{name}.to_qkv_mlp_proj", in_features=d, parts=sizes, bias=False)
        for whole, mine, (_, padded) in zip(packed, columns.weights, sizes, strict=True):
            assert torch.equal(mine[:, :d], part_of(whole, padded, member, tp))
        mine = AttentionAndMLPOut(weights, device, f"{name}.to_out", config.single_block()).weight[:d]
        wanted = [part_of(x.T, padded, member, tp).T for x, padded in zip(out, (heads, lanes), strict=True)]
        assert torch.equal(mine, torch.cat(wanted, 1))


def part_of(whole: torch.Tensor, padded: int, member: int, tp: int) -> torch.Tensor:
    rows = torch.nn.functional.pad(whole, (0, 0, 0, padded - len(whole)))
    return rows.chunk(tp)[member]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"axes_dims_rope": (4, 2, 6, 6)}, "add up to attention_head_dim"),
        ({"axes_dims_rope": (5, 3, 4, 4)}, "even numbers"),
        ({"num_layers": 0, "num_single_layers": 0}, "has no blocks"),
        ({"mlp_ratio": 0.001}, "leaves the MLP no features"),
        ({"timestep_guidance_channels": 63}, "odd timestep_guidance_channels"),
        ({"eps": 0}, "eps"),
        ({"guidance_embeds": None}, "guidance_embeds"),
    ],
    ids=str,
)
def test_configs_that_are_refused(changes, word):
    with pytest.raises(UserError, match=word):
        Flux2Config.from_dict({**CONFIG, **changes})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"img_ids": torch.zeros(16, 4)}, "image tokens"),
        ({"txt_ids": torch.zeros(TEXT, 3)}, "txt_ids"),
        ({"guidance": None}, "lacks 'guidance'"),
    ],
    ids=["ids_of_more_tokens", "three_axes", "no_guidance"],
)
def test_inputs_that_do_not_fit(tiny, changes, word):
    folder, inputs, _ = tiny
    arguments = {name: x for name, x in (inputs | changes).items() if x is not None}
    with pytest.raises(UserError, match=word):
        refsim.run(folder, inputs=arguments, mesh="n300", parallel="sp2")


def test_every_kind_of_block_is_read():
    """What predictions read instead of all blocks has both kinds, and the real model has as many as it says."""
    (published,) = SPEC.published
    assert sum(SPEC.block_counts(published.config).values()) == 56
    assert Flux2Config.from_dict(published.config) == Flux2Config()


def test_a_text_encoder_that_cannot_be_used_is_refused(tmp_path):
    """It is none of refsim's models, so nothing else looks at its folder."""
    transformers = pytest.importorskip("transformers")
    with pytest.raises(UserError, match="lacks its tokenizer folder"):
        encoded(tmp_path, "a cat", 4)
    _tokenizer(16, "{{ messages[-1]['content'][0]['text'] }}").save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(UserError, match="lacks its text encoder's folder"):
        encoded(tmp_path, "a cat", 4)
    config = dict(MODELS["mistral3_tiny"].config)
    config["text_config"] = config["text_config"] | {"num_hidden_layers": 2}
    model = transformers.Mistral3ForConditionalGeneration(transformers.Mistral3Config(**config))
    model.save_pretrained(tmp_path / "text_encoder")
    with pytest.raises(UserError, match="has 2 layers; 30 are needed"):
        encoded(tmp_path, "a cat", 4)
    (tmp_path / "text_encoder" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be used"):
        encoded(tmp_path, "a cat", 4)
