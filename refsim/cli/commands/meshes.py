"""``refsim meshes``: the named meshes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from refsim.base.mesh import MeshSpec


def meshes(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Show the named meshes: architecture, shape, links, wrap-around and topology per axis."""
    from refsim.base.mesh import meshes as find_meshes
    from refsim.files import output

    known = find_meshes()
    for problem in known.problems:
        typer.echo(f"note: {problem}.", err=True)
    rows: list[dict[str, Any]] = [
        {
            "name": m.name,
            "system": m.system,
            "arch": m.arch,
            "shape": list(m.shape),
            "devices": m.num_devices,
            "links": list(m.links),
            "wrap_around": [topology == "Ring" for topology in _topologies(m)],
            "topology": _topologies(m),
        }
        for m in known.all
    ]
    if as_json:
        typer.echo(output.document({"meshes": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Meshes (axis 0 = rows, axis 1 = columns)")
    for heading in ("name", "system", "arch", "shape", "devices", "links/axis", "wrap/axis", "topology/axis"):
        table.add_column(heading, justify="right" if heading == "devices" else "left")
    for r in rows:
        table.add_row(
            r["name"],
            r["system"],
            r["arch"],
            f"{r['shape'][0]}x{r['shape'][1]}",
            str(r["devices"]),
            " / ".join(map(str, r["links"])),
            " / ".join("yes" if w else "no" for w in r["wrap_around"]),
            " / ".join(t or "none" for t in r["topology"]),
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _topologies(mesh: MeshSpec) -> list[str | None]:
    return [t.value if t else None for t in (mesh.topology(0), mesh.topology(1))]
