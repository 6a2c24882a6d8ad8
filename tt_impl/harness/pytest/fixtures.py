"""Fixtures for suites that bring none: ``device``, ``mesh_device`` and ``device_params``, as TTNN's own tests use them.

A suite's own fixtures of these names come first, as pytest has it. Parameters are given indirectly:

    @pytest.mark.parametrize("device_params", [{"fabric_config": ttnn.FabricConfig.FABRIC_1D}], indirect=True)
    @pytest.mark.parametrize("mesh_device", [(2, 4)], indirect=True)
    def test_gather(mesh_device): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def device_params(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Keywords for opening devices, ``fabric_config`` among them; the parameter, or none."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def device(device_params: dict[str, Any]) -> Iterator[Any]:
    """One device."""
    import ttnn

    opened = ttnn.open_device(device_id=0, **device_params)
    yield opened
    ttnn.close_device(opened)


@pytest.fixture
def mesh_device(request: pytest.FixtureRequest, device_params: dict[str, Any]) -> Iterator[Any]:
    """Open a mesh of the parameter's shape: (rows, columns), or so many devices in a row; without one, all devices."""
    import ttnn

    asked = getattr(request, "param", None)
    shape = tuple(asked) if isinstance(asked, tuple | list) else (1, asked or ttnn.get_num_devices())
    if shape[0] * shape[1] > ttnn.get_num_devices():
        pytest.skip(f"asks for {shape[0]}x{shape[1]} devices, but the mesh has {ttnn.get_num_devices()}")
    fabric = device_params.pop("fabric_config", None)
    if fabric is not None:
        ttnn.set_fabric_config(fabric)
    opened = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(*shape), **device_params)
    yield opened
    for submesh in opened.get_submeshes():
        ttnn.close_mesh_device(submesh)
    ttnn.close_mesh_device(opened)
    if fabric is not None:
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
