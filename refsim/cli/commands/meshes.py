"""``refsim meshes``: the named meshes."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import typer

from refsim.base.mesh import MeshSpec
from refsim.base.mesh import meshes as find_meshes
from refsim.cli import options as opt
from refsim.cli.answer import say
from refsim.files import output
from refsim.files.keys import Document


@dataclass(frozen=True)
class Mesh:
    """One mesh.

    Attributes:
        links: Per hop, by axis.
        topology: Ring or Linear, by axis; null for an axis of one device.
    """

    name: str
    system: str
    arch: str
    shape: tuple[int, ...]
    devices: int
    links: tuple[int, ...]
    wrap_around: list[bool]
    topology: list[str | None]

    @classmethod
    def of(cls, m: MeshSpec) -> Mesh:
        """Describe a mesh."""
        topology = [t.value if t else None for t in (m.topology(0), m.topology(1))]
        wrapped = [name == "Ring" for name in topology]
        return cls(m.name, m.system, m.arch, m.shape, m.num_devices, m.links, wrapped, topology)


@dataclass(frozen=True)
class Meshes(Document):
    """All that are known, those of packages included."""

    meshes: list[Mesh]


def meshes(as_json: opt.AsJson = False) -> None:
    """Show the named meshes: architecture, shape, links, wrap-around and topology per axis."""
    known = find_meshes()
    for problem in known.problems:
        say(f"note: {problem}.")
    listed = Meshes([Mesh.of(m) for m in known.all])
    if as_json:
        typer.echo(output.document(listed))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Meshes (axis 0 = rows, axis 1 = columns)")
    for heading in ("name", "system", "arch", "shape", "devices", "links/axis", "wrap/axis", "topology/axis"):
        table.add_column(heading, justify="right" if heading == "devices" else "left")
    for m in listed.meshes:
        wrapped = " / ".join("yes" if w else "no" for w in m.wrap_around)
        topology = " / ".join(t or "none" for t in m.topology)
        shape = "x".join(map(str, m.shape))
        links = " / ".join(map(str, m.links))
        table.add_row(m.name, m.system, m.arch, shape, str(m.devices), links, wrapped, topology)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
