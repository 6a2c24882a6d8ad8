"""A mesh of one's own from a JSON file: ``--mesh my_mesh.json``.

    {"shape": [8, 16], "arch": "wormhole_b0", "links": [4, 4], "torus": [false, true]}

Only ``shape``, (rows, columns), has to be there. ``name`` is the file's own name unless it is given, ``arch`` is
``wormhole_b0``, every axis of more than one device has 1 link per hop and none is a torus. Keys are those of
:class:`refsim.base.mesh.MeshSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from refsim.base.schema import Flag, Text, read, read_object

MOST_DEVICES = 1024
"""Every device is a process; a larger mesh is a mistake, or one for prediction alone."""

Name = Annotated[
    str, Strict(), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$"), "letters, digits, '.', '-' and '_'"
]
Side = Annotated[int, Strict(), Field(ge=1, le=MOST_DEVICES), f"a whole number from 1 to {MOST_DEVICES}"]
Links = Annotated[int, Strict(), Field(ge=0, le=64), "a whole number from 0 to 64"]


@dataclass(frozen=True)
class MeshFile:
    """What a mesh file may say; see :class:`refsim.base.mesh.MeshSpec`."""

    shape: tuple[Side, Side]
    name: Name = ""
    system: Text = "a mesh of one's own"
    arch: Literal["wormhole_b0", "blackhole"] = "wormhole_b0"
    links: tuple[Links, Links] | None = None
    torus: tuple[Flag, Flag] = (False, False)


def read_mesh_file(path: Path) -> dict[str, Any]:
    """Return the arguments of the :class:`refsim.base.mesh.MeshSpec` that a file describes.

    Raises:
        UserError: the file cannot be read, is no JSON object, has a key that no mesh has or a value that none may have.
    """
    refuse_unreadable(path, "mesh file")
    if not path.is_file():
        raise UserError(f"mesh file '{path}' does not exist; `refsim meshes` lists the meshes that need none.")
    values = read_object(path)
    known = [f.name for f in fields(MeshFile)]
    for name in values:
        if name not in known:
            raise UserError(f"mesh file '{path}' has key '{name}', which no mesh has; it takes {', '.join(known)}.")
    where = f"mesh file '{path}'"
    mesh = read(MeshFile, {"name": path.stem} | values, where)
    rows, columns = mesh.shape
    if rows * columns > MOST_DEVICES:
        raise UserError(f"{where} has {rows} x {columns} devices; {MOST_DEVICES} is the most, each is a process.")
    links = mesh.links or (int(rows > 1), int(columns > 1))
    for axis, (size, count) in enumerate(zip(mesh.shape, links, strict=True)):
        if (size > 1) != (count > 0):
            wanted = "at least 1 link" if size > 1 else "0 links"
            raise UserError(f"{where} has {count} links on axis {axis} of {size} device(s); give it {wanted}.")
    return {f.name: getattr(mesh, f.name) for f in fields(mesh)} | {"links": links}
