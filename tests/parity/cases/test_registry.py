"""The registry holds what the suites promise, and every case fits its mesh."""

from collections import Counter

import pytest

from parity.cases import FAMILIES, Layout, pipelines
from parity.cases.suites import suite_cases
from parity.kinds import thresholds_for
from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh

SMOKE, FULL = suite_cases("smoke"), suite_cases("full")


def fits(layout: Layout):
    return parse_parallel(
        layout.parallel,
        get_mesh(layout.mesh),
        attention=layout.attention,
        ring=layout.ring,
        ulysses=layout.ulysses,
    )


def test_smoke_is_large_enough_and_part_of_full():
    assert len(SMOKE) >= 40
    assert {c.id for c in SMOKE} < {c.id for c in FULL}


def test_ids_are_unique_and_usable_in_an_expression():
    assert not [i for i, n in Counter(c.id for c in FULL).items() if n > 1]
    assert all(set(c.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for c in FULL)


def test_ids_spell_the_configuration():
    assert {"sd35_medium-t3k-cfg2_sp2_tp2-ring-fp32", "attention-t3k_1x8-sp8-ring-fp32-outlier_text"} <= {
        c.id for c in SMOKE
    }


@pytest.mark.parametrize("kind", ["attention", "transformer"])
def test_every_mesh_scheme_and_dtype_is_in_smoke(kind):
    cases = [c for c in SMOKE if c.kind == kind]
    assert {c.mesh for c in cases} >= {"n300", "t3k-1x8", "t3k", "tg"}
    assert {c.layout.attention for c in cases} == {"ring", "ulysses", "usp"}
    assert {c.dtype for c in cases} == {"fp32", "bf16"}
    assert {c.layout.ring_order for c in cases} == {"gather", "step", "block"}
    assert {c.layout.prompt_layout for c in cases} == {"replicated", "split"}
    configs = [fits(c.layout) for c in cases]
    assert any(c.tp > 1 and c.sp > 1 for c in configs) and any(c.tp > 1 and c.sp == 1 for c in configs)
    assert {c.ring_parallel.mesh_axis for c in configs if isinstance(c.sequence_parallel.mesh_axis, tuple)} == {0, 1}


def test_every_family_goes_through_every_scheme_in_fp32():
    found = {(c.family, c.layout.attention) for c in SMOKE if c.kind == "attention" and c.dtype == "fp32"}
    assert found == {(f, s) for f in FAMILIES for s in ("ring", "ulysses", "usp")}


def test_cfg_parallel_stands_beside_cfg_fusion():
    pairs = [c for c in SMOKE if c.other_layout and c.kind == "transformer"]
    assert any(fits(c.layout).cfg == 2 and fits(c.other_layout).cfg == 1 and c.guidance for c in pairs)


def test_real_widths_are_in_smoke_and_the_full_size_in_full():
    for model in ("sd35_medium", "sd35_large"):
        guided = {("t3k", "cfg2_sp2_tp2", "ring")}
        assert real_widths(SMOKE, model) == (guided if model == "sd35_medium" else set())  # large runs in bf16, below
        assert real_widths(FULL, model) >= guided
    others = {("t3k-1x8", "sp8", "ring"), ("t3k", "sp8", "usp_r2u4"), ("tg", "cfg2_sp4_tp4", "ring")}
    assert real_widths(FULL, "sd35_medium") | real_widths(FULL, "sd35_large") >= others
    for cases, latent in ((SMOKE, (64, 64)), (FULL, (128, 128))):
        sized = [c for c in cases if c.model == "sd35_large" and c.shape.latent == latent and c.shape.text == 333]
        assert ("t3k", "sp2_tp4", "bf16") in {(c.mesh, c.layout.parallel, c.dtype) for c in sized}


def real_widths(cases, model):
    """Where fp32 forwards of a model run, 240 image tokens each."""
    found = [c for c in cases if c.model == model and c.dtype == "fp32" and c.shape.latent == (24, 40)]
    return {(c.mesh, c.layout.parallel, c.layout.scheme) for c in found}


@pytest.mark.parametrize("case", FULL, ids=lambda c: c.id)
def test_case_fits_its_mesh_and_has_thresholds(case):
    for layout in (case.layout, case.other_layout):
        if layout is not None:
            config = fits(layout)
            assert config.num_devices == get_mesh(layout.mesh).num_devices
            assert config.attention == layout.attention or config.sp == 1
    assert all(t.reason for t in thresholds_for(case.kind, case.dtype))


def test_unknown_suite():
    with pytest.raises(UserError, match="smoke, full"):
        suite_cases("nightly")


def test_a_pipeline_is_registered_once_by_a_name(monkeypatch):
    monkeypatch.setattr(pipelines, "PIPELINES", dict(pipelines.PIPELINES))
    spec = pipelines.PIPELINES["sd3_pipeline_tiny"]
    pipelines.register_pipeline("another", spec)
    pipelines.register_pipeline("another", spec)  # the same again is no other
    assert pipelines.PIPELINES["another"] is spec
    with pytest.raises(UserError, match="two pipelines of parity are called 'another'"):
        pipelines.register_pipeline("another", pipelines.PIPELINES["wan_pipeline_tiny"])
