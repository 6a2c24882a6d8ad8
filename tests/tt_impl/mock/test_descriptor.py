"""Cluster descriptors as text: chips, boards and cables."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from refsim.base.errors import UserError
from refsim.base.mesh import MESHES, MeshSpec
from tt_impl.mock.machine.descriptor import descriptor


def cables(text: str) -> list[tuple[int, int, int, int]]:
    line = next(line for line in text.splitlines() if line.startswith("ethernet_connections:"))
    ends = re.findall(r"\{chip: (\d+), chan: (\d+)\}, \{chip: (\d+), chan: (\d+)\}", line)
    return [tuple(map(int, end)) for end in ends]


@pytest.mark.parametrize("name", MESHES)
def test_cables(name: str) -> None:
    """No channel is used twice, and every chip has as many neighbours as its place in the mesh asks for."""
    spec = MESHES[name]
    found = cables(descriptor(spec))
    channels = [end for a, x, b, y in found for end in ((a, x), (b, y))]
    assert len(channels) == len(set(channels))
    neighbours = Counter(chip for pair in {frozenset((a, b)) for a, _, b, _ in found} for chip in pair)
    if spec.num_devices == 32:
        assert set(neighbours.values()) == ({4} if all(spec.torus) else {2, 3, 4})
    elif name == "bh-loudbox":
        assert set(neighbours.values()) == {3}
    elif spec.num_devices == 8:
        assert Counter(neighbours.values()) == {2: 4, 3: 4}
    elif spec.num_devices == 4:
        assert set(neighbours.values()) == {2}
    else:
        assert len(neighbours) == (2 if spec.num_devices == 2 else 0)


@pytest.mark.parametrize("name", MESHES)
def test_enough_links(name: str) -> None:
    """Between neighbours at least as many cables as the mesh says a collective may use."""
    spec = MESHES[name]
    between = Counter(frozenset((a, b)) for a, _, b, _ in cables(descriptor(spec)))
    assert not between or min(between.values()) >= max(spec.links)


def test_meshes_of_one_product_share_a_cluster() -> None:
    assert descriptor(MESHES["t3k"]) == descriptor(MESHES["t3k-1x8"]) == descriptor(MESHES["quietbox"])
    assert descriptor(MESHES["bh-qb"]) == descriptor(MESHES["bh-qb-1x4"])
    assert descriptor(MESHES["galaxy"]) != descriptor(MESHES["tg"])


APPROVED = {
    "n150": "61e41fad65190450",
    "n300": "58f0ac252171f74f",
    "t3k": "8df77982f4f225d1",
    "tg": "a911c8da42a934aa",
    "galaxy": "f8a1b226a38dadef",
    "bh-p150": "45c59bb3e58a1217",
    "bh-p300": "16262b5d5eebb7e8",
    "bh-qb": "a5d96d85d96bf6c7",
    "bh-loudbox": "7693bde423a1d172",
    "bh-galaxy": "ba7bad743c486d6f",
}
"""Digests of descriptors on which ttnn 0.81.1 has opened each mesh: boards, ids, masks and cables are its to judge."""


@pytest.mark.parametrize("name", APPROVED)
def test_what_ttnn_has_opened(name: str) -> None:
    assert hashlib.sha256(descriptor(MESHES[name]).encode()).hexdigest()[:16] == APPROVED[name]


def test_every_field() -> None:
    fields = [line.partition(":")[0] for line in descriptor(MESHES["bh-galaxy"]).splitlines()]
    assert fields == [
        "arch", "chips", "chip_unique_ids", "ethernet_connections", "ethernet_connections_to_remote_devices",
        "chips_with_mmio", "harvesting", "boards", "io_device_type", "chip_to_bus_id", "asic_locations",
    ]  # fmt: skip


def test_no_such_product() -> None:
    with pytest.raises(UserError, match="no product with its devices"):
        descriptor(MeshSpec("odd", "odd", "wormhole_b0", (1, 3), (0, 1)))
