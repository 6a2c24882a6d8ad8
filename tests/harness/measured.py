"""Programs of a user, run on one mock mesh in a process of its own; what the harness says of them, as JSON.

python -m tests.harness.measured FOLDER [MESH PROGRAM ...]   writes FOLDER/<program>.json; of all on t3k by default
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT: list[Any] = []
"""Where a program puts what it ought to give back."""
SUBMESHES: list[Any] = []
"""The halves of the mesh; once it is cut, it is used through them only."""


def _put(ttnn: Any, device: Any, *shape: int, **kwargs: Any) -> Any:
    import torch

    value = torch.linspace(-1, 1, int(torch.tensor(shape).prod())).reshape(shape)
    return ttnn.from_torch(value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, **kwargs)


def peak(ttnn: Any, device: Any, session: Any) -> None:
    """The linear with a gelu of its own holds product and result at once: 2 x 512 x 1024 beside x and w."""
    x, w = _put(ttnn, device, 512, 256), _put(ttnn, device, 256, 1024)
    y = ttnn.linear(x, w, activation="gelu")
    z = ttnn.add(ttnn.slice(y, [0, 0], [512, 256]), x, memory_config=ttnn.L1_MEMORY_CONFIG)
    ttnn.deallocate(y)
    ttnn.to_torch(z, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))


def holes(ttnn: Any, device: Any, session: Any) -> None:
    """Every second one of sixteen tensors in L1 is given back."""
    x = _put(ttnn, device, 512, 512)
    parts = [ttnn.multiply(x, float(i), memory_config=ttnn.L1_MEMORY_CONFIG) for i in range(16)]
    for part in parts[::2]:
        ttnn.deallocate(part)
    ttnn.add(x, x)


def _step(ttnn: Any, device: Any, x: Any, keep: bool) -> None:
    gathered = ttnn.all_gather(x, dim=3, cluster_axis=1, topology=ttnn.Topology.Linear)
    half = ttnn.multiply(gathered, 0.5)
    ttnn.to_torch(half, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))
    if keep:
        KEPT.append(gathered)
        KEPT.append(ttnn.create_global_semaphore(device, _cores(ttnn), 0))


def _cores(ttnn: Any) -> Any:
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 6))})


def clean_loop(ttnn: Any, device: Any, session: Any) -> None:
    x = _put(ttnn, device, 1, 1, 64, 64)
    for _ in range(5):
        _step(ttnn, device, x, keep=False)
        session.iteration()


def leaking_loop(ttnn: Any, device: Any, session: Any) -> None:
    x = _put(ttnn, device, 1, 1, 64, 64)
    for _ in range(5):
        _step(ttnn, device, x, keep=True)
        session.iteration()
    ttnn.add(x, x)


def unmarked_loop(ttnn: Any, device: Any, session: Any) -> None:
    weights = [_put(ttnn, device, 64, 64) for _ in range(6)]
    x = _put(ttnn, device, 1, 1, 64, 64)
    for _ in range(6):
        _step(ttnn, device, x, keep=True)
    ttnn.add(x, weights[0])


def two_leaks(ttnn: Any, device: Any, session: Any) -> None:
    """One line keeps two tensors of unlike shapes each time, another line none."""
    x, w = _put(ttnn, device, 64, 64), _put(ttnn, device, 64, 256)
    for _ in range(5):
        KEPT.extend(ttnn.exp(y) for y in (x, w))
        ttnn.add(x, x)
        session.iteration()


def too_many_buffers(ttnn: Any, device: Any, session: Any) -> None:
    """A buffer for every length, each used once: 1 GiB and 32 MiB more each time, of 12 GiB in all."""
    with contextlib.suppress(RuntimeError):
        for rows in range(32768, 65536, 1024):
            KEPT.append(ttnn.zeros((1, 1, rows, 16384), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device))
            ttnn.slice(KEPT[-1], [0, 0, 0, 0], [1, 1, 32, 32])


def too_many_pieces(ttnn: Any, device: Any, session: Any) -> None:
    """Every second one of twenty tensors of 64 KiB a core is given back; one of 128 KiB has no place."""
    kind = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, memory_config=ttnn.L1_MEMORY_CONFIG)
    KEPT.extend(ttnn.empty((2048, 1024), **kind) for _ in range(20))
    for tensor in KEPT[::2]:
        ttnn.deallocate(tensor)
    with contextlib.suppress(RuntimeError):
        ttnn.empty((4096, 1024), **kind)


def too_large_a_program(ttnn: Any, device: Any, session: Any) -> None:
    """Circular buffers of a softmax end behind where tensors in L1 begin."""
    kind = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    KEPT.extend(ttnn.zeros((2048, 1024), **kind, memory_config=ttnn.L1_MEMORY_CONFIG) for _ in range(20))
    with contextlib.suppress(RuntimeError):
        ttnn.softmax(ttnn.zeros((2048, 2048), **kind), dim=-1)


def costs(ttnn: Any, device: Any, session: Any) -> None:
    x, w = _put(ttnn, device, 1, 1, 2048, 1024), _put(ttnn, device, 1024, 4096)
    y = ttnn.linear(x, w)
    ttnn.gelu(y)
    ttnn.layer_norm(x)
    ttnn.all_gather(x, dim=3, cluster_axis=1, topology=ttnn.Topology.Linear, num_links=1)
    ttnn.reduce_scatter(x, dim=3, cluster_axis=1, topology=ttnn.Topology.Linear)
    ttnn.sum(x, dim=3)


def halves(ttnn: Any, device: Any, session: Any, wait: bool = False) -> None:
    """The same work on two submeshes; with ``wait`` the first half is read back before the second one is sent."""
    results = []
    for half in _submeshes(ttnn, device):
        x = ttnn.gelu(_put(ttnn, half, 1, 1, 2048, 2048))
        results.append((x, half))
        if wait:
            _read(ttnn, x, half)
    for x, half in results[wait:]:
        _read(ttnn, x, half)


def serial_halves(ttnn: Any, device: Any, session: Any) -> None:
    halves(ttnn, device, session, wait=True)


def _submeshes(ttnn: Any, device: Any) -> Any:
    global SUBMESHES
    if not SUBMESHES:
        SUBMESHES = device.create_submeshes(ttnn.MeshShape(2, 2))
    return SUBMESHES


def _read(ttnn: Any, x: Any, mesh: Any) -> None:
    ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))


PROGRAMS: dict[str, Callable[[Any, Any, Any], None]] = {
    program.__name__: program
    for program in (
        *(peak, holes, clean_loop, leaking_loop, two_leaks, unmarked_loop),
        *(too_many_buffers, too_many_pieces, too_large_a_program),
        *(costs, halves, serial_halves),
    )
}


def main(folder: Path, mesh_name: str = "t3k", *names: str) -> None:
    from tt_impl.run.mesh import open_mesh

    with open_mesh(mesh_name) as mesh:
        import ttnn

        from tt_impl.harness.reports import cost, exhausted, index, peaks, write
        from tt_impl.harness.watch.session import watched

        for name, program in ((name, PROGRAMS[name]) for name in names or PROGRAMS):
            with watched(report=True) as session:
                program(ttnn, mesh.device, session)
            write.write(folder / "reports", f"tests/x.py::{name}[{mesh_name}]", session)
            predictions = cost.predict(session.meter)
            found = {
                "memory": peaks.summary(session.meter),
                "exhausted": [exhausted.as_json(record, []) for record in session.exhaustion.records],
                "predictions": [p.as_json() for p in predictions],
                "cost": cost.summary(session, predictions),
                "views": {
                    kind: ttnn.get_memory_view(
                        mesh.device, getattr(ttnn.BufferType, kind)
                    ).total_bytes_allocated_per_bank
                    for kind in ("DRAM", "L1")
                },
            }
            KEPT.clear()
            gc.collect()
            if program is leaking_loop:
                with watched(report=True, values=False) as session:
                    program(ttnn, mesh.device, session)
                read = ttnn.to_torch(ttnn.get_device_tensors(KEPT[0])[0])
                found["values_off"] = {"memory": peaks.summary(session.meter), "read": read.abs().sum().item()}
                KEPT.clear()
                gc.collect()
            (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
        index.index(folder / "reports")
        sys.stdout.flush()
        os._exit(0)  # a mesh that was cut does not close well


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
