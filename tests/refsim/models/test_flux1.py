"""The Flux.1 transformer against diffusers: both kinds of block, with and without guidance, every scheme."""

from __future__ import annotations

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.blocks.single import AttentionAndMLPOut
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.spec import SPEC
from refsim.models.flux1.transformer import bind_block
from refsim.runtime.device import Device
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.flux1 import CONFIG, make_inputs, make_model, save


def answer(model, inputs) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs, return_dict=False)[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, inputs, diffusers' answer); 77 image tokens and 29 of the prompt, which divide by nothing."""
    model, inputs = make_model(), make_inputs()
    return save(model, tmp_path_factory.mktemp("flux")), inputs, answer(model, inputs)


@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("n150", "sp1", {}),
        ("t3k", "sp4_tp2", {"attention": "ulysses", "prompt_layout": "split"}),
        ("t3k", "cfg2_sp2_tp2", {"prompt_layout": "split"}),
    ],
    ids=["serial", "ulysses_tp2", "cfg"],
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, inputs, expected = tiny
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    assert result.tensors["sample"].shape == expected.shape
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


def test_without_guidance_and_other_sizes(tmp_path):
    """Schnell, with one more channel out than in, and a prompt longer than the picture."""
    small = {"num_layers": 1, "num_single_layers": 1, "out_channels": 13}
    model = make_model(quiet=True, guidance_embeds=False, **small)
    inputs = make_inputs(batch=1, grid=(3, 5), text=71, guidance=False)
    result = refsim.run(save(model, tmp_path), inputs=inputs, mesh="t3k", parallel="sp4_tp2", prompt_layout="split")
    assert relative_rmse(result.tensors["sample"], answer(model, inputs)) <= 5e-6


@pytest.mark.parametrize(("mesh", "parallel"), [("n150", "tp1"), ("bh-qb-1x4", "tp4"), ("t3k-1x8", "tp8")])
def test_a_device_multiplies_its_own_heads_and_lanes(tiny, mesh, parallel):
    """The two ranges of a single block's proj_out, cut one by one: three heads of 16, 192 lanes of the MLP."""
    folder, config = tiny[0], FluxConfig.from_dict(CONFIG)
    name = "single_transformer_blocks.1.proj_out"
    whole = Weights(Checkpoint(folder), torch.float32).take(f"{name}.weight", (48, 240))
    options = RunOptions.of(mesh=mesh, parallel=parallel)
    tp = options.parallel.tp
    for member in range(tp):
        device = Device(options, member)
        out = AttentionAndMLPOut(Weights(Checkpoint(folder), torch.float32), device, name, config.single_block())
        heads, lanes = -(-3 // tp) * 16, -(-192 // (32 * tp)) * 32 if tp > 1 else 192
        assert out.weight.shape[1] == heads + lanes
        for part, mine, size in (
            (whole[:, :48], out.weight[:48, :heads], heads),
            (whole[:, 48:], out.weight[:48, heads:], lanes),
        ):
            wanted = torch.zeros(48, size)
            real = part[:, member * size : (member + 1) * size]
            wanted[:, : real.shape[1]] = real
            assert torch.equal(mine, wanted)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"axes_dims_rope": (4, 6, 8)}, "add up to attention_head_dim"),
        ({"axes_dims_rope": (5, 5, 6)}, "even numbers"),
        ({"axes_dims_rope": None}, "axes_dims_rope"),
        ({"num_single_layers": -1}, "num_single_layers"),
        ({"num_attention_heads": 0}, "whole number above 0"),
        ({"guidance_embeds": "yes"}, "guidance_embeds"),
    ],
    ids=str,
)
def test_configs_that_are_refused(changes, word):
    with pytest.raises(UserError, match=word):
        FluxConfig.from_dict({**CONFIG, **changes})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"img_ids": torch.zeros(78, 3)}, "image tokens"),
        ({"txt_ids": torch.zeros(29, 2)}, "txt_ids"),
        ({"txt_ids": torch.zeros(2, 29, 2)}, "txt_ids"),
        ({"img_ids": torch.full((77, 3), float("nan"))}, "non-finite"),
        ({"timestep": torch.zeros(3)}, "batch"),
        ({"guidance": None}, "lacks 'guidance'"),
    ],
    ids=["ids_of_more_tokens", "two_axes", "batched_ids", "nan", "batch", "no_guidance"],
)
def test_inputs_that_do_not_fit(tiny, changes, word):
    folder, inputs, _ = tiny
    given = {name: x for name, x in (inputs | changes).items() if x is not None}
    with pytest.raises(UserError, match=word):
        refsim.run(folder, inputs=given, mesh="n300", parallel="sp2")


@pytest.mark.parametrize(("layers", "single"), [(2, 3), (2, 1), (3, 0), (0, 2)])
def test_blocks_are_counted_by_kind(layers, single):
    """What predictions read instead of all blocks has the same kinds, and the last one is the last one's kind."""
    config = {**CONFIG, "num_layers": layers, "num_single_layers": single}
    counts = SPEC.block_counts(config)
    assert sum(counts.values()) == layers + single
    assert counts["last"] == 1 and all(counts.values())
    assert SPEC.with_block_counts(config, counts) == config
    short = SPEC.with_block_counts(config, {kind: min(count, 2) for kind, count in counts.items()})
    assert SPEC.block_counts(short).keys() == counts.keys()


class _Recorded(Weights):
    """Weights that keep the names of what was taken."""

    def take(self, name, shape, *ranges):
        self.taken = {*getattr(self, "taken", ()), name}
        return super().take(name, shape, *ranges)


@pytest.mark.parametrize(
    ("index", "prefix"),
    [(0, "transformer_blocks.0."), (1, "transformer_blocks.1."), (3, "single_transformer_blocks.1.")],
)
def test_a_block_by_itself_is_the_one_of_that_index(tiny, index, prefix):
    folder = Checkpoint(tiny[0])
    weights, ids = _Recorded(folder, torch.float32), {"img_ids": torch.zeros(4, 3), "txt_ids": torch.zeros(2, 3)}
    bind_block(weights, Device(RunOptions.of(mesh="n150")), FluxConfig.from_dict(CONFIG), index, ids)
    assert weights.taken == {name for name in folder.names if name.startswith(prefix)}
