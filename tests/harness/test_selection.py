"""Samples by seed, and the mesh that a test asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from refsim.base.mesh import MESHES
from tt_impl.harness.pytest.selection import COLLECTED_ON, FIXTURES, SMALLEST, mesh_of, sample


def item(name: str, *fixtures: str, skipped: bool = False, **params: Any) -> Any:
    return SimpleNamespace(
        nodeid=name,
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=params),
        get_closest_marker=lambda marker: "yes" if skipped and marker == "skip" else None,
    )


ITEMS = [item(f"test_{function}[{case}]") for function in "abc" for case in range(20)]


def names(items: list[Any]) -> list[str]:
    return [found.nodeid for found in items]


def test_cases_of_each_function_in_their_order() -> None:
    kept = names(sample(ITEMS, per_function=3, total=0, seed="0"))
    assert [sum(name.startswith(f"test_{function}") for name in kept) for function in "abc"] == [3, 3, 3]
    assert kept == [name for name in names(ITEMS) if name in kept]


def test_a_seed_is_a_sample() -> None:
    def drawn(seed: str) -> list[str]:
        return names(sample(ITEMS, per_function=5, total=7, seed=seed))

    assert drawn("0") == drawn("0") and len(drawn("0")) == 7
    assert len({tuple(drawn(str(seed))) for seed in range(5)}) == 5


def test_another_test_in_the_suite_changes_no_draw_of_a_function() -> None:
    more = [*ITEMS, *(item(f"test_d[{case}]") for case in range(9))]
    kept = set(names(sample(more, per_function=4, total=0, seed="1")))
    assert set(names(sample(ITEMS, per_function=4, total=0, seed="1"))) == {n for n in kept if "test_d" not in n}


def test_everything_without_a_number() -> None:
    assert sample(ITEMS, per_function=0, total=0, seed="0") == ITEMS


def test_what_is_skipped_is_drawn_last() -> None:
    items = [item(f"test_a[{case}]", skipped=case != 7) for case in range(10)]
    assert names(sample(items, per_function=1, total=0, seed="0")) == ["test_a[7]"]


@pytest.mark.parametrize(
    ("found", "mesh"),
    [
        (item("t", "device"), "n150"),
        (item("t", "mesh_device", mesh_device=1), "n150"),
        (item("t", "mesh_device", mesh_device=(1, 1)), "n150"),
        (item("t", "mesh_device", mesh_device=2), "n300"),
        (item("t", "mesh_device", mesh_device=(2, 1)), "n300"),
        (item("t", "mesh_device", mesh_device=(2, 2)), "t3k"),
        (item("t", "mesh_device", mesh_device=(1, 8)), "t3k"),
        (item("t", "mesh_device", "device", mesh_device=(2, 4)), "t3k"),
        (item("t", "mesh_device", mesh_device=(8, 4)), "galaxy"),
        (item("t", "mesh_device", mesh_device=64), "galaxy"),
        (item("t", "mesh_device"), COLLECTED_ON),
        (item("t", "bh_2d_mesh_device"), "bh-qb"),
        (item("t"), COLLECTED_ON),
    ],
)
def test_the_mesh_a_test_asks_for(found: Any, mesh: str) -> None:
    assert mesh_of(found) == mesh


def test_meshes_that_are_named_exist() -> None:
    assert {name for _, name in SMALLEST} | set(FIXTURES.values()) | {COLLECTED_ON} <= set(MESHES)
    assert [devices for devices, _ in SMALLEST] == [MESHES[name].num_devices for _, name in SMALLEST]
