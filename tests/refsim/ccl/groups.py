"""The groups that collectives are tried on: every topology, both axes of 2-D meshes, neighbours and strangers."""

from __future__ import annotations

from refsim.base.config import parse_parallel
from refsim.base.mesh import get_mesh
from refsim.runtime.group import Group
from tests.refsim.helpers import groups_of

# id: (mesh, parallel, group)
GROUPS = {
    "ring8-t3k_1x8": ("t3k-1x8", "sp8", "sp"),
    "ring4-bh_loudbox_axis1": ("bh-loudbox", "sp2_tp4", "tp"),
    "ring8-galaxy_axis1": ("galaxy", "sp4_tp8", "tp"),
    "line2-n300": ("n300", "sp2", "sp"),
    "line2-t3k_cfg": ("t3k", "cfg2_sp2_tp2", "cfg"),
    "line4-t3k_axis1": ("t3k", "sp2_tp4", "tp"),
    "line8-tg_axis0": ("tg", "sp8_tp4", "sp"),
}
RINGS = [name for name in GROUPS if name.startswith("ring")]
LINES = [name for name in GROUPS if name.startswith("line")]


def members(name: str) -> list[Group]:
    """Every rank's view of its group."""
    mesh, parallel, group = GROUPS[name]
    spec = get_mesh(mesh)
    return [groups[group] for groups in groups_of(spec, parse_parallel(parallel, spec))]
