"""A module that opens a device while it is imported: one process of ttnn has one cluster, its children have it, too."""

from __future__ import annotations

import ttnn

ttnn.close_device(ttnn.open_device(device_id=0))


def test_another_mesh(device):
    pass
