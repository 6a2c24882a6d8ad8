"""Parallel configurations: what is parsed, which axis is chosen, and what every refusal says."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refsim.base.config import ATTENTIONS, DiTParallelConfig, ParallelFactor, parse_parallel, valid_configs
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from tests.refsim.helpers import ALL_MESHES, assert_one_sentence


def parse(text, mesh, **options):
    return parse_parallel(text, get_mesh(mesh), **options)


def refusal(text, mesh, **options) -> str:
    with pytest.raises(UserError) as caught:
        parse(text, mesh, **options)
    assert caught.value.exit_code == 2
    return caught.value.with_flags


@pytest.mark.parametrize(
    ("text", "mesh", "cfg_sp_tp"),
    [
        ("cfg2_sp2_tp2", "t3k", (2, 2, 2)),
        ("tp2_cfg2_sp2", "t3k", (2, 2, 2)),
        ("sp8", "t3k-1x8", (1, 8, 1)),
        ("tp8", "t3k-1x8", (1, 1, 8)),
        ("cfg2_tp4", "t3k", (2, 1, 4)),
        ("cfg2", "n300", (2, 1, 1)),
        ("sp1", "n150", (1, 1, 1)),
        ("cfg1_sp1_tp1", "n150", (1, 1, 1)),
        ("cfg2_sp4_tp4", "galaxy", (2, 4, 4)),
    ],
)
def test_factors_in_any_order_and_omitted_ones_are_one(text, mesh, cfg_sp_tp):
    config = parse(text, mesh)
    assert (config.cfg, config.sp, config.tp) == cfg_sp_tp
    assert config.num_devices == get_mesh(mesh).num_devices
    assert parse(str(config), mesh) == config


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("sp8", {}, ("ring", 8, 1)),
        ("sp8", {"attention": "ulysses"}, ("ulysses", 1, 8)),
        ("sp8", {"attention": "usp", "ring": 2, "ulysses": 4}, ("usp", 2, 4)),
        ("sp8", {"attention": "usp", "ring": 2}, ("usp", 2, 4)),
        ("sp8", {"attention": "usp", "ulysses": 2}, ("usp", 4, 2)),
        ("ring2_ulysses4", {"attention": "usp"}, ("usp", 2, 4)),
        ("sp8_ring2", {"attention": "usp", "ulysses": 4}, ("usp", 2, 4)),
        ("ring8", {}, ("ring", 8, 1)),
        ("ulysses8", {"attention": "ulysses"}, ("ulysses", 1, 8)),
        ("sp8", {"attention": "usp", "ring": 8}, ("ring", 8, 1)),
        ("sp8", {"attention": "usp", "ring": 1}, ("ulysses", 1, 8)),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_ring_times_ulysses_is_the_attention_group(text, options, wanted):
    config = parse(text, "t3k-1x8", **options)
    assert (config.attention, config.ring, config.ulysses) == wanted
    assert config.sp == 8


@pytest.mark.parametrize(
    ("text", "mesh", "axes"),
    [
        ("sp2_tp4", "t3k", {"sp": 0, "tp": 1}),
        ("sp4_tp2", "t3k", {"sp": 1, "tp": 0}),
        ("sp2_tp2", "bh-qb", {"sp": 0, "tp": 1}),
        ("sp2@1_tp2", "bh-qb", {"sp": 1, "tp": 0}),
        ("sp2_tp2@0", "bh-qb", {"sp": 1, "tp": 0}),
        ("sp2@0_tp4@1", "t3k", {"sp": 0, "tp": 1}),
        ("cfg2_sp2_tp2", "t3k", {"cfg": 1, "sp": 0, "tp": 1}),
        ("cfg2_tp4", "t3k", {"cfg": 0, "tp": 1}),
        ("cfg2_sp4", "t3k", {"cfg": 0, "sp": 1}),
        ("cfg2_sp4_tp4", "galaxy", {"cfg": 1, "sp": 0, "tp": 1}),
        ("cfg2_sp2_tp8", "galaxy", {"cfg": 0, "sp": 0, "tp": 1}),
        ("cfg2_sp8_tp2", "tg", {"cfg": 1, "sp": 0, "tp": 1}),
        ("cfg2@0_sp4_tp4", "tg", {"cfg": 0, "sp": 0, "tp": 1}),
    ],
)
def test_axis_rule(text, mesh, axes):
    """sp on axis 0 if that fits, cfg on axis 1 if that fits, and what stands behind an @ as it stands there."""
    config = parse(text, mesh)
    placed = {"cfg": config.cfg_parallel, "sp": config.sequence_parallel, "tp": config.tensor_parallel}
    assert {name: placed[name].mesh_axis for name in axes} == axes


@pytest.mark.parametrize(
    ("text", "mesh", "ring", "ulysses", "axes"),
    [
        ("sp8", "t3k", 2, 4, ((0, 1), 0, 1)),
        ("sp8", "t3k", 4, 2, ((0, 1), 1, 0)),
        ("sp4", "bh-qb", 2, 2, ((0, 1), 0, 1)),
        ("ring2@1_ulysses2@0", "bh-qb", None, None, ((0, 1), 1, 0)),
        ("sp4_tp2", "t3k", 2, 2, (1, 1, 1)),
        ("cfg2_sp4", "bh-loudbox", 2, 2, (1, 1, 1)),
        ("sp8", "t3k-1x8", 2, 4, (1, 1, 1)),
        ("cfg2_sp16", "galaxy", 4, 4, ((0, 1), 0, 1)),
        ("sp32", "galaxy", 4, 8, ((0, 1), 0, 1)),
    ],
)
def test_usp_lies_on_both_axes_or_on_one(text, mesh, ring, ulysses, axes):
    config = parse(text, mesh, attention="usp", ring=ring, ulysses=ulysses)
    placed = (config.sequence_parallel, config.ring_parallel, config.ulysses_parallel)
    assert tuple(factor.mesh_axis for factor in placed) == axes


@pytest.mark.parametrize(
    ("text", "mesh", "options", "what", "works"),
    [
        ("foo2", "t3k", {}, "'foo2'", "cfg2_sp2_tp2"),
        ("", "t3k", {}, "no parallel factor", "cfg, sp, tp, ring, ulysses"),
        ("sp0", "t3k", {}, "'sp0'", "cfg2_sp2_tp2"),
        ("sp2@2_tp4", "t3k", {}, "'sp2@2'", "@axis (0 or 1)"),
        ("sp2_sp4", "t3k", {}, "sp twice", "each factor once"),
        ("sp3", "t3k-1x8", {}, "3 devices", "sp8"),
        ("sp2_tp2", "t3k", {}, "4 devices", "sp2_tp4"),
        ("sp1", "t3k", {}, "1 device ", "sp2_tp4"),
        ("cfg4_tp2", "t3k", {}, "cfg is 1 or 2", "not 4"),
        ("cfg2_sp2_tp2", "t3k-1x8", {}, "does not fit", "cfg2_sp4"),
        ("sp4@0_tp2@1", "t3k", {}, "sp on axis 0", "sp4_tp2"),
        ("sp2@0_tp4@0", "t3k", {}, "tp on axis 0", "sp2_tp4"),
        ("sp8", "t3k", {}, "one mesh axis of 8", "--attention usp --ring 2 --ulysses 4"),
        ("sp8", "t3k-1x8", {"attention": "flash"}, "'flash'", "ring, ulysses, usp"),
        ("sp8", "t3k-1x8", {"attention": "usp"}, "needs --ring and --ulysses", "--ring 2 --ulysses 4"),
        ("sp8", "t3k-1x8", {"attention": "usp", "ring": 3, "ulysses": 2}, "= 6", "--ring 2 --ulysses 4"),
        ("sp8", "t3k-1x8", {"attention": "usp", "ring": 3}, "must equal the attention group sp8", "--ring 2"),
        ("sp8", "t3k-1x8", {"ring": 2, "ulysses": 4}, "takes no ulysses factor", "--attention usp"),
        ("sp8", "t3k-1x8", {"attention": "ulysses", "ring": 8}, "takes no ring factor", "--attention usp"),
        ("ring4", "t3k-1x8", {"ring": 8}, "--ring 8 contradicts ring4", "--ring 8"),
        ("sp8", "t3k-1x8", {"ring": 0}, "--ring is 1 or more", "not 0"),
        ("sp8", "t3k-1x8", {"ulysses": -4}, "--ulysses is 1 or more", "not -4"),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_refusal_says_what_and_what_would_work(text, mesh, options, what, works):
    message = refusal(text, mesh, **options)
    assert_one_sentence(message)
    assert what in message
    assert works in message


@pytest.mark.parametrize(
    ("factors", "what"),
    [
        ({"ring": (2, 0), "ulysses": (2, 0), "sp": (8, 0)}, "ring 2 x ulysses 2 = 4 must equal"),
        ({"tp": (2, 0), "sp": (2, 0), "ring": (2, 0)}, "cannot share mesh axis 0"),
        ({"cfg": (3, 1)}, "cfg is 1 or 2"),
        ({"tp": (0, 1)}, "1 or more, not 0"),
    ],
    ids=["ring_x_ulysses", "same_axis", "cfg3", "tp0"],
)
def test_a_config_built_by_hand_validates_itself(factors, what):
    with pytest.raises(UserError, match=re.escape(what)) as caught:
        made = {name: ParallelFactor(*factors.get(name, (1, 1))) for name in ("cfg", "tp", "sp", "ring", "ulysses")}
        DiTParallelConfig(*made.values())
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("text", "mesh", "options"),
    [
        ("ring2@1_tp4", "t3k", {}),
        ("ulysses4@0_tp2", "t3k", {"attention": "ulysses"}),
        ("sp4_ring2@0_tp2", "t3k", {"attention": "usp"}),
        ("sp8@0_ring2_ulysses4", "t3k", {"attention": "usp"}),
        ("sp8@1_ring2_ulysses4", "t3k", {"attention": "usp"}),
    ],
)
def test_an_axis_that_cannot_be_honoured_is_refused(text, mesh, options):
    assert_one_sentence(refusal(text, mesh, **options))


def test_advice_for_usp_fits_the_mesh():
    """sp32 of a 4x8 mesh is 4 x 8 or 8 x 4; 2 x 16 would be refused in turn."""
    assert_advice_works(refusal("sp32", "galaxy", attention="usp"), "sp32", get_mesh("galaxy"))


@pytest.mark.parametrize("mesh", ALL_MESHES, ids=lambda mesh: mesh.name)
def test_every_config_that_is_suggested_fits(mesh):
    for text in valid_configs(mesh):
        for attention in ("ring", "ulysses"):
            assert parse_parallel(text, mesh, attention=attention).num_devices == mesh.num_devices


names = st.sampled_from(["cfg", "sp", "tp", "ring", "ulysses"])
sizes = st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(0, 40))
tokens = st.builds(lambda n, f, axis: f"{n}{f}{axis}", names, sizes, st.sampled_from(["", "", "", "@0", "@1", "@2"]))
written = st.lists(tokens, min_size=1, max_size=4).map("_".join)
anything = st.one_of(written, st.text(max_size=20), st.tuples(written, st.text(max_size=3)).map("_".join))
meshes = st.sampled_from(ALL_MESHES)
attentions = st.sampled_from(ATTENTIONS)
optional_size = st.one_of(st.none(), st.integers(-1, 33))


@settings(max_examples=400, deadline=None)
@given(anything, meshes, st.one_of(attentions, st.text(max_size=8)), optional_size, optional_size)
def test_any_text_gives_a_config_for_the_whole_mesh_or_a_user_error(text, mesh, attention, ring, ulysses):
    try:
        config = parse_parallel(text, mesh, attention=attention, ring=ring, ulysses=ulysses)
    except UserError as error:
        assert str(error).endswith(".")
        return
    assert config.cfg * config.sp * config.tp == mesh.num_devices
    assert config.ring * config.ulysses == config.sp
    assert attention == "usp" or config.attention == attention or config.sp == 1


@settings(max_examples=400, deadline=None)
@given(written, meshes, attentions)
@example("ring2@1_tp4", get_mesh("t3k"), "ring")
@example("sp8@0_ring2_ulysses4", get_mesh("t3k"), "usp")
def test_what_is_written_is_what_is_configured(text, mesh, attention):
    """Every factor and every axis of the text stands in the config, unless the text is refused in one sentence."""
    try:
        config = parse_parallel(text, mesh, attention=attention)
    except UserError as error:
        assert_one_sentence(str(error))
        return
    placed = {
        "cfg": config.cfg_parallel,
        "sp": config.sequence_parallel,
        "tp": config.tensor_parallel,
        "ring": config.ring_parallel,
        "ulysses": config.ulysses_parallel,
    }
    for name, factor, axis in re.findall(r"([a-z]+)(\d+)(?:@(\d))?", text):
        assert placed[name].factor == int(factor)
        if axis and int(factor) > 1:
            assert placed[name].mesh_axis == int(axis)


@settings(max_examples=400, deadline=None)
@given(written.filter(lambda text: "@" not in text), meshes, attentions, optional_size, optional_size)
@example("sp32", get_mesh("galaxy"), "usp", None, None)
@example("ring32", get_mesh("tg"), "ring", None, None)
def test_what_a_refusal_suggests_works(text, mesh, attention, ring, ulysses):
    try:
        parse_parallel(text, mesh, attention=attention, ring=ring, ulysses=ulysses)
    except UserError as error:
        assert_advice_works(error.with_flags, text, mesh)


def assert_advice_works(message: str, text: str, mesh) -> None:
    """Follow the advice of a refusal: options beside the factors of the text, or factors instead of them."""
    kept = "_".join(token for token in text.split("_") if re.match(r"cfg|sp|tp", token))
    advice = message.partition("; ")[2]
    for ring, ulysses in re.findall(r"--ring (\d+) --ulysses (\d+)", advice):
        works = {"attention": "usp", "ring": int(ring), "ulysses": int(ulysses)}
        said = re.search(r"--parallel (\S+) --attention", advice)
        assert parse_parallel(said[1] if said else kept or "sp1", mesh, **works).num_devices == mesh.num_devices
    if "these" in advice:
        for suggested in re.findall(r"(?:(?:cfg|sp|tp)\d+_?)+", advice):
            assert parse_parallel(suggested, mesh).num_devices == mesh.num_devices
