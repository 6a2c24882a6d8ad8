"""Public name of :mod:`refsim.base.mesh`."""

from refsim.base.mesh import MESHES, MeshSpec, Topology, get_mesh, meshes

__all__ = ["MESHES", "MeshSpec", "Topology", "get_mesh", "meshes"]
