"""Mistakes that ttnn's host side accepts, or answers with a crash, are found before the call, on any kind of mesh.

``guard`` watches every call of a mesh: links the mesh does not have, cores the device does not have, Ring on a
line, a reduce_scatter whose parts are no whole tiles, a persistent buffer of another shape or dtype than what is
gathered into it, a tensor that was deallocated, a mesh that is used beside its submeshes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ttnn

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, Topology
from tt_impl.parallel.padding import TILE
from tt_impl.trace.collectives import RING_BY_DEFAULT, arguments
from tt_impl.trace.freed import check_allocated
from tt_impl.trace.intercept import Invocation, intercepted

REDUCE_SCATTERS = frozenset({"ttnn.reduce_scatter", "ttnn.experimental.reduce_scatter_minimal_async"})

GATHERS = {
    "ttnn.experimental.all_gather_async": None,
    "ttnn.experimental.all_gather_minimal_matmul_async": -1,
}
"""Collectives that take any persistent buffer (the others' ttnn checks itself), and the dim they gather if fixed."""

DIVIDE = frozenset({"ttnn.MeshDevice.create_submesh", "ttnn.MeshDevice.create_submeshes"})


@contextmanager
def guard(spec: MeshSpec, grid: tuple[int, int]) -> Iterator[None]:
    """Check every call of ttnn in the block against the mesh ``spec`` and the compute ``grid`` (x, y) of a device."""

    divided: set[int] = set()

    def handle(call: Invocation) -> Any:
        check_divided(call, divided)
        if call.name in DIVIDE:
            result = call.proceed()
            divided.add(call.args[0].id())
            return result
        check_allocated(call)
        check_links(call, spec)
        check_topology(call, spec)
        check_cores(call, grid)
        if call.name in REDUCE_SCATTERS:
            check_reduce_scatter(call)
        if call.name in GATHERS:
            check_persistent_buffer(call)
        if call.name == "ttnn.mesh_partition":
            check_mesh_partition(call)
        return call.proceed()

    with intercepted(handle):
        yield


def check_divided(call: Invocation, divided: set[int]) -> None:
    """Refuse a mesh that is used beside its submeshes: their allocators give out the same memory twice."""
    devices = [*call.meshes, *(t.device() for t in call.inputs if t.is_allocated())]
    if divided and call.name not in DIVIDE and any(device.id() in divided for device in devices):
        raise UserError(
            f"{call.name} uses a mesh that was cut into submeshes, whose allocators would give out the same memory "
            "twice; use the submeshes only."
        )


def check_links(call: Invocation, spec: MeshSpec) -> None:
    """Refuse more Ethernet links than the mesh has on the axis; without an axis, than it has on any."""
    for links, axis in _per_axis(call, "num_links"):
        have = spec.links[axis] if axis is not None else max(spec.links)
        if isinstance(links, int) and links > have:
            where = "any axis" if axis is None else f"axis {axis}"
            raise UserError(f"{call.name} asks for {links} links, but {spec} has {have} on {where}.")


def check_topology(call: Invocation, spec: MeshSpec) -> None:
    """Refuse Ring but on an axis whose ends are wired to each other; a part of such an axis is a line."""
    topology = _topology(call)
    if topology is None or topology == ttnn.Topology.Linear:
        return
    shape = _mesh_shape(call) or spec.shape
    axes = [axis for _, axis in _per_axis(call, "topology")] or [None]
    for axis in axes:
        if axis is None:
            axis = 0 if shape[0] > shape[1] else 1
        if shape[axis] != spec.shape[axis] or spec.topology(axis) is not Topology.RING:
            raise UserError(
                f"{call.name} runs as a {topology.name} on axis {axis} of {spec}, which is a line; "
                "pass topology=ttnn.Topology.Linear."
            )


def check_cores(call: Invocation, grid: tuple[int, int]) -> None:
    """Refuse a core grid, of an argument or of a program config, beyond the device's."""
    for argument, value in [("an argument", v) for v in call.args] + list(call.kwargs.items()):
        size = value if isinstance(value, ttnn.CoreGrid) else getattr(value, "compute_with_storage_grid_size", None)
        if size is None or callable(size):
            continue
        x, y = (size.x, size.y) if hasattr(size, "x") else tuple(size)
        if x > grid[0] or y > grid[1]:
            raise UserError(
                f"{call.name} asks for {x}x{y} cores in {argument}, but the device has {grid[0]}x{grid[1]}."
            )


def check_reduce_scatter(call: Invocation) -> None:
    """Refuse parts that are not whole tiles: ttnn would take a detour that silently pads and slices.

    On a line, sums travel in both directions, each through a half of the intermediate buffer.
    """
    tensor, size, dim, ranks = _cut(call)
    unit = TILE if tensor.layout == ttnn.TILE_LAYOUT and dim >= len(tensor.shape) - 2 else 1
    if size % (ranks * unit):
        raise UserError(
            f"{call.name} cuts dim {dim} of size {size} into {ranks} parts, which needs a multiple of "
            f"{ranks * unit}; pad the dim."
        )
    lists = [a for a in (call.kwargs.get("persistent_output_buffers"), *call.args[1:2]) if isinstance(a, list | tuple)]
    if lists and _topology(call) == ttnn.Topology.Linear and lists[0][0].volume() < 2 * tensor.volume():
        wanted = (2 * tensor.shape[0], *list(tensor.shape)[1:])
        raise UserError(
            f"{call.name} on a line needs an intermediate buffer of shape {wanted}, a half for each direction, "
            f"but its buffer has shape {tuple(lists[0][0].shape)}."
        )


def check_mesh_partition(call: Invocation) -> None:
    _, size, dim, ranks = _cut(call)
    if size % ranks:
        raise UserError(
            f"{call.name} cuts dim {dim} of size {size} into {ranks} parts; pad it to a multiple of {ranks}."
        )


def check_persistent_buffer(call: Invocation) -> None:
    """Refuse a buffer of another shape or dtype than the gathered tensor's: it would be written as if it had them."""
    buffer = call.kwargs.get("persistent_output_buffer")
    if buffer is None and len(call.args) > 1 and isinstance(call.args[1], ttnn.Tensor) and not GATHERS[call.name]:
        buffer = call.args[1]
    if buffer is None:
        return
    tensor, _, dim, ranks = _cut(call, GATHERS[call.name])
    shape = list(tensor.shape)
    shape[dim] *= ranks
    if list(buffer.shape) != shape or buffer.dtype != tensor.dtype:
        raise UserError(
            f"{call.name} gathers a {tensor.dtype.name} tensor of shape {tuple(shape)}, but its persistent buffer is a "
            f"{buffer.dtype.name} tensor of shape {tuple(buffer.shape)}; give it the gathered tensor's shape and dtype."
        )


def _cut(call: Invocation, dim: int | None = None) -> tuple[ttnn.Tensor, int, int, int]:
    """Return (tensor, size of its dim, that dim, devices along the axis) of a collective that cuts or joins a dim."""
    tensor = call.args[0] if call.args else call.kwargs["input_tensor"]
    numbers = [a for a in call.args[1:] if isinstance(a, int)]
    if dim is None:
        dim = call.kwargs["dim"] if "dim" in call.kwargs else numbers.pop(0)
    axis = call.kwargs.get("cluster_axis", numbers[0] if numbers else None)
    rows, columns = tensor.device().shape
    ranks = rows * columns if axis is None else (rows, columns)[axis]
    return tensor, tensor.shape[dim], dim % len(tensor.shape), ranks


def _per_axis(call: Invocation, name: str) -> list[tuple[Any, int | None]]:
    """Pair the argument ``name`` with its mesh axis; operations over two axes take a list of each."""
    value = call.kwargs.get(name)
    axis = _axis(call)
    if isinstance(axis, list | tuple):
        values = value if isinstance(value, list | tuple) else [value] * len(axis)
        return list(zip(values, axis, strict=False))
    if value is None and name == "num_links":
        return []
    return [(value, axis)]


def _axis(call: Invocation) -> Any:
    named = arguments(call)
    if "cluster_axis" in named:
        return named["cluster_axis"]
    for place, argument in enumerate(call.args):  # (x, dim, axis, mesh, topology, ...) or (x, axis, mesh, ...)
        if isinstance(argument, ttnn.MeshDevice) and place and isinstance(call.args[place - 1], int):
            return call.args[place - 1]
    return None


def _topology(call: Invocation) -> Any:
    topology = call.kwargs.get("topology", next((a for a in call.args if isinstance(a, ttnn.Topology)), None))
    if topology is None and call.name in RING_BY_DEFAULT and _axis(call) is not None:
        return ttnn.Topology.Ring
    return topology


def _mesh_shape(call: Invocation) -> tuple[int, int] | None:
    if not call.inputs:
        return None
    rows, columns = call.inputs[0].device().shape
    return rows, columns
